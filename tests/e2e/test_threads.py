"""Programs of several threads: the probe changes nothing in them, and records what it can."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded
from torch import nn

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
