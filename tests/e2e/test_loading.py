"""``load`` with real models: inputs out of the files of an earlier run, ours or in the same layout."""

import json
import pickle

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded
from torch import nn

from msprobe_core.store import layout

pytestmark = pytest.mark.usefixtures("close_debugger")

CALL = "Module.layer.Layer.forward.0"


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, *, shift):
        assert isinstance(x, torch.Tensor)
        x.mul_(2)  # in place, on what must then be no leaf
        return self.fc(x) + shift


class Net(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.before = nn.Linear(4, 4)
        torch.manual_seed(1)
        self.layer = Layer()

    def forward(self, x):
        hidden = self.before(x)
        return self.layer(hidden, shift=hidden.sum(0))


@pytest.fixture
def golden(tmp_path):
    debugger = PrecisionDebugger(dump_path=tmp_path / "golden", task="tensor", level="L0")
    with debugger.start(model := Net()):
        output = model(torch.full((3, 4), 0.5))
        output.sum().backward()
    debugger.close()
    return tmp_path / "golden", output.detach()


def loading(tmp_path, path, **settings):
    (tmp_path / "c.json").write_text(json.dumps({"load": {"path": str(path), "modules": [CALL], **settings}}))
    return PrecisionDebugger(tmp_path / "c.json", dump_path=tmp_path / "run", level="mix")


def test_another_input_gives_the_output_of_the_earlier_run(tmp_path, golden, caplog):
    path, output = golden
    model = Net(seed=5)  # other weights before the layer, the same in it
    debugger = loading(tmp_path, path)
    with debugger.start(model):
        found = model(torch.zeros(3, 4))
    assert torch.equal(found, output)
    assert not (tmp_path / "run").exists()
    assert "computes something else" in caplog.text
    found.sum().backward()
    assert model.layer.fc.weight.grad is not None
    assert model.before.weight.grad is None  # nothing comes through
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    assert not torch.equal(model(torch.zeros(3, 4)), output)


def test_a_dump_after_loading(tmp_path, golden):
    path, _ = golden
    model = Net(seed=5)
    debugger = loading(tmp_path, path, dump_after_load=True)
    with debugger.start(model):
        model(torch.zeros(3, 4)).sum().backward()
    ours, theirs = Recorded(tmp_path / "run"), Recorded(path)
    for part in ("input_args", "input_kwargs", "output"):
        drop = {"data_name"}
        for value in _tensors(theirs.data[CALL][part]):
            value.pop("data_name")
        assert list(_tensors(ours.data[CALL][part])) == list(_tensors(theirs.data[CALL][part])), drop
    backward = CALL.replace("forward", "backward")
    assert (
        ours.data[backward]["output_kwargs"]["shift"]["Norm"] == theirs.data[backward]["output_kwargs"]["shift"]["Norm"]
    )
    assert "Tensor.clone.0.forward" not in ours.data  # ours, not the model's


def _tensors(part):
    return part.values() if isinstance(part, dict) else part


@pytest.mark.parametrize("grad", [True, False])
def test_gradients_are_required_as_before(tmp_path, golden, grad):
    path, _ = golden
    model, seen = Net(seed=5), []
    model.layer.fc.register_forward_pre_hook(lambda _m, args: seen.append(args[0].requires_grad))
    debugger = loading(tmp_path, path)
    with debugger.start(model), torch.set_grad_enabled(grad):
        model(torch.zeros(3, 4))
    assert seen == [grad]


def test_a_file_that_would_run_code_is_refused(tmp_path, golden, caplog):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    path, output = golden
    file = Recorded(path).directory / layout.TENSOR_DIRECTORY / f"{CALL}.input.0.pt"
    model = Net()
    for content in (pickle.dumps(Evil()), b""):
        file.write_bytes(content)
        debugger = loading(tmp_path, path)
        with debugger.start(model):
            assert torch.equal(model(torch.full((3, 4), 0.5)), output)  # its own input
        debugger.close()
    torch.save({"a": 1}, file)
    debugger = loading(tmp_path, path)
    with debugger.start(model):
        assert torch.equal(model(torch.full((3, 4), 0.5)), output)
    assert not (tmp_path / "executed").exists()
    assert "the file holds dict, not a tensor" in caplog.text
    assert caplog.text.count("cannot be loaded") == 3
