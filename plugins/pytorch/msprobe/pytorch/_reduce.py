"""The reducer: digests of tensors, computed immediately on the host and deferred on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from msprobe.pytorch._arrivals import HostCopy, Queue, is_captured, on, queue_of
from msprobe.pytorch._checksums import bytes_of, crc32_of, xor_of, xor_on_device
from msprobe.pytorch._device_hashes import DeviceHashes, HashKernel, fused_hash
from msprobe.pytorch._fingerprints import DeviceTensors, HostTensors
from msprobe.pytorch._memory_formats import in_plain_order
from msprobe.pytorch._native import hash_by_kernels, sketch_by_kernels, statistics_of_plain
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
from msprobe.pytorch._triton import has_kernels
from msprobe_core.fingerprint import NumpyArrays, Place, Sketcher, fp8, hash_of, word_text
from msprobe_core.interception import real_vector
from msprobe_core.plugin import Digest, ElementMeasure, Fp8Stats, PluginError, Stats

HELD_BYTES = 1 << 30
"""Maximum size of copies that wait on a device for checksums; beyond it, the host fetches them within the step."""

MOST_SEPARATE = 1024
"""How many tensors' results of one kind stay tensors of their own, for which allocators take 512 bytes or more."""

RESULT_BYTES = 16 << 20
"""Maximum size of combined results on devices; beyond it, they go to the host, which waits if it cannot pin memory."""


_WITHOUT_LOSSES = WITHOUT_VALUES | {getattr(torch, name) for name in ("float8_e8m0fnu",) if hasattr(torch, name)}
"""Dtypes that are not quantised: their elements are not numbers, or are scales themselves."""


class _WaitingFp8(NamedTuple):
    """A digest whose numbers are pending on a device, and how to decode them."""

    digest: Digest
    numel: int
    read: Callable[[Sequence[float], int], Fp8Stats]

    def fill_in(self, numbers: Sequence[float]) -> None:
        self.digest.fp8 = self.read(numbers, self.numel)


class _Separate:
    """Results of one shape, or vectors, that wait on a device, each a tensor of its own."""

    def __init__(
        self, fill_in: Callable[[Sequence[Any], Tensor], None], join: Callable[[list[Tensor]], Tensor] = torch.stack
    ) -> None:
        self._fill_in, self._join = fill_in, join
        self._targets: list[Any] = []
        self._results: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._targets)

    def add(self, result: Tensor, target: Any) -> None:
        self._targets.append(target)
        self._results.append(result)

    def finish(self) -> Tensor | None:
        joined = self._join(self._results)
        self._results.clear()
        return joined

    def fill_in(self, stacked: Tensor) -> None:
        self._fill_in(self._targets, stacked)


class _Combined(NamedTuple):
    """Results in one tensor, which waits on a device or is on its way."""

    queue: Queue
    copy: HostCopy
    fill_in: Callable[[Tensor], None]


class TorchReducer:
    """See `msprobe_core.plugin.Reducer`.

    Tensors on the host are reduced immediately. For a tensor on a device the reductions are enqueued, their results
    stay on the device, and ``collect`` fetches them in few transfers. Whatever is done with the results is enqueued
    into the stream that computes them, so that it needs no order between streams.
    """

    def __init__(
        self,
        *,
        defer_host: bool = False,
        find_kernel: Callable[[torch.device], ProvenKernel | None] | None = None,
        find_hash: Callable[[torch.device], HashKernel | None] | None = None,
        most_separate: int = MOST_SEPARATE,
        result_bytes: int = RESULT_BYTES,
    ) -> None:
        """Begin empty.

        Args:
            defer_host: Treat tensors on the host like those on a device; for testing that path without one.
            find_kernel: Returns a kernel that reduces device tensors in one launch; by default Triton's for GPUs.
            find_hash: Returns a kernel that hashes device tensors in one launch; by default Triton's for GPUs.
            most_separate: See `MOST_SEPARATE`.
            result_bytes: See `RESULT_BYTES`.
        """
        self._most_separate, self._result_bytes = most_separate, result_bytes
        self._defer_host = defer_host
        self._find_kernel = find_kernel or fused_kernel
        self._hashes = DeviceHashes(find_hash or fused_hash)
        self._kernels: dict[torch.device, tuple[Queue, ProvenKernel | None]] = {}
        self._separate: dict[tuple[str, Queue], DeferredStatistics | _Separate] = {}
        self._combined: list[_Combined] = []
        self._combined_bytes = 0
        self._checksums: list[tuple[Digest, Tensor]] = []
        self._held_bytes = 0
        self._sketchers: dict[Queue, Sketcher] = {}
        self._sealed: list[_Combined] = []

    def statistics(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.stats``, now or at the next ``collect``."""
        if type(tensor) in _PLAIN_TYPES and not self._defer_host and (stats := statistics_of_plain(tensor)) is not None:
            digest.stats = stats
            return
        values = readable(tensor)
        if values is None:
            is_sparse = tensor.layout in SPARSE_LAYOUTS and self._is_on_host(tensor)
            digest.stats = sparse_statistics(tensor) if is_sparse else Stats()
        elif values.dtype in WITHOUT_VALUES or values.numel() == 0:
            digest.stats = Stats()
        elif self._is_on_host(values):
            digest.stats = host_statistics(values)
        else:
            self._waiting_on("statistics", values.device, self._deferred_on).add(values, digest)

    def _waiting_on(
        self, kind: str, device: torch.device, make: Callable[[Queue], DeferredStatistics | _Separate]
    ) -> Any:
        """Return where results of a kind wait that this thread's stream computes, with room for one more."""
        queue = queue_of(device)
        waiting = self._separate.get((kind, queue))
        if waiting is not None and len(waiting) >= self._most_separate:
            self._combine(queue, self._separate.pop((kind, queue)))
            if self._combined_bytes > self._result_bytes:
                self._send(may_wait=True)
            waiting = None
        if waiting is None:
            waiting = self._separate[kind, queue] = make(queue)
        return waiting

    def _deferred_on(self, queue: Queue) -> DeferredStatistics:
        if queue.device not in self._kernels:
            self._kernels[queue.device] = queue, self._find_kernel(queue.device)
        first, kernel = self._kernels[queue.device]  # its buffer is of one stream
        return DeferredStatistics(kernel if queue == first else None)

    def _combine(self, queue: Queue, waiting: DeferredStatistics | _Separate) -> None:
        with on(queue):
            vector = waiting.finish()
        if vector is not None:
            self._combined.append(_Combined(queue, HostCopy(vector, starts=False), waiting.fill_in))
            self._combined_bytes += vector.nbytes

    def _combine_all(self) -> None:
        separate, self._separate = self._separate, {}
        for (_, queue), waiting in separate.items():
            self._combine(queue, waiting)

    def _send(self, *, may_wait: bool) -> None:
        """Start to copy what is combined to the host, and free it: at once, where the host cannot but wait for it."""
        combined, self._combined, self._combined_bytes = self._combined, [], 0
        for queue, kept, fill_in in combined:
            with on(queue):
                copy = HostCopy(kept.values())
                if may_wait and not copy.is_watched:
                    copy = HostCopy(kept.values().cpu())
            self._sealed.append(_Combined(queue, copy, fill_in))

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
            self._words_on(values.device).add(xor_on_device(bytes_of(values)), digest)

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
            for word, target in self._hashes.words(values, place, digest):
                self._words_on(values.device).add(word, target)

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
            waiting = self._waiting_on("sketches", values.device, lambda _: _Separate(_fill_in_sketches))
            waiting.add(sketch, digest)

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
            self._waiting_on("fp8", values.device, lambda _: _Separate(_fill_in_fp8)).add(numbers, waiting)

    def _words_on(self, device: torch.device) -> _Separate:
        return self._waiting_on("words", device, lambda _: _Separate(_fill_in_words))

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
        self._waiting_on("extra", values.device, lambda _: _Separate(_fill_in_extra, torch.cat)).add(
            found, (digest, names)
        )
        if version is not None and vector._version != version:
            raise PluginError(f"one of the statistics {', '.join(names)} has written to the tensor that it was given")

    def _host_sketch_of(self, values: Tensor) -> bytes:
        sketch = sketch_by_kernels(values, self._sketcher(values))
        if sketch is not None:
            return sketch
        return self._sketcher(values).sketch(values).astype("<f4").tobytes()

    def _sketcher(self, values: Tensor) -> Sketcher:
        queue = queue_of(values.device)  # its tables are made there
        sketcher = self._sketchers.get(queue)
        if sketcher is None:
            arrays = HostTensors() if self._is_on_host(values) else DeviceTensors(values.device)
            sketcher = self._sketchers[queue] = Sketcher(arrays)
        return sketcher

    @property
    def is_complete(self) -> bool:
        """Whether nothing is pending on a device."""
        return not any((self._separate, self._checksums, self._combined, self._sealed))

    def collect(self) -> None:
        """Fetch all results: one transfer per device and kind of result, and for each 1024 tensors."""
        self._collect_checksums()
        self._combine_all()
        combined, self._sealed, self._combined, self._combined_bytes = [*self._sealed, *self._combined], [], [], 0
        for queue, copy, fill_in in combined:
            with on(queue):
                fill_in(copy.values())

    def seal(self) -> Callable[[], bool] | None:
        """Start to copy all results into memory of the host, but those of `checksum`."""
        self._combine_all()
        self._send(may_wait=False)
        copies = [copy for _, copy, _ in self._sealed]
        if not all(copy.is_watched for copy in copies):
            return None
        return lambda: all(copy.has_arrived() for copy in copies)

    def _collect_checksums(self) -> None:
        for digest, copy in self._checksums:
            digest.checksum = crc32_of(copy.cpu())
        self._checksums.clear()
        self._held_bytes = 0

    def _is_on_host(self, values: Tensor) -> bool:
        return values.is_cpu and not self._defer_host


def _fill_in_words(digests: Sequence[Digest], stacked: Tensor) -> None:
    words: list[int] = stacked.tolist()
    for digest, word in zip(digests, words, strict=True):
        digest.checksum = word_text(word)


def _fill_in_sketches(digests: Sequence[Digest], stacked: Tensor) -> None:
    for digest, sketch in zip(digests, stacked.cpu().numpy().astype("<f4"), strict=True):
        digest.sketch = sketch.tobytes()


def _fill_in_fp8(waiting: Sequence[_WaitingFp8], stacked: Tensor) -> None:
    rows: list[list[float]] = stacked.tolist()
    for one, numbers in zip(waiting, rows, strict=True):
        one.fill_in(numbers)


def _fill_in_extra(waiting: Sequence[tuple[Digest, Sequence[str]]], joined: Tensor) -> None:
    numbers = iter(joined.tolist())
    for digest, names in waiting:
        digest.extra = {name: next(numbers) for name in names}


def fused_kernel(device: torch.device) -> ProvenKernel | None:
    """Return Triton's kernel for a GPU, if there can be one."""
    if not has_kernels(device):
        return None
    from msprobe.pytorch._fused import DTYPES, FusedMoments  # needs Triton

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
    collective is waited for, as its first use would; on a device the host does not wait. While a graph is captured
    there is none; see `is_captured`.
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
    if not tensor.is_cpu:
        if is_captured(tensor.device):
            return None
        tensor = in_plain_order(tensor)
    if tensor._is_zerotensor():  # zeros without memory, which automatic differentiation creates
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return tensor.detach()
