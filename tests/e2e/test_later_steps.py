"""Two steps with Adam and a bias whose gradient is rounding alone: healthy runs agree, a missing update is named."""

import pytest
import torch
from in_kernel import InKernel
from msprobe.pytorch import PrecisionDebugger, calibration
from torch import nn

from msprobe_core.calibrate import calibrate
from msprobe_core.compare import CompareOptions
from msprobe_core.judge.noise import load_noise
from msprobe_core.locate import LocateOptions, LocateVerdict, locate

pytestmark = pytest.mark.usefixtures("close_debugger")

WIDTH, NUM_LAYERS = 16, 4


class Layer(nn.Module):
    """Attention; what the bias of the key adds to all scores of a row is cancelled by the softmax."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        return x + nn.functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))


def train(place, *, jitter=0.0, repeats=0, frozen=None):
    """Record two steps; each linear layer's result is off by ``jitter``, relative, as with another kernel."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer() for _ in range(NUM_LAYERS)), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    torch.manual_seed(1)
    batches = torch.randn(2, 2, 8, WIDTH)
    for module in model.modules():
        if jitter and isinstance(module, nn.Linear):
            off = 1 + jitter * torch.randn(module.out_features)
            module.register_forward_hook(
                lambda _, __, out, off=off: InKernel.apply(out, lambda v: v * off, lambda g: g * off)
            )
    debugger = PrecisionDebugger(dump_path=place, level="mix")

    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        before = frozen and model.get_parameter(frozen).detach().clone()
        optimizer.step()
        if frozen:
            with torch.no_grad():
                model.get_parameter(frozen).copy_(before)

    for x in batches:
        if repeats:
            with calibration(debugger, model, optimizer, repeats=repeats) as runs:
                for _ in runs:
                    step(x)
        else:
            with debugger.start(model):
                step(x)
        debugger.step()
    debugger.close()
    return place


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    place = train(tmp_path_factory.mktemp("golden") / "run", repeats=3)
    calibrate(place)
    return place


def look(target, golden):
    return locate(target, golden, LocateOptions(compare=CompareOptions(noise=load_noise(golden))))


def test_what_updates_make_of_rounding_is_no_fault(golden, tmp_path):
    found = look(train(tmp_path / "target", jitter=2e-8), golden)
    assert found.verdict is LocateVerdict.AGREE, found.suspects[0]


def test_a_parameter_that_is_not_updated_is_named_in_the_next_step(golden, tmp_path):
    found = look(train(tmp_path / "target", jitter=2e-8, frozen="2.value.weight"), golden)
    assert found.verdict is LocateVerdict.FAULT
    assert (found.suspects[0].step, found.suspects[0].module) == (1, "2.value")
