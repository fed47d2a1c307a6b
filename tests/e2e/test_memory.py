"""Reading tensors leaves their memory as it was: it can be resized, and what is known of it stays known."""

import json

import pytest
import torch
from msprobe.pytorch._memory import array_of, words_of
from msprobe.pytorch._reduce import TorchReducer

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
