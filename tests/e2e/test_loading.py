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
    for value in ({"a": 1}, Evil()):
        torch.save(value, file)
        debugger = loading(tmp_path, path)
        with debugger.start(model):
            assert torch.equal(model(torch.full((3, 4), 0.5)), output)
        debugger.close()
    assert not (tmp_path / "executed").exists()
    assert "holds dict, not one tensor" in caplog.text
    assert "which no tensor needs; it was not run" in caplog.text
    assert caplog.text.count("keeps its value") == 4


# --- tensors in shards ----------------------------------------------------------------------------------------------

ODD = "Module.odd.Odd.forward.0"

FLOAT8 = [getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")]
DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.int8, torch.uint8, torch.int64,
    torch.complex64, torch.complex128, *FLOAT8,
]  # fmt: skip


class Odd(nn.Module):
    def forward(self, tensors, *, scalar, empty, again):
        self.seen = [*tensors, scalar["x"], empty, *again]
        return tensors[1] * 2


class OddNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.odd = Odd()

    def forward(self, seed):
        generator = torch.Generator().manual_seed(seed)
        values = torch.randn(3, 5, 2, generator=generator).mul(3)
        tensors = [
            torch.view_as_complex(values).to(dtype) if dtype.is_complex else values.to(dtype) for dtype in DTYPES
        ]
        scalar = torch.tensor(float(seed), dtype=torch.bfloat16)
        empty = torch.zeros(0, 3 + seed, dtype=torch.float16)
        # Equal to others: stored once, under the other's name.
        again = (tensors[1].clone(), tensors[3].t() if tensors[3].dim() == 2 else tensors[3].transpose(0, 1), 7)
        return self.odd(tensors, scalar={"x": scalar}, empty=empty, again=again)


@pytest.mark.parametrize("writer", ["json", "arrow"])
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_every_dtype_comes_back_out_of_shards(tmp_path, caplog, writer):
    model = OddNet()
    settings = {"task": "tensor", "level": "L0", "tensor_format": "safetensors", "writer": writer}
    (tmp_path / "golden.json").write_text(json.dumps(settings))
    debugger = PrecisionDebugger(tmp_path / "golden.json", dump_path=tmp_path / "golden")
    with debugger.start(model):
        model(0)
    debugger.close()
    recorded = model.odd.seen
    files = {path.suffix for path in (tmp_path / "golden").rglob("*") if path.parent.name == layout.TENSOR_DIRECTORY}
    assert files == {".safetensors", ".pt"}  # complex128 has a file of its own
    debugger = loading(tmp_path, tmp_path / "golden", modules=[ODD])
    with debugger.start(model):
        model(1)
    assert [record.message for record in caplog.records if "keeps its" in record.message] == []
    for expected, found in zip(recorded, model.odd.seen, strict=True):
        if not isinstance(expected, torch.Tensor):
            assert found == expected
            continue
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert bits(found) == bits(expected)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


@pytest.fixture
def sharded(tmp_path):
    (tmp_path / "golden.json").write_text(json.dumps({"task": "tensor", "tensor_format": "safetensors"}))
    debugger = PrecisionDebugger(tmp_path / "golden.json", dump_path=tmp_path / "sharded", level="L0")
    with debugger.start(model := Net()):
        output = model(torch.full((3, 4), 0.5))
        output.sum().backward()
    debugger.close()
    return tmp_path / "sharded", output.detach()


def test_shards_give_the_output_of_the_earlier_run(tmp_path, sharded):
    """The input is written to in place, and stored under the name of the output that it was."""
    path, output = sharded
    model = Net(seed=5)
    debugger = loading(tmp_path, path)
    with debugger.start(model):
        found = model(torch.zeros(3, 4))
    assert torch.equal(found, output)
    found.sum().backward()
    assert model.layer.fc.weight.grad is not None
    assert model.before.weight.grad is None


def test_a_shard_that_is_cut_off_keeps_each_value_with_a_warning(tmp_path, sharded, caplog):
    path, output = sharded
    (shard,) = path.rglob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[: (128 << 10) + 20])  # its header and a few bytes
    model = Net()
    debugger = loading(tmp_path, path)
    with debugger.start(model):
        assert torch.equal(model(torch.full((3, 4), 0.5)), output)  # its own input, which is the same
    said = [record.getMessage() for record in caplog.records if "keeps its value" in record.message]
    assert [text.partition(" keeps")[0] for text in said] == [f"load: {CALL}: input 0", f"load: {CALL}: kwargs shift"]
    assert all("is cut off: the file ends before it" in text for text in said)
