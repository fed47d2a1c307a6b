"""Reading tensors leaves their memory as it was, so that it can be resized."""

import math

import pytest
import torch
from msprobe.pytorch import _reduce
from msprobe.pytorch._memory import array_of, words_of
from msprobe.pytorch._reduce import TorchReducer

from msprobe_core.model import Digest

KINDS = pytest.mark.parametrize("kind", ["statistics", "checksum", "xor", "hash", "sketch"])
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.uint8, torch.int64,
          torch.complex64]  # fmt: skip


@KINDS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(6, 7), (), (0, 3)], ids=str)
def test_memory_that_was_read_can_still_be_resized(kind, dtype, shape):
    tensor = torch.ones(shape, dtype=dtype)
    getattr(TorchReducer(), kind)(tensor, Digest())
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)  # as is done to free what is not needed for a while
    storage.resize_(size)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_are_the_tensors_own_memory(dtype):
    tensor = torch.arange(24).reshape(2, 3, 4).to(dtype).transpose(0, 2)
    words = words_of(tensor) if not dtype.is_complex else words_of(torch.view_as_real(tensor))
    assert words.ctypes.data == tensor.data_ptr()
    if dtype not in (torch.bfloat16, torch.complex64):
        array = array_of(tensor)
        assert array.ctypes.data == tensor.data_ptr()
        assert array.tolist() == tensor.tolist()
        assert array.strides == tuple(step * tensor.element_size() for step in tensor.stride())


def test_copies_that_wait_for_their_checksum_on_a_device_are_few(monkeypatch):
    monkeypatch.setattr(_reduce, "HELD_BYTES", 100)
    reducer, digests, held = TorchReducer(defer_host=True), [], []
    for value in range(20):
        digests.append(Digest())
        reducer.checksum(torch.full((10,), float(value)), digests[-1])
        held.append(sum(copy.nbytes for _, copy in reducer._checksums))
    reducer.collect()
    assert max(held) <= 100
    assert [digest.checksum for digest in digests] == [
        read("checksum", torch.full((10,), float(value))).checksum for value in range(20)
    ]


# --- views --------------------------------------------------------------------------------------------------------


def read(kind, tensor):
    digest = Digest()
    getattr(TorchReducer(), kind)(tensor, digest)
    return digest


def test_parts_that_overlap_or_leave_gaps_are_what_they_are():
    x = torch.arange(1.0, 7)
    views = {
        2.5: x[:4], 2: x.as_strided((2, 2), (1, 1)), 3: x.as_strided((2, 2), (3, 1)), 1: x[:1].expand(4),
        -2.5: torch._neg_view(x[:4]),
    }  # fmt: skip
    assert {mean: read("statistics", view).stats.mean for mean, view in views.items()} == {mean: mean for mean in views}
    assert read("statistics", x[:4].view(torch.int32)).stats.max == 0x40800000


@pytest.mark.parametrize("kind", ["checksum", "xor", "hash", "sketch"])
def test_views_are_read_in_the_order_that_they_have(kind):
    x = torch.randn(4, 6)
    for view in (x, x.view(24), x.t(), x[1:3], x[:, ::2]):
        assert read(kind, view) == read(kind, view.clone(memory_format=torch.contiguous_format))
    assert read(kind, x) == read(kind, x.view(24)) != read(kind, x.t())


# --- statistics of long tensors, which are read in pieces -----------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [(1 << 16) - 1, 1 << 16, (1 << 18) + 1, 700_000])
def test_statistics_are_right_at_any_length(dtype, size):
    torch.manual_seed(size)
    values = (torch.randn(size) * 3 + 0.5).to(dtype)
    stats, wide = _reduce.host_statistics(values), values.double()
    assert (stats.max, stats.min, stats.num_nan, stats.num_inf) == (wide.max(), wide.min(), 0, 0)
    assert stats.mean == pytest.approx(wide.mean().item(), rel=1e-5)
    assert stats.l2_norm == pytest.approx(wide.norm().item(), rel=1e-5)


@pytest.mark.parametrize("place", [0, 300_000, 599_999])
@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        ([math.nan], (math.nan, math.nan, 1, 0)),
        ([math.inf], (math.inf, -1, 0, 1)),
        ([-math.inf], (1, -math.inf, 0, 1)),
        ([math.inf, -math.inf], (math.inf, -math.inf, 0, 2)),
        ([math.nan, math.inf], (math.nan, math.nan, 1, 1)),
    ],
)
def test_what_is_not_finite_is_found_in_any_piece(planted, expected, place):
    values = torch.ones(600_000)
    values[0::2] = -1
    at = [(place + i * 200_001) % 600_000 for i in range(len(planted))]
    values[at] = torch.tensor(planted)
    stats = _reduce.host_statistics(values)
    assert (stats.max, stats.min, stats.num_nan, stats.num_inf) == pytest.approx(expected, nan_ok=True)
    assert not math.isfinite(stats.mean)
    assert not math.isfinite(stats.l2_norm)
