"""The reducer: digests of tensors, computed immediately on the host and deferred on a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from msprobe.pytorch._arrivals import HostCopy
from msprobe.pytorch._checksums import bytes_of, crc32_of, xor_of, xor_on_device
from msprobe.pytorch._fingerprints import DeviceTensors, HostTensors
from msprobe.pytorch._native import hash_by_kernels, sketch_by_kernels
from msprobe.pytorch._placements import place_of
from msprobe.pytorch._statistics import (
    SPARSE_LAYOUTS,
    WITHOUT_VALUES,
    DeferredStatistics,
    ProvenKernel,
    host_statistics,
    sparse_statistics,
    widened,
)
from msprobe.pytorch._transforms import is_wrapped, unwrapped
from msprobe_core.fingerprint import NATIVE_VARIABLE, NumpyArrays, Place, Sketcher, fp8, hash_of, word_text
from msprobe_core.interception import real_vector
from msprobe_core.plugin import Digest, ElementMeasure, Fp8Stats, PluginError, Stats

HELD_BYTES = 1 << 30
"""Maximum size of copies that wait on a device for checksums; beyond it, the host fetches them within the step."""


_WITHOUT_LOSSES = WITHOUT_VALUES | {getattr(torch, name) for name in ("float8_e8m0fnu",) if hasattr(torch, name)}
"""Dtypes that are not quantised: their elements are not numbers, or are scales themselves."""


class _WaitingFp8(NamedTuple):
    """A digest whose numbers are pending on a device, and how to decode them."""

    digest: Digest
    numel: int
    read: Callable[[Sequence[float], int], Fp8Stats]

    def fill_in(self, numbers: Sequence[float]) -> None:
        self.digest.fp8 = self.read(numbers, self.numel)


class TorchReducer:
    """See `msprobe_core.plugin.Reducer`.

    Tensors on the host are reduced immediately. For a tensor on a device the reductions are enqueued, their results
    stay on the device, and ``collect`` fetches all of them in one transfer.
    """

    def __init__(
        self, *, defer_host: bool = False, find_kernel: Callable[[torch.device], ProvenKernel | None] | None = None
    ) -> None:
        """Begin empty.

        Args:
            defer_host: Treat tensors on the host like those on a device; for testing that path without one.
            find_kernel: Returns a kernel that reduces device tensors in one launch; by default Triton's for GPUs.
        """
        self._defer_host = defer_host
        self._find_kernel = find_kernel or fused_kernel
        self._kernels: dict[torch.device, ProvenKernel | None] = {}
        self._deferred: dict[torch.device, DeferredStatistics] = {}
        self._checksums: list[tuple[Digest, Tensor]] = []
        self._held_bytes = 0
        self._words: dict[torch.device, list[tuple[Digest, Tensor]]] = {}
        self._fp8: dict[torch.device, list[tuple[_WaitingFp8, Tensor]]] = {}
        self._extra: dict[torch.device, list[tuple[Digest, Sequence[str], Tensor]]] = {}
        self._sketches: dict[torch.device, list[tuple[Digest, Tensor]]] = {}
        self._sketchers: dict[torch.device, Sketcher] = {}
        self._sealed: list[tuple[HostCopy, Callable[[Tensor], None]]] = []

    def statistics(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.stats``, now or at the next ``collect``."""
        values = readable(tensor)
        if values is None:
            is_sparse = tensor.layout in SPARSE_LAYOUTS and self._is_on_host(tensor)
            digest.stats = sparse_statistics(tensor) if is_sparse else Stats()
        elif values.dtype in WITHOUT_VALUES or values.numel() == 0:
            digest.stats = Stats()
        elif self._is_on_host(values):
            digest.stats = host_statistics(values)
        else:
            self._deferred_on(values.device).add(values, digest)

    def _deferred_on(self, device: torch.device) -> DeferredStatistics:
        deferred = self._deferred.get(device)
        if deferred is None:
            if device not in self._kernels:
                self._kernels[device] = self._find_kernel(device)
            deferred = self._deferred[device] = DeferredStatistics(self._kernels[device])
        return deferred

    def checksum(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``, now or at the next ``collect``."""
        values = readable(tensor)
        if values is None:
            return
        if self._is_on_host(values):
            digest.checksum = crc32_of(values)
        else:
            if self._held_bytes + values.nbytes > HELD_BYTES:
                self._collect_checksums()
            self._checksums.append((digest, values.clone()))
            self._held_bytes += values.nbytes

    def xor(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``, now or at the next ``collect``."""
        values = readable(tensor)
        if values is None:
            return
        if self._is_on_host(values):
            digest.checksum = xor_of(values)
        else:
            self._words.setdefault(values.device, []).append((digest, xor_on_device(bytes_of(values))))

    def hash(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``, now or at the next ``collect``."""
        self.hash_at(tensor, digest, _place_of(tensor))

    def hash_at(self, tensor: Any, digest: Digest, place: Place | None) -> None:
        """Set ``digest.checksum`` of a tensor whose elements have these positions in a larger one."""
        values = readable(tensor)
        if values is None:
            return
        if self._is_on_host(values):
            if place is None:
                digest.checksum = _host_hash_of(values)
            else:
                digest.checksum = word_text(int(hash_of(values, HostTensors(), place)[0]))
        else:
            word = hash_of(values, DeviceTensors(values.device), place)[0]
            self._words.setdefault(values.device, []).append((digest, word))

    def sketch(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.sketch``, now or at the next ``collect``."""
        self.sketch_at(tensor, digest, _place_of(tensor))

    def sketch_at(self, tensor: Any, digest: Digest, place: Place | None) -> None:
        """Set ``digest.sketch`` of a tensor whose elements have these positions in a larger one."""
        values = readable(tensor)
        if values is None or values.numel() == 0 or values.dtype in WITHOUT_VALUES:
            return
        if self._is_on_host(values):
            if place is None:
                digest.sketch = self._host_sketch_of(values)
            else:
                digest.sketch = self._sketcher(values).sketch(values, place).astype("<f4").tobytes()
        else:
            sketch = self._sketcher(values).sketch(values, place)
            self._sketches.setdefault(values.device, []).append((digest, sketch))

    def fp8(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.fp8``, now or at the next ``collect``."""
        values = readable(tensor)
        if values is None or not values.is_floating_point() or values.numel() == 0 or values.dtype in _WITHOUT_LOSSES:
            return
        largest = fp8.LARGEST.get(str(values.dtype).removeprefix("torch."))
        is_on_host = self._is_on_host(values)
        if largest is not None:
            values = values.float()
        arrays = NumpyArrays() if is_on_host else DeviceTensors(values.device)
        elements = HostTensors().floats(values.resolve_neg()) if is_on_host else values
        if largest is None:
            numbers, read = fp8.quantised(elements, arrays), fp8.losses
        else:
            numbers, read = fp8.used(elements, largest, arrays), fp8.usage
        waiting = _WaitingFp8(digest, values.numel(), read)
        if is_on_host:
            waiting.fill_in(numbers.tolist())
        else:
            self._fp8.setdefault(values.device, []).append((waiting, numbers))

    def extra_statistics(self, tensor: Any, digest: Digest, measure: ElementMeasure) -> None:
        """Set ``digest.extra``, now or at the next ``collect``."""
        values = readable(tensor)
        if values is None or values.numel() == 0 or values.dtype in WITHOUT_VALUES:
            return
        numbers = values.resolve_conj().abs() if values.is_complex() else widened(values)
        if self._is_on_host(values):
            names, found = measure(real_vector(HostTensors().floats(numbers.resolve_neg())), NumpyArrays())
            digest.extra = dict(zip(names, found.tolist(), strict=True))
            return
        arrays = DeviceTensors(values.device)
        is_narrow = numbers.is_floating_point() and numbers.dtype is not torch.float64
        vector = (numbers.float() if is_narrow else arrays.floats(numbers)).reshape(-1)
        version = None if vector.is_inference() else vector._version
        names, found = measure(vector, arrays)
        self._extra.setdefault(values.device, []).append((digest, names, found))
        if version is not None and vector._version != version:
            raise PluginError(f"one of the statistics {', '.join(names)} has written to the tensor that it was given")

    def _host_sketch_of(self, values: Tensor) -> bytes:
        sketch = sketch_by_kernels(values, self._sketcher(values))
        if sketch is not None:
            return sketch
        return self._sketcher(values).sketch(values).astype("<f4").tobytes()

    def _sketcher(self, values: Tensor) -> Sketcher:
        sketcher = self._sketchers.get(values.device)
        if sketcher is None:
            arrays = HostTensors() if self._is_on_host(values) else DeviceTensors(values.device)
            sketcher = self._sketchers[values.device] = Sketcher(arrays)
        return sketcher

    @property
    def is_complete(self) -> bool:
        """Whether nothing is pending on a device."""
        waiting = (self._deferred, self._checksums, self._words, self._sketches, self._fp8, self._extra, self._sealed)
        return not any(waiting)

    def collect(self) -> None:
        """Fetch all results, one transfer per device and kind of result."""
        self._collect_checksums()
        sealed, self._sealed = self._sealed, []
        for copy, fill_in in sealed:
            fill_in(copy.values())
        for stacked, fill_in in self._transfers():
            fill_in(stacked)

    def seal(self) -> Callable[[], bool] | None:
        """Start to copy all results into memory of the host, but those of `checksum`."""
        self._sealed += [(HostCopy(stacked), fill_in) for stacked, fill_in in self._transfers()]
        copies = [copy for copy, _ in self._sealed]
        if not all(copy.is_watched for copy in copies):
            return None
        return lambda: all(copy.has_arrived() for copy in copies)

    def _transfers(self) -> Iterator[tuple[Tensor, Callable[[Tensor], None]]]:
        """Yield what is to be transferred, and what fills in the digests from it."""
        for deferred in _drained(self._deferred):
            if (vector := deferred.finish()) is not None:
                yield vector, deferred.fill_in
        for words in _drained(self._words):
            yield torch.stack([word for _, word in words]), partial(_fill_in_words, words)
        for sketches in _drained(self._sketches):
            yield torch.stack([sketch for _, sketch in sketches]), partial(_fill_in_sketches, sketches)
        for fp8s in _drained(self._fp8):
            yield torch.stack([numbers for _, numbers in fp8s]), partial(_fill_in_fp8, fp8s)
        for extras in _drained(self._extra):
            yield torch.cat([numbers for *_, numbers in extras]), partial(_fill_in_extra, extras)

    def _collect_checksums(self) -> None:
        for digest, copy in self._checksums:
            digest.checksum = crc32_of(copy.cpu())
        self._checksums.clear()
        self._held_bytes = 0

    def _is_on_host(self, values: Tensor) -> bool:
        return values.is_cpu and not self._defer_host


_Waiting = TypeVar("_Waiting")


def _drained(waiting: dict[torch.device, _Waiting]) -> list[_Waiting]:
    """Return what waits on each device, and forget it."""
    found = list(waiting.values())
    waiting.clear()
    return found


def _fill_in_words(waiting: Sequence[tuple[Digest, Tensor]], stacked: Tensor) -> None:
    words: list[int] = stacked.tolist()
    for (digest, _), word in zip(waiting, words, strict=True):
        digest.checksum = word_text(word)


def _fill_in_sketches(waiting: Sequence[tuple[Digest, Tensor]], stacked: Tensor) -> None:
    for (digest, _), sketch in zip(waiting, stacked.cpu().numpy().astype("<f4"), strict=True):
        digest.sketch = sketch.tobytes()


def _fill_in_fp8(waiting: Sequence[tuple[_WaitingFp8, Tensor]], stacked: Tensor) -> None:
    rows: list[list[float]] = stacked.tolist()
    for (digest, _), numbers in zip(waiting, rows, strict=True):
        digest.fill_in(numbers)


def _fill_in_extra(waiting: Sequence[tuple[Digest, Sequence[str], Tensor]], joined: Tensor) -> None:
    numbers = iter(joined.tolist())
    for digest, names, _ in waiting:
        digest.extra = {name: next(numbers) for name in names}


def fused_kernel(device: torch.device) -> ProvenKernel | None:
    """Return Triton's kernel for a GPU, if Triton is installed and compiled kernels are enabled."""
    if device.type != "cuda" or os.environ.get(NATIVE_VARIABLE) == "0":
        return None
    try:
        from msprobe.pytorch._fused import DTYPES, FusedMoments  # Triton may not be installed
    except Exception:  # noqa: BLE001  # an installed Triton may not work
        return None
    return ProvenKernel(FusedMoments(device), DTYPES)


def _host_hash_of(values: Tensor) -> str:
    word = hash_by_kernels(values)
    return word_text(int(hash_of(values, HostTensors())[0]) if word is None else word)


def held_by(tensor: Tensor) -> Tensor:
    """Return the tensor that holds the elements: a DTensor's local shard, or the result of a pending collective."""
    while type(tensor) not in _PLAIN_TYPES:
        inner = getattr(tensor, "_local_tensor", None)
        if inner is None:
            inner = getattr(tensor, "elem", None) if hasattr(tensor, "trigger_wait") else None
        if inner is None:
            break
        tensor = inner
    return tensor


_PLAIN_TYPES = (Tensor, torch.nn.Parameter)


def _place_of(tensor: Tensor) -> Place | None:
    """Return the position of the elements of ``readable``, if they are part of a distributed tensor."""
    return None if type(tensor) in _PLAIN_TYPES else place_of(tensor)


def readable(tensor: Tensor) -> Tensor | None:
    """Return a tensor whose elements can be read: the tensor itself or its local shard; ``None`` if there is none.

    For a tensor wrapped by ``torch.func`` it is the inner tensor; see `unwrapped`. The result of a functional
    collective is waited for, as its first use would; on a device the host does not wait.
    """
    if type(tensor) not in _PLAIN_TYPES:
        local = getattr(tensor, "_local_tensor", tensor)
        if hasattr(local, "trigger_wait"):
            local = cast("Any", local).trigger_wait()
        if local is not tensor:
            return readable(local)
        if hasattr(tensor, "fake_mode"):
            return None
    if is_wrapped(tensor):
        inner = unwrapped(tensor)
        return None if inner is None else readable(inner)
    is_plain = (
        tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_quantized and not tensor.is_nested
    )
    if not is_plain:
        return None
    if tensor._is_zerotensor():  # zeros without memory, which automatic differentiation creates
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return tensor.detach()
