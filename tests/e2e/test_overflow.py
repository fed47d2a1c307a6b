"""The task `overflow_check` on real models: the first culprit, no false ones, and training as it was."""

import json
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES
from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch._reduce import TorchReducer
from recorded import Recorded
from torch import nn
from torch_traces import traces_in

pytestmark = pytest.mark.usefixtures("close_debugger")


@pytest.fixture
def open_debugger(tmp_path):
    def make(*, level="mix", **options):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"task": "overflow_check", "risk_level": "ALL", "overflow_check": options}))
        return PrecisionDebugger(path, dump_path=tmp_path / "run", level=level)

    return make


class Planted(nn.Module):
    """Overflows half precision in its second layer, if told to."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))
        self.scale = 1.0

    def forward(self, x):
        hidden = self.first(x)
        hidden = (self.second(hidden) * self.scale).half().float()
        return self.third(hidden)


@pytest.mark.parametrize(("level", "expected"), [
    ("L0", "Module.Planted.forward.0"), ("L1", "Tensor.half.0.forward"), ("mix", "Tensor.half.0.forward"),
])  # fmt: skip
@pytest.mark.parametrize("defers", [False, True], ids=["host", "as on a device"])
def test_the_first_culprit_is_named_and_kept(tmp_path, open_debugger, monkeypatch, caplog, level, expected, defers):
    if defers:
        monkeypatch.setattr("msprobe.pytorch._framework.TorchReducer", lambda: TorchReducer(defer_host=True))
    torch.manual_seed(0)
    model = Planted()
    debugger = open_debugger(level=level)
    x = torch.randn(2, 4)
    for step in range(4):
        model.scale = 1e9 if step == 2 else 1.0
        with debugger.start(model):
            model(x).sum().backward()
        debugger.step()
    dump = Recorded(tmp_path / "run", 2)
    assert list(dump.data) == [expected]
    record = dump.data[expected]
    output = dump.tensor(record["output"][0])
    assert not np.isfinite(output).all()
    assert np.isfinite(dump.tensor(record["input_args"][0])).all()
    assert Recorded(tmp_path / "run", 1).data == {}
    assert not (tmp_path / "run" / "step3").exists()  # one was asked for
    said = [message for message in caplog.messages if "overflow:" in message]
    assert len(said) == 1
    assert said[0].startswith(f"step 2: overflow: {expected} makes ")
    if level != "L0":
        assert "hidden = (self.second(hidden) * self.scale).half().float()" in said[0]


def test_a_gradient_can_be_the_first(tmp_path, open_debugger, caplog):
    x = torch.zeros(3, requires_grad=True)
    debugger = open_debugger(level="L1")
    with debugger.start():
        torch.where(x > 0, torch.sqrt(x), x).sum().backward()  # 0 times infinity, and nothing wrong forward
    debugger.close()
    assert list(Recorded(tmp_path / "run").data) == ["Torch.sqrt.0.backward"]
    assert "torch.where(x > 0, torch.sqrt(x), x).sum().backward()" in caplog.text


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_healthy_model_has_none(tmp_path, open_debugger, caplog, name):
    architecture = ARCHITECTURES[name]
    model = architecture.build()
    debugger = open_debugger(overflow_nums=-1)
    with debugger.start(model):
        model(**architecture.batch()).loss.backward()
    debugger.close()
    # T5 takes the logarithm of distances of 0, and then does not look at it.
    expected = ["Torch.log.0.forward", "Torch.log.1.forward"] if name == "t5" else []
    assert list(Recorded(tmp_path / "run").data) == expected
    assert ("modeling_t5.py" in caplog.text) == (name == "t5")


@pytest.mark.parametrize("scale", [1.0, 1e9], ids=["healthy", "overflowing"])
def test_training_is_bitwise_unchanged(open_debugger, scale):
    def train(start):
        torch.manual_seed(0)
        model = Planted()
        model.scale = scale
        optimizer = torch.optim.AdamW(model.parameters())
        states = []
        for _ in range(3):
            with start(model):
                loss = model(nn.functional.dropout(torch.randn(6, 4))).square().sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
            states += [loss.detach(), *(parameter.detach().clone() for parameter in model.parameters())]
        return [*states, torch.get_rng_state()]

    plain, probed = train(lambda _: nullcontext()), train(open_debugger(overflow_nums=-1).start)
    assert all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in zip(plain, probed, strict=True))


def test_when_enough_are_found_nothing_is_left_in_place(open_debugger):
    model = Planted()
    model.scale = 1e9
    before = traces_in(model)
    debugger = open_debugger()
    with debugger.start(model):
        model(torch.randn(2, 4))
    debugger.start(model)
    assert traces_in(model) == before


class Masked(nn.Module):
    """Masks with -Inf, and ends with a function whose result is finite whatever it is given."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        later = torch.ones(4, 4).triu(1).bool()
        weights = torch.softmax(self.first(x).masked_fill(later, -torch.inf), -1)
        return torch.tanh(self.second(weights @ x))


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_parameter_that_is_not_finite_is_where_it_begins(tmp_path, open_debugger, caplog, level, value):
    """Neither the modules around it nor any backward are blamed, and the mask is not taken for its origin."""
    torch.manual_seed(0)
    model = Masked()
    with torch.no_grad():
        model.second.weight[0, 0] = value
    debugger = open_debugger(level=level)
    with debugger.start(model):
        model(torch.rand(4, 4, requires_grad=True)).sum().backward()
    debugger.step()
    place = "inputs of Functional.linear.1.forward" if level == "L1" else "parameter weight of Module.second.Linear"
    assert Recorded(tmp_path / "run").data == {}
    if (level, value) != ("L1", torch.inf):  # which may be a mask where parameters are arguments
        assert f"no recorded call makes NaN or Inf of finite inputs, but it is in the {place}" in caplog.text


def test_a_gradient_of_a_parameter_that_is_not_finite_is_harm(tmp_path, open_debugger, caplog):
    """Inf that a program makes between modules reaches a weight's gradient alone: 0 times Inf."""
    model = nn.Linear(4, 4)
    debugger = open_debugger(level="L0")
    with debugger.start(model):
        torch.nan_to_num(model(torch.full((2, 4), torch.inf)), 0.0, 0.0, 0.0).sum().backward()
    debugger.step()
    assert Recorded(tmp_path / "run").data == {}
    assert "but it is in the inputs of Module.Linear.forward.0" in caplog.text
