"""Function and dispatch modes of the user, and classes of tensors, see the calls that they see without the probe."""

import threading
from contextlib import ExitStack, nullcontext

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from msprobe.pytorch import PrecisionDebugger
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint


class Calls:
    """What modes and a class of tensors of the user have seen."""

    def __init__(self):
        self.seen = []

    def note(self, kind, function, args, kwargs, *more):
        name = getattr(function, "__name__", None) or str(function)
        owner = getattr(getattr(function, "__self__", None), "__name__", "")
        self.seen.append((kind, name, owner, len(args), tuple(sorted(kwargs or {})), *more))

    def functions(self):
        note = self.note

        class Functions(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                note("function", func, args, kwargs, len(types))
                return func(*args, **(kwargs or {}))

        return Functions()

    def operators(self):
        note = self.note

        class Operators(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                note("operator", func, args, kwargs)
                return func(*args, **(kwargs or {}))

        return Operators()

    def modes(self):
        stack = ExitStack()
        stack.enter_context(self.functions())
        stack.enter_context(self.operators())
        return stack

    def tensor_class(self):
        note = self.note

        class Own(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                note("class", func, args, kwargs, len(types))
                return super().__torch_function__(func, types, args, kwargs or {})

        return Own


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)
        self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.embed, self.recur = nn.Embedding(5, 4), nn.GRU(4, 4, batch_first=True)

    def forward(self, x, indices):
        y = self.dropout(F.gelu(self.norm(self.first(x))))
        y = checkpoint(self.second, y, use_reentrant=False)
        states, _ = self.recur(self.embed(indices))
        y = y + states.mean(1)
        y[:, 0] *= 2
        return F.softmax(y, -1)


class Program:
    """A model, its optimizer, and what modes see of them."""

    def __init__(self, window):
        torch.manual_seed(0)
        self.calls = Calls()
        self.model = Network()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.x, self.indices = torch.randn(3, 4, requires_grad=True), torch.randint(5, (3, 2))
        self.window = lambda: window(self.model)

    def step(self):
        torch.manual_seed(3)
        loss = self.model(self.x, self.indices).square().sum() + F.mse_loss(self.x * 2, self.x)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            self.model.first.weight.mul_(0.9)
        self.model.first.weight.register_hook(lambda gradient: gradient)

    def outcome(self):
        stacks = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
        return self.calls.seen, [parameter.tolist() for parameter in self.model.parameters()], stacks


def around_windows(program):
    with program.calls.modes():
        for _ in range(2):
            with program.window():
                program.step()
            program.step()


def inside_a_window(program):
    with program.window(), program.calls.modes(), program.calls.functions():
        program.step()


def beyond_a_window(program):
    with ExitStack() as modes:
        with program.window():
            modes.enter_context(program.calls.modes())
            program.step()
        program.step()


def until_within_a_window(program):
    with ExitStack() as window:
        with program.calls.modes():
            window.enter_context(program.window())
            program.step()
        program.step()


def on_another_thread(program):
    def work():
        with program.calls.modes():
            program.step()

    with program.window():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()


def inside_a_forward(program):
    forward = program.model.first.forward

    def with_modes(x):
        with program.calls.modes():
            return forward(x)

    program.model.first.forward = with_modes
    with program.window():
        program.step()


def inside_a_hook(program):
    def hook(module, args):
        with program.calls.modes():
            return (args[0] * 1.5,)

    program.model.second.register_forward_pre_hook(hook)
    with program.window():
        program.step()


def around_backward(program):
    with program.window():
        loss = program.model(program.x, program.indices).sum()
        with program.calls.modes():
            loss.backward()


def with_a_tensor_class(program):
    program.x = program.x.as_subclass(program.calls.tensor_class())
    with program.window(), program.calls.modes():
        program.step()


PROGRAMS = [
    around_windows, inside_a_window, beyond_a_window, until_within_a_window, on_another_thread, inside_a_forward,
    inside_a_hook, around_backward, with_a_tensor_class,
]  # fmt: skip


def run(program, window):
    prepared = Program(window)
    program(prepared)
    return prepared.outcome()


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    ("level", "options"),
    [("L0", {}), ("L1", {}), ("mix", {}), ("mix", {"task": "tensor"}), ("L0", {"token_range": [0, 0]})],
    ids=["L0", "L1", "mix", "tensor", "token_range"],
)
@pytest.mark.filterwarnings("ignore")
def test_modes_see_what_they_see_without_the_probe(program, level, options, tmp_path, close_debugger):
    expected = run(program, lambda _: nullcontext())
    assert run(program, lambda _: nullcontext()) == expected
    assert len(expected[0]) > 2
    start = {key: value for key, value in options.items() if key == "token_range"}
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level=level, task=options.get("task"))
    found = run(program, lambda model: debugger.start(model, **start))
    assert found == expected
