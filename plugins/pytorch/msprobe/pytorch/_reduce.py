"""Arithmetic on tensors where they live: statistics, checksums, identities."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.distributed
from torch import Tensor

from msprobe_core.capture.checksum import crc32_text, word_text, xor_text
from msprobe_core.model import Digest, Stats

_WeakTensorRef: Callable[[Tensor], object] | None = getattr(torch._C, "_WeakTensorRef", None)

_is_wrapped: Callable[[Tensor], bool] = cast("Any", torch._C)._functorch.is_functorch_wrapped_tensor


def _has_collectives() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


_WITHOUT_ARITHMETIC = frozenset(
    getattr(torch, name)
    for name in (
        "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
        "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", "uint16", "uint32", "uint64",
    )
    if hasattr(torch, name)
)  # fmt: skip
"""Dtypes for which PyTorch has no reductions."""


class TorchReducer:
    """See `msprobe_core.hookspecs.Reducer`.

    Tensors on the host are reduced at once. For a tensor on a device the reductions are enqueued, their results stay
    on the device, and ``collect`` brings all of them over in one transfer.
    """

    def __init__(self, *, defer_host: bool = False) -> None:
        """Begin empty.

        Args:
            defer_host: Treat tensors on the host like those on a device; lets that path be tested without one.
        """
        self._defer_host = defer_host
        self._deferred: dict[torch.device, _Deferred] = {}
        self._checksums: list[tuple[Digest, Tensor]] = []
        self._words: dict[torch.device, list[tuple[Digest, Tensor]]] = {}
        self._alive: dict[int, object] = {}
        self._exposed: set[int] = set()

    def statistics(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.stats``, now or at the next ``collect``."""
        values = readable(tensor)
        if values is None or values.dtype in _WITHOUT_ARITHMETIC or values.numel() == 0:
            digest.stats = Stats()
        elif self._is_on_host(values):
            digest.stats = _host_statistics(values)
        else:
            self._deferred.setdefault(values.device, _Deferred()).add(values, digest)

    def checksum(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``, now or at the next ``collect``."""
        values = readable(tensor)
        if values is None:
            return
        if self._is_on_host(values):
            digest.checksum = crc32_of(values)
        else:
            self._checksums.append((digest, values.clone()))

    def xor(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``, now or at the next ``collect``."""
        values = readable(tensor)
        if values is None:
            return
        if self._is_on_host(values):
            digest.checksum = xor_text(_bytes_of(values).numpy())
        else:
            self._words.setdefault(values.device, []).append((digest, _xor_on_device(_bytes_of(values))))

    def identity(self, tensor: Any) -> tuple[int, int] | None:
        """Return address and version of the tensor; the address is not given to another tensor before ``collect``.

        ``None`` for tensors without a version (made under ``inference_mode``).
        """
        tensor = held_by(tensor)
        if _WeakTensorRef is None or tensor.is_inference():
            return None
        address: int = tensor._cdata
        if address not in self._alive:
            # A weak reference keeps the address, not the data.
            self._alive[address] = _WeakTensorRef(tensor)
        return address, tensor._version

    def shows_writes(self, tensor: Any) -> bool:
        """Whether all writes to the tensor raise its version.

        Those of most functions do. Fused optimizers write to parameters without it, NumPy to memory that it shares,
        which is what cannot be resized. Communication does too. Calls of it are followed; but in a job there is also
        some that is not Python's, by which buffers, gradients and buckets of them are exchanged, so nothing is trusted
        there but what autograd has computed.
        """
        tensor = held_by(tensor)
        if not tensor.requires_grad:
            if _has_collectives():
                return False
        elif not tensor._is_view() and tensor.is_leaf:  # a view is no leaf, and asking one may make its node
            return False
        storage = tensor.untyped_storage()
        return storage.resizable() and storage._cdata not in self._exposed

    def distrust(self, tensor: Any) -> None:
        """Trust no tensor in this one's storage any more."""
        self._exposed.add(held_by(tensor).untyped_storage()._cdata)

    @property
    def is_complete(self) -> bool:
        """Whether nothing waits on a device."""
        return not self._deferred and not self._checksums and not self._words

    def collect(self) -> None:
        """Fetch all results, one transfer per device, and forget all identities."""
        for deferred in self._deferred.values():
            deferred.collect()
        self._deferred.clear()
        for digest, copy in self._checksums:
            digest.checksum = crc32_of(copy.cpu())
        self._checksums.clear()
        for waiting in self._words.values():
            words: list[int] = torch.stack([word for _, word in waiting]).tolist()
            for (digest, _), word in zip(waiting, words, strict=True):
                digest.checksum = word_text(word)
        self._words.clear()
        self._alive.clear()
        self._exposed.clear()

    def _is_on_host(self, values: Tensor) -> bool:
        return values.device.type == "cpu" and not self._defer_host


def crc32_of(values: Tensor) -> str:
    """Return the CRC-32 of the contiguous bytes of a host tensor as 8 hex digits."""
    return crc32_text(_bytes_of(values).numpy())


def _bytes_of(values: Tensor) -> Tensor:
    """Return the contiguous bytes as a vector; without a copy where they are contiguous already."""
    flat = values.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)  # one element may have any stride and be contiguous


def _xor_on_device(content: Tensor) -> Tensor:
    """Return the exclusive or of the words as a 0-d int64 tensor, by folding in halves; nothing is waited for."""
    words = torch.zeros((content.numel() + 7) // 8 or 1, dtype=torch.int64, device=content.device)
    words.view(torch.uint8)[: content.numel()].copy_(content)
    while words.numel() > 1:
        half = (words.numel() + 1) // 2
        rest = words[half:]
        words = words[:half].clone()
        words[: rest.numel()] ^= rest
    return words[0]


def held_by(tensor: Tensor) -> Tensor:
    """Return the tensor that holds the elements: a DTensor's local shard, the result that a tensor waits for."""
    while type(tensor) not in _PLAIN_TYPES:
        inner = getattr(tensor, "_local_tensor", None)
        if inner is None:
            inner = getattr(tensor, "elem", None) if hasattr(tensor, "trigger_wait") else None
        if inner is None:
            break
        tensor = inner
    return tensor


_PLAIN_TYPES = (Tensor, torch.nn.Parameter)


def readable(tensor: Tensor) -> Tensor | None:
    """Return a tensor whose elements can be read: the tensor itself or its local shard; ``None`` if there is none.

    The result of a functional collective is waited for, as its first use would; that is no wait of the host where
    there is a device.
    """
    if type(tensor) not in _PLAIN_TYPES:
        local = getattr(tensor, "_local_tensor", tensor)
        if hasattr(local, "trigger_wait"):
            local = cast("Any", local).trigger_wait()
        if local is not tensor:
            return readable(local)
        if hasattr(tensor, "fake_mode"):
            return None
    is_plain = (
        tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_quantized and not tensor.is_nested
    )
    if not is_plain or _is_wrapped(tensor):
        return None
    return tensor.detach()


def _host_statistics(values: Tensor) -> Stats:
    if values.is_complex():
        values = values.abs()
    dtype = values.dtype
    if dtype is torch.bool:
        return _bool_statistics(values)
    if not dtype.is_floating_point:
        return _integer_statistics(values)
    if values.numel() >= _LONG or not values.is_contiguous():
        values = _in_memory_order(values)
    low, high = (bound.item() for bound in _bounds(values))
    mean, norm = _mean_and_norm(values, torch.float64 if dtype is torch.float64 else torch.float32)
    if math.isfinite(low) and math.isfinite(high):
        size = max(abs(low), abs(high))
        if size > 0 and not (math.isfinite(mean) and _SAFE_NORM < norm < 1 / _SAFE_NORM):
            # Squares or sums have left the range of the type: scale first.
            mean, norm = (size * part for part in _mean_and_norm(values.double() / size, torch.float64))
        return Stats(high, low, mean, norm, 0, 0)
    num_nan, num_inf = int(torch.isnan(values).sum().item()), int(torch.isinf(values).sum().item())
    if num_nan:
        low = high = math.nan
    return Stats(high, low, mean, norm, num_nan, num_inf)


def _bounds(values: Tensor) -> Sequence[Tensor]:
    try:
        return torch.aminmax(values)
    except RuntimeError:  # older releases lack it for half precision on the host
        return torch.aminmax(values.float())


_SAFE_NORM = 1e-15
"""Norms above it, and below its inverse, are sums of squares that float32 holds with all their digits."""

_LONG, _ROW = 1 << 16, 4096
"""From how many elements on squares are added up row by row, and how many a row has.

PyTorch adds all squares of a host tensor to a few running sums, so that 2**24 equal float32 values lose 1% of their
norm; row by row they lose 3e-6, in half of the time. Of shorter tensors 2e-5 is lost at the most.
"""


def _in_memory_order(values: Tensor) -> Tensor:
    """Return the same elements as a vector in the order of memory, in which sums are fastest and most accurate."""
    if values.dim() > 1 and not values.is_contiguous():
        values = values.permute(sorted(range(values.dim()), key=values.stride, reverse=True))
    return values.reshape(-1)


def _mean_and_norm(values: Tensor, dtype: torch.dtype) -> tuple[float, float]:
    """Return mean and Euclidean norm, accumulated in ``dtype`` or wider; from `_LONG` elements on, of a vector."""
    numel = values.numel()
    total = values.sum(dtype=dtype).item()
    norm = torch.linalg.vector_norm
    if numel < _LONG:
        return total / numel, norm(values, dtype=dtype).item()
    num_even = numel // _ROW * _ROW
    rows = norm(values[:num_even].view(-1, _ROW), dim=1, dtype=dtype)
    whole = norm(rows, dtype=torch.float64).item()
    if num_even < numel:
        whole = math.hypot(whole, norm(values[num_even:], dtype=dtype).item())
    return total / numel, whole


def _bool_statistics(values: Tensor) -> Stats:
    num_true = int(values.sum().item())
    numel = values.numel()
    return Stats(num_true > 0, num_true == numel, num_true / numel, math.sqrt(num_true), 0, 0)


def _integer_statistics(values: Tensor) -> Stats:
    low, high = torch.aminmax(values)
    mean, norm = _mean_and_norm(values.to(torch.float64).reshape(-1), torch.float64)
    return Stats(high.item(), low.item(), mean, norm, 0, 0)


class _Deferred:
    """Results that wait on one device.

    Each tensor leaves six numbers, in lists by the dtype they come out in, because one stacked copy per list is one
    kernel and converting each number would be thousands.
    """

    def __init__(self) -> None:
        self._digests: list[tuple[Digest, torch.dtype, int]] = []
        self._results: dict[torch.dtype, list[Tensor]] = {}
        self._places: list[tuple[tuple[torch.dtype, int], ...]] = []

    def add(self, values: Tensor, digest: Digest) -> None:
        """Enqueue the reductions of one tensor."""
        dtype = values.dtype
        if values.is_complex():
            values = values.abs()
        elif dtype is torch.bool:
            values = values.to(torch.uint8)
        low, high = torch.aminmax(values)
        # No value is looked at here, so the sums are wide enough for any.
        wide = torch.float32 if values.device.type in _WITHOUT_DOUBLE else torch.float64
        if not values.is_floating_point():
            num_nan = num_inf = torch.zeros((), dtype=torch.int64, device=values.device)
            values = values.to(wide)
        else:
            num_nan, num_inf = torch.isnan(values).sum(), torch.isinf(values).sum()
        total, norm = values.sum(dtype=wide), torch.linalg.vector_norm(values, dtype=wide)
        self._digests.append((digest, dtype, values.numel()))
        self._places.append(tuple(self._keep(result) for result in (high, low, total, norm, num_nan, num_inf)))

    def _keep(self, result: Tensor) -> tuple[torch.dtype, int]:
        kept = self._results.setdefault(result.dtype, [])
        kept.append(result)
        return result.dtype, len(kept) - 1

    def collect(self) -> None:
        """Bring all results over and fill in the digests."""
        offsets: dict[torch.dtype, int] = {}
        stacked: list[Tensor] = []
        num_results = 0
        for dtype, results in self._results.items():
            offsets[dtype] = num_results
            num_results += len(results)
            wide = torch.float32 if results[0].device.type in _WITHOUT_DOUBLE else torch.float64
            stacked.append(torch.stack(results).to(wide))
        numbers: list[float] = torch.cat(stacked).tolist()  # the one transfer
        for (digest, dtype, numel), places in zip(self._digests, self._places, strict=True):
            digest.stats = _to_stats(dtype, numel, [numbers[offsets[kept] + i] for kept, i in places])


_WITHOUT_DOUBLE = frozenset({"npu", "mps"})
"""Kinds of device that have no float64 worth the name."""


def _to_stats(dtype: torch.dtype, numel: int, numbers: list[float]) -> Stats:
    high, low, total, norm, num_nan, num_inf = numbers
    if num_nan:
        high = low = math.nan
    if dtype is torch.bool:
        return Stats(bool(high), bool(low), total / numel, norm, 0, 0)
    if not dtype.is_floating_point and not dtype.is_complex:
        return Stats(int(high), int(low), total / numel, norm, 0, 0)
    return Stats(high, low, total / numel, norm, int(num_nan), int(num_inf))
