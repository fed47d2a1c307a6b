"""Decisions that rounding turns, in a real router: no fault by themselves, and no hiding place for one."""

import pytest
import torch
from in_kernel import InKernel
from msprobe.pytorch import PrecisionDebugger
from torch import nn

from msprobe_core.locate import LocateVerdict, locate

pytestmark = pytest.mark.usefixtures("close_debugger")

NUM_TOKENS, WIDTH, NUM_EXPERTS = 64, 16, 4


class Router(nn.Module):
    """Two experts of four, by the largest of its scores, which for some tokens are as good as equal."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(WIDTH, NUM_EXPERTS, bias=False)

    def forward(self, x):
        values, chosen = torch.topk(self.score(x).softmax(-1), 2, dim=-1)
        return values, chosen


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.router = Router()

    def forward(self, x):
        values, chosen = self.router(self.first(x))
        counts = nn.functional.one_hot(chosen.flatten(), NUM_EXPERTS).cumsum(0)
        return values.sum(), counts


def record(place, *, jitter=0.0, factor=1.0):
    """Record one forward; the scores are off by ``jitter``, relative, as those of another kernel."""
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():  # experts 0 and 1 are as good as each other
        net.router.score.weight[1] = net.router.score.weight[0]
    torch.manual_seed(1)
    x = torch.randn(NUM_TOKENS, WIDTH)
    off = (1 + jitter * torch.randn(NUM_TOKENS, NUM_EXPERTS)) * factor
    net.router.score.register_forward_hook(lambda _, __, out: InKernel.apply(out, lambda value: value * off, None))
    debugger = PrecisionDebugger(dump_path=place, level="mix")
    with debugger.start(net), torch.no_grad():
        net(x)
    debugger.step()
    debugger.close()
    return place


def test_ties_that_rounding_decides_otherwise_are_no_fault(tmp_path):
    found = locate(record(tmp_path / "target", jitter=1e-7), record(tmp_path / "golden"))
    assert found.num_decisions > 0  # they are reported all the same
    assert found.verdict is LocateVerdict.AGREE, found.suspects


def test_a_fault_before_the_router_is_named_there(tmp_path):
    found = locate(record(tmp_path / "target", jitter=1e-7, factor=1.5), record(tmp_path / "golden"))
    assert found.verdict is LocateVerdict.FAULT
    assert found.suspects[0].module == "router.score"
