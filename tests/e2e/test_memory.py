"""Reading tensors leaves their memory as it was: it can be resized, and what is known of it stays known."""

import json
import math

import pytest
import torch
from msprobe.pytorch import _reduce
from msprobe.pytorch._memory import array_of, words_of
from msprobe.pytorch._reduce import TorchReducer
from torch_has import needs_owners_of_memory

from msprobe_core import PrecisionDebugger
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


@KINDS
@needs_owners_of_memory
def test_a_write_of_numpy_is_still_reckoned_with(kind):
    reducer, seen, shared = TorchReducer(), torch.ones(5), torch.ones(5)
    shared.numpy()
    for tensor in (seen, shared):
        getattr(reducer, kind)(tensor, Digest())
    assert reducer.shows_writes(seen)
    assert not reducer.shows_writes(shared)


@pytest.mark.parametrize(
    ("summary_mode", "kinds"),
    [
        ("statistics", {"statistics"}),
        ("md5", {"statistics", "checksum"}),
        ("xor", {"xor"}),
        ("hash", {"hash"}),
        ("sketch", {"statistics", "sketch"}),
    ],
)
@needs_owners_of_memory
def test_a_tensor_that_passes_through_many_calls_is_read_once(
    summary_mode, kinds, tmp_path, monkeypatch, close_debugger
):
    reads = []
    for kind in ("statistics", "checksum", "xor", "hash", "sketch"):
        original = getattr(TorchReducer, kind)

        def counted(self, tensor, digest, kind=kind, original=original):
            reads.append((kind, tuple(tensor.shape)))
            original(self, tensor, digest)

        monkeypatch.setattr(TorchReducer, kind, counted)
    config = {"task": "statistics", "level": "L1", "risk_level": "ALL", "dump_path": str(tmp_path / "run"),
              "statistics": {"summary_mode": summary_mode}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    debugger = PrecisionDebugger(tmp_path / "config.json")
    with debugger.start():
        doubled = torch.ones(3, 5) * 2
        for _ in range(4):
            torch.add(doubled, 1)
    debugger.step()
    # Of ones, the double, and four sums.
    assert sorted(reads) == sorted((kind, (3, 5)) for kind in kinds for _ in range(6))


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


# --- views of the same elements -----------------------------------------------------------------------------------

VIEWS = {
    "view": lambda x: x.view(4, 6),
    "transposed": lambda x: x.transpose(0, 2),
    "permuted": lambda x: x.permute(2, 0, 1).unsqueeze(1),
    "its part": lambda x: x[1],
}


def counted(monkeypatch, name):
    reads = []
    original = getattr(_reduce, name)

    def read(values):
        reads.append(tuple(values.shape))
        return original(values)

    monkeypatch.setattr(_reduce, name, read)
    return reads


def stats_of(reducer, tensor):
    digest = Digest()
    reducer.identity(tensor)
    reducer.statistics(tensor, digest)
    return digest.stats


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("takes_gradient", [False, True])
@needs_owners_of_memory
def test_views_of_the_same_elements_are_read_once(view, takes_gradient, monkeypatch):
    reads = counted(monkeypatch, "host_statistics")
    reducer, x = TorchReducer(), torch.randn(2, 3, 4, requires_grad=takes_gradient) * 2
    first, again = stats_of(reducer, view(x)), stats_of(reducer, view(x))
    assert len(reads) == 1
    whole = stats_of(reducer, x)
    assert len(reads) == (1 if view(x).numel() == x.numel() else 2)
    assert again == first == stats_of(TorchReducer(), view(x).clone())
    assert whole == stats_of(TorchReducer(), x.clone())


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_are_read_anew_after_a_write(view):
    reducer, x = TorchReducer(), torch.randn(2, 3, 4)
    stats_of(reducer, x)
    stats_of(reducer, view(x))
    view(x).mul_(3)
    assert stats_of(reducer, view(x)) == stats_of(TorchReducer(), view(x).clone())
    assert stats_of(reducer, x) == stats_of(TorchReducer(), x.clone())


def test_views_of_what_may_be_written_unnoticed_are_read_anew():
    reducer, parameter = TorchReducer(), torch.nn.Parameter(torch.ones(2, 3))
    shared, distrusted = torch.ones(2, 3), torch.ones(2, 3)
    for tensor in (parameter, shared, distrusted):
        assert stats_of(reducer, tensor.t()).max == 1
    reducer.distrust(distrusted)
    shared.numpy()[:] = 2
    parameter.data.fill_(2)
    distrusted.data.fill_(2)
    for tensor in (parameter, shared, distrusted):
        assert stats_of(reducer, tensor.t()).max == 2


@needs_owners_of_memory
def test_other_tensors_of_the_same_memory_are_read_once_until_one_is_written_to(monkeypatch):
    reads = counted(monkeypatch, "host_statistics")
    reducer, x = TorchReducer(), torch.ones(4)
    assert stats_of(reducer, x) == stats_of(reducer, x.detach())
    assert len(reads) == 1
    x.detach().add_(1)
    assert stats_of(reducer, x.detach()).max == stats_of(reducer, x).max == 2
    assert len(reads) == 2


def test_memory_that_several_tensors_count_writes_to_is_read_each_time():
    reducer, x = TorchReducer(), torch.ones(4)
    x.add_(1)
    other = x.data  # begins to count at 0
    assert (x._version, other._version) == (1, 0)
    assert stats_of(reducer, x).max == 2
    other.add_(1)
    other.add_(1)
    assert stats_of(reducer, other).max == 4
    other = x.data
    assert stats_of(reducer, other).max == 4
    other.fill_(7)  # the same number of writes as x's
    assert stats_of(reducer, other).max == stats_of(reducer, x).max == 7


def test_memory_that_is_given_to_another_is_not_taken_for_it():
    reducer = TorchReducer()
    for i in range(50):
        assert stats_of(reducer, torch.full((5, 3), float(i))).max == i


def test_tensors_that_nobody_follows_are_read_each_time(monkeypatch):
    reads = counted(monkeypatch, "host_statistics")
    reducer, x = TorchReducer(), torch.ones(4)
    for _ in range(2):
        reducer.statistics(x, Digest())
    assert len(reads) == 2


def test_parts_that_overlap_or_leave_gaps_are_what_they_are():
    reducer, x = TorchReducer(), torch.arange(1.0, 7)
    assert stats_of(reducer, x[:4]).mean == 2.5
    assert stats_of(reducer, x.as_strided((2, 2), (1, 1))).mean == 2
    assert stats_of(reducer, x.as_strided((2, 2), (3, 1))).mean == 3
    assert stats_of(reducer, x[:1].expand(4)).mean == 1
    assert stats_of(reducer, x[:4].view(torch.int32)).max == 0x40800000
    assert stats_of(reducer, torch._neg_view(x[:4])).mean == -2.5


def test_memory_of_a_base_that_is_gone_is_not_taken_for_another():
    reducer = TorchReducer()
    for i in range(20):
        assert stats_of(reducer, torch.full((5, 3), float(i)).t()).max == i


@pytest.mark.parametrize("kind", ["checksum", "xor", "hash", "sketch"])
def test_what_depends_on_the_order_of_elements_is_shared_only_where_that_is_the_same(kind):
    reducer, x = TorchReducer(), torch.randn(4, 6)
    digests = {}
    for name, tensor in {"whole": x, "flat": x.view(24), "turned": x.t()}.items():
        digests[name], alone = Digest(), Digest()
        reducer.identity(tensor)
        getattr(reducer, kind)(tensor, digests[name])
        getattr(TorchReducer(), kind)(tensor.clone(memory_format=torch.contiguous_format), alone)
        assert digests[name] == alone
    assert digests["whole"] == digests["flat"] != digests["turned"]


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
