"""Hashes and sketches of tensors: the core's own, for every dtype and layout, on the host and as on a device."""

import math

import numpy as np
import pytest
import torch
from jobs import make_mesh
from msprobe.pytorch._fingerprints import DeviceTensors, HostTensors
from msprobe.pytorch._framework import PyTorchFramework
from msprobe.pytorch._reduce import TorchReducer
from torch.utils._python_dispatch import TorchDispatchMode

from msprobe_core.fingerprint.arrays import NumpyArrays
from msprobe_core.fingerprint.distance import relative_error
from msprobe_core.fingerprint.hashing import hash_of
from msprobe_core.fingerprint.place import Place
from msprobe_core.fingerprint.sketch import Sketcher
from msprobe_core.model import Digest

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
NARROW = [
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
]
INTEGERS = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
PATHS = pytest.mark.parametrize("defer_host", [False, True], ids=["host", "deferred"])


def values_of(dtype, *shape):
    torch.manual_seed(3)
    if dtype is torch.bool:
        return torch.rand(shape) > 0.5
    return (3 * torch.randn(shape, dtype=dtype if dtype.is_complex else torch.float32)).to(dtype)


def bits_of(tensor):
    """The raw bits as NumPy has them, through bytes."""
    content = np.frombuffer(bytes(tensor.contiguous().untyped_storage().tolist()), np.uint8)
    if tensor.dtype.is_complex:
        return content.view(f"c{tensor.element_size()}").reshape(tensor.shape)
    return content.view(f"u{tensor.element_size()}").reshape(tensor.shape)


def reduced(name, tensor, defer_host):
    digest, reducer = Digest(), TorchReducer(defer_host=defer_host)
    getattr(reducer, name)(tensor, digest)
    assert reducer.is_complete is (digest.checksum is not None or digest.sketch is not None)
    reducer.collect()
    assert reducer.is_complete
    return digest.checksum if name == "hash" else digest.sketch


def text_of(array):
    return f"0x{int(hash_of(array)[0]) % 2**64:016x}"


@PATHS
@pytest.mark.parametrize("dtype", [*FLOATS, *NARROW, *INTEGERS, *COMPLEX], ids=str)
def test_hash_is_that_of_the_raw_bits(dtype, defer_host):
    tensor = values_of(dtype, 3, 5, 7)
    expected = text_of(bits_of(tensor))
    assert reduced("hash", tensor, defer_host) == expected
    assert reduced("hash", tensor.mT.contiguous().mT, defer_host) == expected
    assert reduced("hash", tensor.unsqueeze(1).expand(3, 2, 5, 7)[:, 1], defer_host) == expected
    assert reduced("hash", tensor.mT, defer_host) != expected


@PATHS
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [(dtype, (3, 5, 7)) for dtype in [*FLOATS, *NARROW, *INTEGERS, *COMPLEX]]
    + [(dtype, (2, 70, 1000)) for dtype in (torch.float32, torch.bfloat16, NARROW[0], torch.int64)],
    ids=str,
)
def test_sketch_is_that_of_the_values(dtype, shape, defer_host):
    tensor = values_of(dtype, *shape)
    wide = tensor.to(torch.complex128 if dtype.is_complex else torch.float64)
    expected = Sketcher(NumpyArrays()).sketch(wide.numpy())
    found = reduced("sketch", tensor, defer_host)
    np.testing.assert_allclose(np.frombuffer(found, "<f4"), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
    assert reduced("sketch", tensor.mT.contiguous().mT, defer_host) == found


@PATHS
def test_conjugates_and_negations_are_resolved(defer_host):
    tensor = values_of(torch.complex64, 4, 6)
    for view in (tensor.conj(), tensor.conj().imag):
        assert view.is_conj() or view.is_neg()
        plain = view.resolve_conj().resolve_neg().clone()
        for name in ("hash", "sketch"):
            assert reduced(name, view, defer_host) == reduced(name, plain, defer_host)


@PATHS
def test_what_cannot_be_read_is_left_out(defer_host):
    for tensor in (torch.empty(3, device="meta"), torch.eye(3).to_sparse()):
        digest, reducer = Digest(), TorchReducer(defer_host=defer_host)
        reducer.hash(tensor, digest)
        reducer.sketch(tensor, digest)
        reducer.collect()
        assert digest == Digest()


@pytest.mark.parametrize("arrays", [HostTensors(), DeviceTensors(torch.device("cpu"))], ids=["host", "device"])
def test_shards_add_up(arrays):
    whole = torch.randn(4, 60, 300).bfloat16()
    total, expected = torch.zeros(64), torch.from_numpy(np.asarray(Sketcher(arrays).sketch(whole)))
    for dim in range(3):
        total_hash, total = 0, torch.zeros(64)
        size = whole.shape[dim] // 2
        for i, shard in enumerate(whole.split(size, dim)):
            begin = [0, 0, 0]
            begin[dim] = i * size
            place = Place.of_shard(whole.shape, begin)
            total_hash += int(hash_of(shard, arrays, place)[0])
            total += torch.from_numpy(np.asarray(Sketcher(arrays).sketch(shard, place)))
        assert (total_hash - int(hash_of(whole, arrays)[0])) % 2**64 == 0
        torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-3)


def test_an_error_in_bfloat16_is_estimated_across_paths():
    torch.manual_seed(0)
    are_inside = []
    for golden in torch.randn(20, 100, 300):
        target = golden.bfloat16()
        right = ((target.double() - golden).norm() / golden.norm()).item()
        found = relative_error(
            reduced("sketch", target, True), reduced("sketch", golden, False), golden.double().norm().item()
        )
        are_inside.append(found.low < right < found.high)
        same = relative_error(reduced("sketch", golden, True), reduced("sketch", golden, False))
        assert same.value < 1e-7
    assert sum(are_inside) >= 17, "the interval is one of 95% confidence"


def test_a_tensor_is_taken_before_it_is_written_to():
    tensor, reducer = torch.ones(100_000), TorchReducer(defer_host=True)
    before = reduced("hash", tensor, False), reduced("sketch", tensor, True)
    hashed, sketched = Digest(), Digest()
    reducer.hash(tensor, hashed)
    reducer.sketch(tensor, sketched)
    tensor.fill_(2)
    reducer.collect()
    assert (hashed.checksum, sketched.sketch) == before


# --- on a device ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64], ids=str)
@pytest.mark.parametrize("wide", [torch.float64, torch.float32], ids=str)
def test_everything_stays_on_the_device_and_nothing_waits(dtype, wide):
    """Tensors that have a device and no data: whoever asked for a value, or mixed in one of the host, would raise."""
    device = torch.device("meta")
    arrays = DeviceTensors(device)
    arrays._wide = wide
    sketcher = Sketcher(arrays)
    for shape in ((3, 5), (70, 1000), (5000, 1000)):
        tensor = torch.empty(shape, dtype=dtype, device=device)
        for view in (tensor, tensor.T, tensor[:, ::2]):
            for place in (None, Place.of_shard((shape[0] * 5, 4000), (0, 7)) if view.shape == shape else None):
                word, sketch = hash_of(view, arrays, place), sketcher.sketch(view, place)
                assert (word.device, word.dtype, word.shape) == (device, torch.int64, (1,))
                assert (sketch.device, sketch.dtype, sketch.shape) == (device, torch.float32, (64,))
    with pytest.raises(RuntimeError, match="item"):
        word.item()


def test_without_float64_sums_are_within_rounding_of_float32():
    torch.manual_seed(0)
    arrays = DeviceTensors(torch.device("cpu"))
    arrays._wide = torch.float32
    golden = torch.randn(1000, 1000)
    narrow, wide = Sketcher(arrays).sketch(golden), Sketcher(DeviceTensors(torch.device("cpu"))).sketch(golden)
    assert (narrow - wide).norm() < 1e-6 * golden.norm()


class Sizes(TorchDispatchMode):
    """Notes the bytes of the largest new tensor, and how many calls there were."""

    def __init__(self):
        super().__init__()
        self.largest = self.num_calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.num_calls += 1
        own = {x.untyped_storage()._cdata for x in args if isinstance(x, torch.Tensor)}
        if isinstance(result, torch.Tensor) and result.untyped_storage()._cdata not in own:
            self.largest = max(self.largest, result.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_temporaries_on_a_device_are_those_of_chunks(layout):
    tensor = torch.zeros(1000, 3000, dtype=torch.int8)
    tensor = tensor.T if layout == "transposed" else tensor
    arrays = DeviceTensors(torch.device("cpu"))
    arrays.chunk = 1 << 17
    sketcher = Sketcher(arrays)
    sketcher.sketch(tensor[:300, :300])
    for work in (lambda: hash_of(tensor, arrays), lambda: sketcher.sketch(tensor)):
        with Sizes() as sizes:
            work()
        assert sizes.largest <= 8 * (arrays.chunk + 65536)
        assert sizes.num_calls < 50 * math.ceil(tensor.numel() / arrays.chunk)


@pytest.mark.filterwarnings("ignore:DTensor random operators may not")  # of older releases, on CPUs
def test_dtensors_are_read_as_their_local_shard(tmp_path):
    import torch.distributed as dist
    from torch.distributed._tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        tensor = torch.randn(4, 6)
        distributed = distribute_tensor(tensor, make_mesh(1), [Shard(0)])
        for name in ("hash", "sketch"):
            assert reduced(name, distributed, False) == reduced(name, tensor, False)
    finally:
        dist.destroy_process_group()
    assert PyTorchFramework().is_tensor(distributed)
