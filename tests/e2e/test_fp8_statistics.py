"""FP8 statistics of tensors: those of PyTorch's own casts, on the host and as on a device, and in whole runs."""

import json

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch._reduce import TorchReducer
from torch.utils._python_dispatch import TorchDispatchMode

from msprobe_core.model import Digest, Fp8Stats
from msprobe_core.store import layout
from msprobe_core.store.reading import read_dump

PATHS = pytest.mark.parametrize("defer_host", [False, True], ids=["host", "deferred"])
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def reduced(tensor, defer_host):
    digest, reducer = Digest(), TorchReducer(defer_host=defer_host)
    reducer.fp8(tensor, digest)
    assert reducer.is_complete is (digest.fp8 is not None or not defer_host or not tensor.is_floating_point())
    reducer.collect()
    return digest.fp8


@PATHS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("form", FORMATS)
def test_they_are_what_a_cast_of_pytorch_loses(form, dtype, defer_host):
    torch.manual_seed(1)
    tensor = (torch.randn(60, 70) * torch.exp(5 * torch.randn(60, 70))).clamp(-6e4, 6e4).to(dtype)[:, ::2]
    found = reduced(tensor, defer_host)
    values, largest = tensor.float(), torch.finfo(FORMATS[form]).max
    amax = values.abs().max()
    scale = largest / amax
    rounded = (values * scale).clamp(-largest, largest).to(FORMATS[form]).float()
    assert found.amax == amax
    assert getattr(found, f"{form}_scale") == pytest.approx(scale.item(), rel=1e-6)
    assert getattr(found, f"{form}_underflow") == ((rounded == 0) & (values != 0)).double().mean() > 0
    assert getattr(found, f"{form}_overflow") == (values.abs() > largest).double().mean()
    expected = ((rounded / scale - values).double() ** 2).mean().item()
    assert getattr(found, f"{form}_mse") == pytest.approx(expected, rel=1e-5)


@PATHS
@pytest.mark.parametrize(
    ("name", "zeros", "saturated", "nan"),
    [("float8_e4m3fn", 2, 2, 2), ("float8_e5m2", 2, 4, 6), ("float8_e4m3fnuz", 1, 2, 1), ("float8_e5m2fnuz", 1, 2, 1)],
)
def test_a_float8_tensor_has_shares_of_its_own_format(name, zeros, saturated, nan, defer_host):
    every_value = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name))
    found = reduced(every_value, defer_host)
    amax = torch.finfo(every_value.dtype).max
    assert found == Fp8Stats(amax, zeros=zeros / 256, saturated=saturated / 256, nan=nan / 256)


@PATHS
@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(3),
        torch.tensor([True]),
        torch.ones(2, dtype=torch.complex64),
        torch.ones(0),
        torch.ones(2).to_sparse(),
    ],
    ids=["integer", "bool", "complex", "empty", "sparse"],
)
def test_other_tensors_have_none(tensor, defer_host):
    digest, reducer = Digest(), TorchReducer(defer_host=defer_host)
    reducer.fp8(tensor, digest)
    reducer.collect()
    assert digest.fp8 is None


class Waits(TorchDispatchMode):
    """Notes the operators that fetch a number from a device, or copy between devices."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "_local_scalar_dense" in str(func) or "nonzero" in str(func) or "is_nonzero" in str(func):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


def test_nothing_waits_before_the_window_ends():
    reducer, digest = TorchReducer(defer_host=True), Digest()
    with Waits() as waits:
        reducer.fp8(torch.randn(100), digest)
        reducer.fp8(torch.randn(100).to(torch.float8_e5m2), Digest())
    assert waits.found == []
    with Waits() as waits:
        torch.ones(1).item()
    assert waits.found  # the check can fail
    reducer.collect()
    assert digest.fp8 is not None


@pytest.mark.parametrize("writer", ["json", "arrow"])
@pytest.mark.usefixtures("close_debugger")
def test_a_run_has_them_for_activations_gradients_and_parameters(tmp_path, writer):
    if writer == "arrow":
        pytest.importorskip("pyarrow")
    config = {"level": "mix", "writer": writer, "dump_path": str(tmp_path), "statistics": {"summary_mode": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    debugger = PrecisionDebugger(str(tmp_path / "config.json"))
    model = torch.nn.Linear(4, 3)
    debugger.start(model)
    model(torch.randn(2, 4)).sum().backward()
    debugger.stop()
    debugger.close()
    (unit,) = layout.find_units(tmp_path / "step0")
    frame = read_dump(unit.directory).frame
    has = dict(frame.select("name", "fp8").iter_rows())
    for name in (
        "Functional.linear.0.forward.input.0",
        "Module.Linear.parameters_grad.0.weight",
        "Module.Linear.forward.0.parameters.weight",
    ):
        assert '"e4m3_scale":' in has[name], name
