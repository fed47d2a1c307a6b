"""Micro-batches, and what is computed again: which entry belongs to which."""

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded
from torch import nn
from torch.utils.checkpoint import checkpoint

from msprobe_core.locate import FaultKind, locate
from msprobe_core.locate.result import CheckState, Precondition


class Network(nn.Module):
    """One of its layers is computed again in backward, in the way that is asked for."""

    def __init__(self, is_reentrant=None):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = nn.Linear(4, 4)
        self.is_reentrant = is_reentrant

    def forward(self, x):
        x = self.first(x)
        if self.is_reentrant is None:
            return self.inner(x)
        return checkpoint(lambda y: torch.tanh(self.inner(y)), x, use_reentrant=self.is_reentrant)


def train(tmp_path, model, num_batches, level="mix"):
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level=level)
    torch.manual_seed(0)
    expected = []
    with debugger.start(model):
        for _ in range(num_batches):
            before = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
            model(torch.randn(2, 4)).square().sum().backward()
            expected.append({name: p.grad - before.get(name, 0) for name, p in model.named_parameters()})
    debugger.close()
    return Recorded(tmp_path / "run").data, expected


@pytest.mark.usefixtures("close_debugger")
def test_entries_name_their_micro_batch_in_both_directions(tmp_path):
    data, _ = train(tmp_path, Network(), 3)
    for i in range(3):
        for name in (
            f"Module.first.Linear.forward.{i}", f"Module.first.Linear.backward.{i}",
            f"Functional.linear.{2 * i}.forward",
            f"Functional.linear.{2 * i + 1}.backward", f"Tensor.square.{i}.forward", f"Tensor.square.{i}.backward",
            f"Module.first.Linear.parameters_grad.{i}",
        ):  # fmt: skip
            assert data[name]["execution"].get("micro_step", 0) == i, name


@pytest.mark.usefixtures("close_debugger")
def test_backward_passes_after_all_forwards_find_their_micro_batch(tmp_path):
    model = Network()
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="L0")
    with debugger.start(model):
        losses = [model(torch.randn(2, 4)).sum() for _ in range(2)]
        for loss in reversed(losses):
            loss.backward()
    debugger.close()
    data = Recorded(tmp_path / "run").data
    assert [data[f"Module.inner.Linear.backward.{i}"]["execution"].get("micro_step", 0) for i in range(2)] == [0, 1]
    grads = [data[f"Module.inner.Linear.parameters_grad.{i}"]["execution"].get("micro_step", 0) for i in range(2)]
    assert grads == [1, 0]


@pytest.mark.slow
@pytest.mark.usefixtures("close_debugger")
@pytest.mark.parametrize("is_reentrant", [False, True])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_what_is_computed_again_says_so(tmp_path, is_reentrant, level):
    data, _ = train(tmp_path, Network(is_reentrant), 2, level)
    again = {name for name, record in data.items() if record["execution"].get("recompute")}
    modules = {f"Module.inner.Linear.forward.{i}" for i in (1, 3)}
    functions = {f"Functional.linear.{i}.forward" for i in (2, 5)} | {f"Torch.tanh.{i}.forward" for i in (1, 3)}
    assert again == {"L0": modules, "L1": functions, "mix": modules | functions}[level]
    if level != "L1":
        micro_steps = [data[f"Module.inner.Linear.forward.{i}"]["execution"].get("micro_step", 0) for i in range(4)]
        assert micro_steps == [0, 0, 1, 1]


@pytest.mark.usefixtures("close_debugger")
def test_what_a_micro_batch_adds_to_a_gradient_is_told_from_the_sum(tmp_path):
    data, expected = train(tmp_path, Network(), 3)
    first = data["Module.first.Linear.parameters_grad.0"]
    assert first.keys() == {"weight", "bias", "execution"}  # all there is has been added just now
    for i in (1, 2):
        record = data[f"Module.first.Linear.parameters_grad.{i}"]
        total = sum(one["first.weight"] for one in expected[: i + 1])
        assert record["weight"][0]["Norm"] == pytest.approx(total.norm().item(), rel=1e-5)
        assert record["weight.contribution"][0]["Norm"] == pytest.approx(
            expected[i]["first.weight"].norm().item(), rel=1e-4
        )


@pytest.mark.usefixtures("close_debugger")
def test_a_gradient_that_is_only_asked_for_is_not_taken_for_a_contribution(tmp_path):
    model = nn.Linear(3, 3)
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="L0")
    model(torch.ones(1, 3)).sum().backward()
    with debugger.start(model):
        torch.autograd.grad(model(torch.full((1, 3), 7.0)).sum(), list(model.parameters()))
        model.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
    debugger.close()
    data = Recorded(tmp_path / "run").data
    assert data["Module.Linear.parameters_grad.0"].keys() == {"weight", "bias", "execution"}


@pytest.mark.usefixtures("close_debugger")
@pytest.mark.parametrize(
    ("level", "place", "code"),
    [("mix", "Tensor.add_.0.forward", "locate.lone-call"), ("L0", "Module.first.Linear.forward.1", "locate.update")],
)
def test_an_update_after_each_micro_batch_is_no_other_beginning(tmp_path, level, place, code):
    for side, is_early in (("target", True), ("golden", False)):
        torch.manual_seed(0)
        model = Network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        debugger = PrecisionDebugger(dump_path=tmp_path / side, level=level)
        with debugger.start(model):
            for batch in range(2):
                model(torch.randn(2, 4)).square().sum().backward()
                if is_early or batch:
                    optimizer.step()
        debugger.close()
    found = locate(tmp_path / "target", tmp_path / "golden")
    weights = next(check for check in found.checks if check.name is Precondition.WEIGHTS)
    first = found.suspects[0]
    assert (first.entry, first.kind, first.reason.code) == (place, FaultKind.OPTIMIZER, code)
    assert weights.state is CheckState.HOLDS
