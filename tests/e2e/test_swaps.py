"""`torch.utils.swap_tensors` works in a window as it does without the probe, and what is swapped is still recorded."""

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded
from torch import nn

pytestmark = pytest.mark.skipif(not hasattr(torch.utils, "swap_tensors"), reason="this release swaps no tensors")


@pytest.fixture(autouse=True)
def swaps_on_conversion():
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def loss_of(model):
    torch.manual_seed(1)
    return model(torch.randn(3, 4).to(model[0].weight.dtype)).square().mean()


def convert_before(model):
    model.to(torch.float64)
    loss_of(model).backward()


def convert_after_backward(model):
    loss_of(model).backward()
    model.to(torch.float64)
    loss_of(model).backward()


def convert_while_a_loss_is_alive(model):
    loss = loss_of(model)
    loss.backward()
    model.to(torch.float64)
    (loss_of(model) * loss.item()).backward()


def convert_before_backward(model):
    loss = loss_of(model)
    model.to(torch.float64)  # PyTorch refuses: the graph needs the old tensors
    loss.backward()


def convert_after_evaluation(model):
    with torch.no_grad():
        loss_of(model)
    model.double()
    loss_of(model).backward()


def load_between_steps(model):
    loss_of(model).backward()
    model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})
    loss_of(model).backward()


def swap_by_hand(model):
    loss_of(model).backward()
    other = nn.Parameter(torch.full((4, 4), 0.5))
    model[0].zero_grad()
    torch.utils.swap_tensors(model[0].weight, other)
    loss_of(model).backward()


def hook_after_conversion(model):
    model.to(torch.float64)
    model[0].weight.register_hook(lambda gradient: gradient * 2)
    model[2].weight.register_post_accumulate_grad_hook(lambda parameter: [parameter.grad.add_(1)].clear())
    loss_of(model).backward()


PROGRAMS = [
    convert_before, convert_after_backward, convert_while_a_loss_is_alive, convert_before_backward,
    convert_after_evaluation, load_between_steps, swap_by_hand, hook_after_conversion,
]  # fmt: skip


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))


def outcome(program, model):
    """Return everything that a program leaves, and the error with which it ends."""
    before, error = list(map(id, model.parameters())), None
    try:
        program(model)
    except RuntimeError as raised:
        error = str(raised)
    values = [(p.dtype, p.tolist(), None if p.grad is None else p.grad.tolist()) for p in model.parameters()]
    return values, list(map(id, model.parameters())) == before, error


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_parameters_are_swapped_in_a_window(program, level, tmp_path, close_debugger):
    expected = outcome(program, build())
    model = build()
    with PrecisionDebugger(dump_path=tmp_path / "run", level=level).start(model):
        found = outcome(program, model)
    assert found == expected
    assert (expected[2] is not None) == (program is convert_before_backward)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_parameters_are_swapped_after_a_window(level, tmp_path, close_debugger):
    model, bare = build(), build()
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level=level)
    with debugger.start(model):
        loss_of(model).backward()
    loss_of(bare).backward()
    for each in (model, bare):
        each.double()
        loss_of(each).backward()
    debugger.step()
    assert outcome(lambda _: None, model) == outcome(lambda _: None, bare)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_what_is_swapped_is_recorded_with_its_new_values(level, tmp_path, close_debugger):
    model = build()
    with PrecisionDebugger(dump_path=tmp_path / "run", level=level).start(model):
        convert_after_backward(model)
        doubled = model[0].weight.max().item()
        with torch.no_grad():
            model[0].weight.mul_(2)
        loss_of(model)
    data = Recorded(tmp_path / "run").data
    weights = [data[f"Module.0.Linear.forward.{i}"]["parameters"]["weight"] for i in range(3)]
    assert [weight["dtype"] for weight in weights] == ["torch.float32", "torch.float64", "torch.float64"]
    assert weights[1]["Max"] == pytest.approx(doubled)
    assert weights[2]["Max"] == pytest.approx(2 * doubled)
    gradients = [data[f"Module.0.Linear.parameters_grad.{i}"]["weight"][0] for i in range(2)]
    assert [gradient["dtype"] for gradient in gradients] == ["torch.float32", "torch.float64"]
    assert gradients[1]["Norm"] == pytest.approx(model[0].weight.grad.norm().item())
