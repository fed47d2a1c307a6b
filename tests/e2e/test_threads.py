"""Programs of several threads: the probe changes nothing in them, and records what it can."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded
from torch import nn
from torch.overrides import TorchFunctionMode
from torch_traces import traces_in

LEVELS = ("L0", "L1", "mix")


def on_thread(work):
    """Return what ``work`` returns on a new thread, which numbers its autograd nodes from 0."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4096))
        self.bias = nn.Parameter(torch.randn(4096))

    def forward(self, x):
        return x * self.weight + self.bias


def build():
    torch.manual_seed(0)
    return nn.Sequential(*(Scale() for _ in range(4)))


def two_threads_and_one_backward(model):
    """Use parameters on two threads, so that the numbers of nodes decide in which order their gradients are summed."""
    torch.manual_seed(1)
    x = torch.randn(4096)

    def others():
        y = x * 1.0
        y = y * model[0].weight.mean()
        for layer in model:
            y = y * layer.weight * layer.weight
        return y.sum() * 0.01, torch._C._autograd._get_sequence_nr()

    y = model(x)
    numbers = [torch._C._autograd._get_sequence_nr()]
    loss, number = on_thread(others)
    (loss + y.sin().sum()).backward()
    return [*numbers, number], [parameter.grad.numpy().tobytes() for parameter in model.parameters()]


@pytest.mark.parametrize("level", LEVELS)
def test_nodes_keep_their_numbers_and_gradients_their_order(level, tmp_path, close_debugger):
    expected = on_thread(lambda: two_threads_and_one_backward(build()))
    assert on_thread(lambda: two_threads_and_one_backward(build())) == expected  # without the probe
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level=level)

    def probed():
        model = build()
        with debugger.start(model):
            return two_threads_and_one_backward(model)

    assert on_thread(probed) == expected


@pytest.mark.parametrize("level", LEVELS)
def test_work_on_another_thread_is_recorded(level, tmp_path, close_debugger):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    before = traces_in(model)
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level=level)
    with debugger.start(model):
        left = on_thread(lambda: (model(torch.ones(2, 3)), torch._C._len_torch_function_stack())[1])
    assert left == 0
    assert traces_in(model) == before
    expected = set()
    if level != "L1":
        expected |= {"Module.0.Linear.forward.0", "Module.1.ReLU.forward.0"}
    if level != "L0":
        expected |= {"Functional.linear.0.forward", "Functional.relu.0.forward"}
    assert expected <= Recorded(tmp_path / "run").data.keys()


@pytest.mark.slow
@pytest.mark.usefixtures("has_torch_imported")
def test_work_on_another_thread_without_a_model_is_missed_with_a_word(tmp_path):
    script = """
import sys, threading, torch
from msprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="L1")
for _ in range(2):
    with debugger.start():
        thread = threading.Thread(target=lambda: torch.ones(2) + 1)
        thread.start()
        thread.join()
    debugger.step()
"""
    run = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert run.stderr.count("call start(model)") == 1


def test_modes_of_a_thread_stay_above_ours(tmp_path, close_debugger):
    stacks = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def work():
        with Mode():
            model(torch.ones(2))
        stacks.append(torch._C._len_torch_function_stack())

    class Inside(nn.Module):
        def forward(self, x):
            stacks.append([type(torch._C._get_function_stack_at(i)).__name__ for i in range(2)])
            return x

    model = Inside()
    with PrecisionDebugger(dump_path=tmp_path / "run", level="mix").start(model):
        on_thread(work)
    assert stacks == [["ApiMode", "Mode"], 0]


class AtTheEnd(threading.local):
    """Notes how many modes a thread has when Python lets go of it."""

    class Note:
        def __init__(self, seen):
            self.seen = seen

        def __del__(self):
            self.seen.append(torch._C._len_torch_function_stack())


def test_a_thread_that_starts_and_ends_keeps_no_mode(tmp_path, close_debugger):
    debugger, seen, local = PrecisionDebugger(dump_path=tmp_path / "run", level="L1"), [], AtTheEnd()

    def work():
        debugger.start()
        torch.ones(2) + 1
        seen.append(torch._C._len_torch_function_stack())
        local.note = AtTheEnd.Note(seen)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    debugger.stop()
    # PyTorch would take it off later, and abort the process if that is ending.
    assert seen == [1, 0]


CYCLES = """
import os, sys, threading, time, torch
from torch import nn
from msprobe.pytorch import PrecisionDebugger
for repetition in range(12):
    child = os.fork()  # which runs the rest, and ends as a program does
    if not child:
        break
    print(os.waitpid(child, 0)[1], flush=True)
else:
    os._exit(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 4))
debugger = PrecisionDebugger(dump_path=f"{sys.argv[1]}/{repetition}", level="mix")
is_over = False
def work():
    x = torch.randn(8, 16)
    while not is_over:
        model(x).square().mean().backward()
threads = [threading.Thread(target=work) for _ in range(8)]
debugger.start(model)
for thread in threads:
    thread.start()
end = time.monotonic() + 1.5
while time.monotonic() < end:
    debugger.stop()
    debugger.step()
    debugger.start(model)
# The interpreter begins to exit in an open window, and waits for the threads meanwhile.
threading.Timer(0.3, globals().update, kwargs={"is_over": True}).start()
"""


@pytest.mark.slow
def test_processes_of_many_threads_end_well(tmp_path):
    # Before modes were taken off threads that end, 2 of 8 such processes aborted.
    run = subprocess.run([sys.executable, "-c", CYCLES, str(tmp_path)], capture_output=True, text=True)
    assert run.stdout.split() == ["0"] * 12, run.stderr
    assert run.stderr.count("terminate called") == 0
