"""Optimizers that step inside of backward, parameter by parameter, and take each gradient away at once."""

import copy

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded
from torch import nn

pytestmark = pytest.mark.usefixtures("close_debugger")


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_gradients_are_recorded_before_they_are_taken_away(tmp_path, level):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    bare = copy.deepcopy(model)
    order = []
    for each in (bare, model):
        for parameter in each.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: order.append(p.grad.norm().item()))
            parameter.register_post_accumulate_grad_hook(step)
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level=level)
    bare(torch.ones(2, 3)).sum().backward()
    with debugger.start(model):
        model(torch.ones(2, 3)).sum().backward()
    debugger.close()
    assert order[4:] == order[:4]
    assert [p.tolist() for p in model.parameters()] == [p.tolist() for p in bare.parameters()]
    data = Recorded(tmp_path / "run").data
    for path in ("0", "1"):
        for name in ("weight", "bias"):
            norm = data[f"Module.{path}.Linear.parameters_grad.0"][name][0]["Norm"]
            assert any(norm == pytest.approx(one) for one in order)


def step(parameter):
    with torch.no_grad():
        parameter -= 0.1 * parameter.grad
    parameter.grad = None
