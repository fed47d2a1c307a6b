"""Statistics that plugins offer: of tensors on the host and on what stands for a device, and in a training."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch._reduce import TorchReducer
from torch.utils._python_dispatch import TorchDispatchMode

from msprobe_core.capture.extra_statistics import with_extra_statistics
from msprobe_core.capture.processors import StatisticsProcessor
from msprobe_core.errors import PluginError
from msprobe_core.model import Digest
from msprobe_core.plugin import Statistic, hookimpl
from msprobe_core.plugins import Plugin, registry
from msprobe_core.store import layout
from msprobe_core.store.frame import numbers_of
from msprobe_core.store.reading import read_dump

NAMES = ("zeros", "absmax", "kurtosis")


@pytest.fixture(autouse=True)
def _installed():
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "statistics_plugin"))
    hooks = importlib.import_module("msprobe_moments.hooks")
    sys.path.pop(0)
    registry().add(Plugin("moments", "0.1", "msprobe-moments"), lambda: hooks)
    yield
    registry().manager.unregister(name="moments")
    registry()._plugins.pop("moments")


TENSORS = {
    "float32": torch.tensor([[1.0, -4.0, 0.0], [2.0, 0.0, 0.5]]),
    "transposed": torch.tensor([[1.0, -4.0, 0.0], [2.0, 0.0, 0.5]]).T,
    "bfloat16": torch.tensor([1.0, -4.0, 0.0, 2.0], dtype=torch.bfloat16),
    "float8": torch.tensor([1.0, -4.0, 0.0, 2.0]).to(torch.float8_e4m3fn),
    "float64": torch.tensor([1e200, -4e200, 0.0], dtype=torch.float64),
    "int8": torch.tensor([1, -128, 0], dtype=torch.int8),
    "uint16": torch.tensor([1, 65535, 0], dtype=torch.uint16),
    "bool": torch.tensor([True, False]),
    "complex": torch.tensor([3 + 4j, 0j]),
    "conjugate": torch.tensor([3 + 4j, 0j]).conj(),
    "NaN": torch.tensor([float("nan"), 0.0]),
    "Inf": torch.tensor([float("-inf"), 0.0]),
    "0-d": torch.tensor(-3.0),
}


def digests(tensor, *, defer_host):
    digest, reducer = Digest(), TorchReducer(defer_host=defer_host)
    processor = with_extra_statistics(StatisticsProcessor(), NAMES)
    processor.reduce(tensor, digest, reducer)
    assert (digest.extra is None) == defer_host
    assert reducer.is_complete != defer_host
    reducer.collect()
    return digest.extra


@pytest.mark.parametrize("defer_host", [False, True], ids=["host", "deferred"])
@pytest.mark.parametrize("case", TENSORS)
def test_they_are_those_of_pytorch_in_float64(case, defer_host):
    tensor = TENSORS[case]
    sizes = (tensor.abs() if tensor.is_complex() else tensor.float() if case == "float8" else tensor).double().abs()
    found = digests(tensor, defer_host=defer_host)
    assert list(found) == list(NAMES)
    assert found["zeros"] == pytest.approx((sizes == 0).double().mean().item())
    assert found["absmax"] == pytest.approx(sizes.max().item(), nan_ok=True)


class Waits(TorchDispatchMode):
    """Notes the operators that fetch a number from a device."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "_local_scalar_dense" in str(func) or "nonzero" in str(func):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


def test_nothing_waits_before_the_window_ends():
    reducer, digest = TorchReducer(defer_host=True), Digest()
    processor = with_extra_statistics(StatisticsProcessor(), NAMES)
    with Waits() as waits:
        for tensor in TENSORS.values():
            processor.reduce(tensor, digest, reducer)
    assert waits.found == []
    reducer.collect()
    assert digest.extra is not None


def test_one_that_writes_on_a_device_is_noticed():
    """On the host the arrays are read-only; on a device nothing else than the version of a tensor tells."""

    @hookimpl
    def msprobe_register_statistics():
        return [Statistic(name="writing", summary="writes", reduce=lambda values, _: values.zero_().sum())]

    module = SimpleNamespace(msprobe_register_statistics=msprobe_register_statistics)
    registry().add(Plugin("writing", "0.1", "msprobe-writing"), lambda: module)
    try:
        processor = with_extra_statistics(StatisticsProcessor(), ["writing"])
        with pytest.raises(PluginError, match="one of the statistics writing has written to the tensor"):
            processor.reduce(torch.ones(3), Digest(), TorchReducer(defer_host=True))
    finally:
        registry().manager.unregister(name="writing")
        registry()._plugins.pop("writing")


def trained(debugger=None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        if debugger is not None:
            debugger.start(model)
        loss = model(torch.randn(4, 8)).square().sum() / torch.tensor(2.0)
        loss.backward()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("writer", ["json", "arrow"])
@pytest.mark.usefixtures("close_debugger")
def test_a_training_is_bitwise_unchanged_and_has_them_everywhere(tmp_path, writer):
    if writer == "arrow":
        pytest.importorskip("pyarrow")
    plain = trained()
    debugger = PrecisionDebugger(
        dump_path=str(tmp_path), level="mix", config_path=written(tmp_path / "c.json", writer), step=[0, 1]
    )
    assert all(map(torch.equal, trained(debugger), plain))
    debugger.close()
    (unit,) = layout.find_units(tmp_path / "step1")
    cells = dict(read_dump(unit.directory).frame.filter(kind="tensor").select("name", "extra").iter_rows())
    for name in (
        "Functional.relu.0.forward.output.0",
        "Functional.relu.0.backward.output.0",
        "Module.0.Linear.parameters_grad.0.weight",
        "Module.0.Linear.forward.0.parameters.weight",
    ):
        assert set(numbers_of(cells[name])) == set(NAMES), name
    assert 0.2 < numbers_of(cells["Functional.relu.0.forward.output.0"])["zeros"] < 0.8


def written(path, writer):
    path.write_text(f'{{"writer": "{writer}", "extra_statistics": ["zeros", "absmax", "kurtosis"]}}')
    return str(path)
