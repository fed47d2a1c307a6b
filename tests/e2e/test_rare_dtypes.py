"""What PyTorch has no reductions for has statistics all the same: float8, unsigned integers, sparse tensors."""

import math

import numpy as np
import pytest
import torch
from msprobe.pytorch import PrecisionDebugger, _statistics
from msprobe.pytorch._reduce import TorchReducer
from recorded import Recorded

from msprobe_core.model import Digest
from msprobe_core.store.tensor_values import float8_values

FLOAT8 = [
    name
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
]
UNSIGNED = [name for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)]


@pytest.fixture(params=["host", "host, not compiled", "device"])
def statistics(request, monkeypatch):
    if request.param == "host, not compiled":
        monkeypatch.setattr(_statistics, "statistics_by_kernels", lambda _values: None)

    def run(values):
        digest, reducer = Digest(), TorchReducer(defer_host=request.param == "device")
        reducer.statistics(values, digest)
        reducer.collect()
        return digest.stats

    return run


@pytest.mark.parametrize("name", FLOAT8)
def test_float8(name, statistics):
    table = float8_values(name)
    finite = np.flatnonzero(np.isfinite(table) & (np.abs(table) < 1e9) & (np.abs(table) > 1e-9)).astype(np.uint8)
    numbers = torch.from_numpy(finite).view(getattr(torch, name))
    expected = table[finite].astype(np.float64)
    for view in (numbers, numbers[: len(numbers) // 2 * 2].view(2, -1).t()):
        wide = expected[: view.numel()]
        found = statistics(view)
        assert (found.max, found.min, found.num_nan, found.num_inf) == (wide.max(), wide.min(), 0, 0)
        assert found.mean == pytest.approx(wide.mean(), rel=1e-5, abs=1e-6 * np.abs(wide).mean())
        assert found.l2_norm == pytest.approx(np.linalg.norm(wide), rel=1e-5)


@pytest.mark.parametrize("name", FLOAT8)
def test_what_is_not_finite_in_float8_is_counted(name, statistics):
    table = float8_values(name)
    num_nan, num_inf = int(np.isnan(table).sum()), int(np.isinf(table).sum())
    found = statistics(torch.arange(256, dtype=torch.uint8).view(getattr(torch, name)))
    assert num_nan > 0
    assert (found.num_nan, found.num_inf) == (num_nan, num_inf)
    assert math.isnan(found.max)


@pytest.mark.parametrize("name", UNSIGNED)
def test_unsigned_integers(name, statistics):
    array = np.array([[3, 0, 7], [1, 2, 200]], name)
    values = torch.from_numpy(array)
    for view, wide in ((values, array), (values.t(), array), (values[:, ::2], array[:, ::2])):
        found = statistics(view)
        assert (found.max, found.min, found.num_nan, found.num_inf) == (wide.max(), wide.min(), 0, 0)
        assert type(found.max) is int
        assert found.mean == pytest.approx(wide.astype(np.float64).mean())
        assert found.l2_norm == pytest.approx(np.linalg.norm(wide.astype(np.float64)))


@pytest.mark.parametrize("name", UNSIGNED)
def test_the_largest_unsigned_integers_keep_their_sign(name, statistics):
    most = np.iinfo(name).max
    found = statistics(torch.from_numpy(np.array([most, most // 2], name)))
    assert (found.max, found.min) == (most, pytest.approx(most // 2))
    assert found.mean == pytest.approx((most + most // 2) / 2)


# --- sparse tensors -----------------------------------------------------------------------------------------------

DENSE = torch.tensor([[0.0, 3.0, 0.0, 1.0], [0.0, 0.0, 2.0, 0.0]])
SPARSE = {
    "coo": lambda x: x.to_sparse_coo(),
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
    "bsr": lambda x: x.to_sparse_bsr((2, 2)),
    "not coalesced": lambda x: x.to_sparse_coo() + x.to_sparse_coo(),
    "rows": lambda x: x.to_sparse(1),
}


@pytest.mark.parametrize("make", SPARSE.values(), ids=SPARSE)
@pytest.mark.parametrize("factor", [1.0, -1.0])
@pytest.mark.filterwarnings("ignore")  # PyTorch calls some layouts beta
def test_a_sparse_tensor_has_the_statistics_of_the_dense_one(make, factor):
    sparse, digest, dense = make(factor * DENSE), Digest(), Digest()
    reducer = TorchReducer()
    reducer.statistics(sparse, digest)
    reducer.statistics(sparse.to_dense(), dense)
    assert digest == dense


def test_a_sparse_tensor_without_values_is_zeros():
    digest = Digest()
    TorchReducer().statistics(torch.zeros(2, 3).to_sparse(), digest)
    assert (digest.stats.max, digest.stats.min, digest.stats.mean, digest.stats.l2_norm) == (0, 0, 0, 0)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_sparse_gradients_are_recorded_without_a_warning(level, tmp_path, close_debugger, caplog):
    layer = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(layer.parameters())
    with PrecisionDebugger(dump_path=tmp_path, level=level).start(layer):
        for _ in range(2):
            layer(torch.tensor([1, 2, 1])).sum().backward()
        optimizer.step()
    assert not caplog.records
    data = Recorded(tmp_path).data
    if level != "L1":
        (gradient,) = data["Module.Embedding.parameters_grad.1"]["weight"]
        assert (gradient["Max"], gradient["Min"], gradient["Mean"]) == (4.0, 0.0, pytest.approx(1.2))
