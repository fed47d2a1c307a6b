"""PyTorch's host tensors through the compiled kernels: what they hold, in whatever order it is in memory."""

import os

import pytest
import torch
from msprobe.pytorch import _native
from msprobe.pytorch._reduce import TorchReducer, readable
from msprobe.pytorch._statistics import host_statistics

from msprobe_core.model import Digest
from msprobe_core.native.reductions import LONG

pytestmark = pytest.mark.skipif(
    _native._KERNELS is None and "MSPROBE_REQUIRE_NATIVE" not in os.environ, reason="the kernels are not compiled here"
)

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool]


def tensor_of(dtype):
    torch.manual_seed(0)
    if dtype in INTEGERS:
        return torch.randint(0, 2 if dtype is torch.bool else 90, (6, 7, 8)).to(dtype)
    return torch.randn(6, 7, 8, dtype=torch.float64).to(dtype)


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2),
    "every other": lambda x: x[:, ::2],
    "vector with gaps": lambda x: x[0, 0, ::3],
    "expanded": lambda x: x[:1].expand(5, 7, 8),
    "one number, expanded": lambda x: x[0, 0, :1].expand(9),
    "overlapping": lambda x: x.reshape(-1).as_strided((4, 4), (1, 1)),
    "0-d": lambda x: x[1, 2, 3],
    "from the middle": lambda x: x.reshape(-1)[3:50],
    "strides of single dimensions": lambda x: x.reshape(-1).as_strided((1, 5, 1), (17, 1, 999)),
}


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_every_layout_has_the_statistics_of_its_elements(dtype, layout):
    x = LAYOUTS[layout](tensor_of(dtype))
    stats = host_statistics(x)
    wide = torch.tensor(x.tolist(), dtype=torch.float64).reshape(-1)
    assert (stats.max, stats.min) == (x.max().item(), x.min().item())
    assert type(stats.max) is type(x.max().item())
    assert stats.mean == pytest.approx(wide.mean().item(), rel=1e-5, abs=1e-6)
    assert stats.l2_norm == pytest.approx(wide.norm().item(), rel=1e-5)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_what_is_read_as_it_is_has_the_same_statistics_to_the_bit(dtype):
    as_it_is = set()
    for layout, view in LAYOUTS.items():
        x = view(tensor_of(dtype)).requires_grad_(dtype in FLOATS)
        with torch.no_grad():
            stats, digest = _native.statistics_of_plain(x), Digest()
            TorchReducer().statistics(x, digest)
            assert digest.stats == host_statistics(readable(x))
        if stats is not None:
            as_it_is.add(layout)
            assert stats == digest.stats
    dense = {"contiguous", "transposed", "0-d", "from the middle", "strides of single dimensions"}
    assert as_it_is == (dense if dtype in FLOATS else set())


def test_a_wrapper_without_memory_is_not_read():
    if not hasattr(torch, "_to_functional_tensor"):
        pytest.skip("this PyTorch has no such wrapper")
    assert _native.statistics_of_plain(torch._to_functional_tensor(torch.randn(4, 5))) is None


@pytest.mark.parametrize(
    "view",
    [
        lambda z: z.conj().imag,  # a view of numbers whose signs are turned when they are read
        lambda z: torch._neg_view(z.real),
        lambda z: torch._efficientzerotensor(z.shape),
    ],
    ids=["conj().imag", "neg_view", "zero tensor"],
)
def test_numbers_that_memory_does_not_hold_as_they_are(view):
    x = view(torch.tensor([1 + 2j, 3 - 5j]))
    stats, plain = host_statistics(readable(x)), torch.tensor((x + torch.zeros(2)).tolist())
    assert (stats.max, stats.min, stats.mean) == (plain.max(), plain.min(), plain.mean())
    reduced = Digest()
    TorchReducer().statistics(x, reduced)
    assert reduced.stats == stats
    digests = {}
    for name, tensor in {"view": x, "plain": plain}.items():
        digests[name] = digest = Digest()
        reducer = TorchReducer()
        reducer.hash(tensor, digest)
        reducer.sketch(tensor, digest)
    assert digests["view"].checksum == digests["plain"].checksum
    assert digests["view"].sketch == digests["plain"].sketch


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_hash_and_sketch_are_those_without_the_kernels(monkeypatch, dtype, layout):
    x = LAYOUTS[layout](tensor_of(dtype))
    x = x.conj() if x.is_complex() else x
    digests = []
    for has_kernels in (True, False):
        if not has_kernels:
            monkeypatch.setattr(_native, "_KERNELS", None)
        digest = Digest()
        reducer = TorchReducer()
        reducer.hash(x, digest)
        reducer.sketch(x, digest)
        digests.append(digest)
    assert digests[0].checksum == digests[1].checksum
    sketches = [torch.frombuffer(bytearray(digest.sketch), dtype=torch.float32) for digest in digests]
    torch.testing.assert_close(*sketches, rtol=1e-5, atol=1e-5)


def test_the_threads_of_pytorch_are_found_and_change_nothing():
    assert _native._THREADS is not None
    x = torch.randn(4 * LONG + 5)
    before = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            found.append(host_statistics(x))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("num_bytes", [0, 16])
@pytest.mark.parametrize("mode", ["statistics", "checksum", "xor", "hash", "sketch"])
def test_memory_that_has_been_given_back_is_not_read(mode, num_bytes):
    x = torch.randn(LONG)
    view = x[2:]
    x.untyped_storage().resize_(num_bytes)
    for tensor in (x, view):
        with pytest.raises(RuntimeError):
            getattr(TorchReducer(), mode)(tensor, Digest())
