"""Statistics of tensors: immediate on the host, enqueued and fetched together on a device."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from msprobe.pytorch._memory import array_of
from msprobe.pytorch._native import statistics_by_kernels
from msprobe_core.interception import statistics_of, sums_of_integers
from msprobe_core.plugin import Digest, Stats

_logger = logging.getLogger("msprobe")

WITHOUT_VALUES = frozenset(
    getattr(torch, name)
    for name in (
        "float4_e2m1fn_x2", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2",
        *(f"{kind}{width}" for kind in ("int", "uint") for width in range(1, 8)),
    )
    if hasattr(torch, name)
)  # fmt: skip
"""Dtypes whose elements PyTorch cannot convert to numbers."""

SPARSE_LAYOUTS = frozenset({torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})

_WIDER = {
    getattr(torch, name): wider
    for name, wider in {
        **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), torch.bfloat16),
        "float8_e8m0fnu": torch.bfloat16, "uint16": torch.int32, "uint32": torch.int64, "uint64": torch.float64,
    }.items()
    if hasattr(torch, name)
}  # fmt: skip
"""Replacements for dtypes without reductions; all but the last represent their numbers exactly."""


def widened(values: Tensor) -> Tensor:
    """Return the same numbers in a dtype with reductions."""
    wider = _WIDER.get(values.dtype)
    return values if wider is None else values.to(wider)


def host_statistics(values: Tensor) -> Stats:
    """Return the statistics of a non-empty host tensor of a dtype that has values."""
    if values.is_floating_point():
        values = widened(values)
    elif values.is_complex():
        values = values.abs()
    if not values.is_contiguous():
        values = _in_memory_order(values)
    if (known := statistics_by_kernels(values)) is not None:
        return known
    dtype = values.dtype
    if dtype in _WIDER:
        return statistics_of(array_of(values))
    if dtype is torch.bool:
        return _bool_statistics(values)
    if not dtype.is_floating_point:
        return _integer_statistics(values)
    high, low, mean, norm = _reduced(values.view(-1))
    if math.isfinite(low) and math.isfinite(high):
        size = max(abs(low), abs(high))
        if size > 0 and not (math.isfinite(mean) and _SAFE_NORM < norm < 1 / _SAFE_NORM):
            # Squares or sums have overflowed: scale first.
            *_, mean, norm = _reduced(values.view(-1).double() / size)
            mean, norm = size * mean, size * norm
        return Stats(high, low, mean, norm, 0, 0)
    num_nan, num_inf = int(torch.isnan(values).sum().item()), int(torch.isinf(values).sum().item())
    if num_nan:
        low = high = math.nan
    return Stats(high, low, mean, norm, num_nan, num_inf)


def sparse_statistics(tensor: Tensor) -> Stats:
    """Return the statistics of a sparse host tensor including its implicit zeros, as for the dense tensor."""
    tensor = tensor.detach()
    # Other layouts have one value per element.
    values = tensor.coalesce()._values() if tensor.layout is torch.sparse_coo else tensor.values()
    numel, num_stored = tensor.numel(), values.numel()
    if not numel or values.dtype in WITHOUT_VALUES:
        return Stats()
    stored = host_statistics(values) if num_stored else host_statistics(torch.zeros(1, dtype=values.dtype))
    if num_stored == numel or stored.num_nan or stored.max is None or stored.min is None or stored.mean is None:
        return stored
    zero = type(stored.max)(0)
    high, low, mean = max(stored.max, zero), min(stored.min, zero), stored.mean * num_stored / numel
    return Stats(high, low, mean, stored.l2_norm, stored.num_nan, stored.num_inf)


_SAFE_NORM = 1e-15
"""For norms above it, and below its inverse, float32 represents the sums of squares with full precision."""

_LONG, _ROW, _PIECE = 1 << 16, 4096, 1 << 17
"""Block sizes for long tensors: the length from which a tensor is long, of a row, and of a thread's block.

Each block is reduced in all ways before the next is read, so that it comes from memory once and then from the cache
of a core: 512 kB of float32. Squares of a block are summed row by row: PyTorch adds all squares of a tensor to a few
running sums, so that 2**24 equal float32 values lose 1% of their norm; row by row they lose 3e-6. A dot product of
fewer than `_LONG` loses at most 7e-6.
"""


def _in_memory_order(values: Tensor) -> Tensor:
    """Return the same elements as a vector in memory order, in which sums are fastest and most accurate."""
    strides = values.stride()
    return values.permute(sorted(range(len(strides)), key=strides.__getitem__, reverse=True)).reshape(-1)


def _reduced(values: Tensor) -> tuple[float, float, float, float]:
    """Return maximum, minimum, mean and Euclidean norm of a vector, accumulated in float64 for float64, else float32.

    NaN anywhere makes mean and norm NaN, and maximum or minimum too.
    """
    numel = values.numel()
    if numel >= _LONG:
        return _reduced_by_pieces(values)
    if values.dtype not in _BLAS:
        values = values.float()
    low, high = torch.aminmax(values)
    total, squares = values.sum(), torch.dot(values, values)
    return high.item(), low.item(), total.item() / numel, math.sqrt(squares.item())


_BLAS = frozenset({torch.float32, torch.float64})


def _reduced_by_pieces(values: Tensor) -> tuple[float, float, float, float]:
    high, low, total = -math.inf, math.inf, 0.0
    norms: list[Tensor] = []
    for part in values.split(_PIECE * torch.get_num_threads()):
        piece = part if part.dtype in _BLAS else part.float()
        total += piece.sum().item()
        high, low = max(high, piece.amax().item()), min(low, piece.amin().item())
        num_even = piece.numel() // _ROW * _ROW
        norms.append(torch.linalg.vector_norm(piece[:num_even].view(-1, _ROW), dim=1))
        if num_even < piece.numel():
            norms.append(torch.linalg.vector_norm(piece[num_even:]).view(1))
    if math.isnan(total):  # NaN elements, which Python's max and min may lose, or infinities of both signs
        high, low = values.amax().item(), values.amin().item()
    norm = torch.linalg.vector_norm(torch.cat(norms), dtype=torch.float64).item()
    return high, low, total / values.numel(), norm


def _bool_statistics(values: Tensor) -> Stats:
    num_true = int(values.sum().item())
    numel = values.numel()
    return Stats(num_true > 0, num_true == numel, num_true / numel, math.sqrt(num_true), 0, 0)


def _integer_statistics(values: Tensor) -> Stats:
    low, high = torch.aminmax(values)
    *_, mean, norm = _reduced(values.to(torch.float64).reshape(-1))
    return Stats(high.item(), low.item(), mean, norm, 0, 0)


class Kernel(Protocol):
    """Reduces a tensor on one device in one launch; see `msprobe.pytorch._fused.FusedMoments`."""

    def add(self, values: Tensor) -> tuple[int, int]: ...

    def place_of(self, added: tuple[int, int]) -> int: ...

    def finish(self) -> Tensor: ...


class ProvenKernel:
    """A kernel, and the dtypes for which it has been verified on this device.

    There are many kinds of GPU and many versions of compilers. So nothing it computes is recorded before a window in
    which the operators reduced the same tensors, with the same results.
    """

    def __init__(self, kernel: Kernel, dtypes: frozenset[torch.dtype]) -> None:
        self._kernel: Kernel | None = kernel
        self._dtypes = dtypes
        self._proven: set[torch.dtype] = set()
        self._added: list[Fused] = []

    def add(self, values: Tensor, digest: Digest) -> bool:
        """Enqueue the reduction of a tensor; return whether it will fill in the digest."""
        dtype = values.dtype
        if self._kernel is None or dtype not in self._dtypes:
            return False
        dense = values if values.is_contiguous() else _in_memory_order(values)
        try:
            added = self._kernel.add(dense)
        except Exception as error:  # noqa: BLE001  # of a compiler, a driver, a device
            # Results of earlier launches are still used.
            self._dtypes = frozenset()
            _logger.warning(
                "tensors on %s are reduced by several operators, as the kernel fails: %s", dense.device, error
            )
            return False
        self._added.append(Fused(digest, dtype, values.numel(), added, is_recorded=dtype in self._proven))
        return dtype in self._proven

    def finish(self) -> tuple[list[Tensor], list[Fused]]:
        """Return the vectors to transfer, one or none, and the tensors whose numbers it has."""
        added, self._added = self._added, []
        if not added or self._kernel is None:
            return [], []
        try:
            for one in added:
                one.place = self._kernel.place_of(one.added)
            return [self._kernel.finish()], added
        except Exception as error:  # noqa: BLE001  # as in ``add``; tensors that only the kernel reduced have no statistics
            self._kernel = None
            _logger.warning("some statistics of tensors on a device are lost, as their kernel fails: %s", error)
            for one in added:
                if one.is_recorded:
                    one.digest.stats = Stats()
            return [], []

    def fill_in(self, added: Sequence[Fused], numbers: list[float]) -> None:
        """Fill in digests from the vector, and compare it with those that operators have filled in."""
        wrong: set[torch.dtype] = set()
        seen: set[torch.dtype] = set()
        for one in added:
            high, low, total, squares, num_nan, num_inf = numbers[one.place : one.place + 6]
            norm = math.nan if num_nan else math.sqrt(squares)
            stats = _to_stats(one.dtype, one.numel, [high, low, total, norm, num_nan, num_inf])
            if one.is_recorded:
                one.digest.stats = stats
            else:
                seen.add(one.dtype)
                if not _is_same(stats, one.digest.stats, one.numel):
                    wrong.add(one.dtype)
        self._proven |= seen - wrong
        if wrong:
            self._dtypes -= wrong
            names = ", ".join(sorted(str(dtype) for dtype in wrong))
            _logger.warning("tensors of %s are reduced by several operators: the kernel is wrong on this device", names)


@dataclass
class Fused:
    """A tensor that the kernel reduces, and the place of its numbers."""

    digest: Digest
    dtype: torch.dtype
    numel: int
    added: tuple[int, int]
    is_recorded: bool
    place: int = 0


def _is_same(stats: Stats, other: Stats | None, numel: int) -> bool:
    """Whether two summation orders gave the same result: extremes and counts exactly, sums except for rounding."""
    if other is None or (stats.num_nan, stats.num_inf) != (other.num_nan, other.num_inf):
        return False
    pairs = [
        (stats.max, other.max, 0.0),
        (stats.min, other.min, 0.0),
        (stats.l2_norm, other.l2_norm, _SAME * (stats.l2_norm or 0)),
    ]
    # A mean can be small because its terms cancel: their size is bounded by the norm (Cauchy and Schwarz).
    pairs.append((stats.mean, other.mean, _SAME * (stats.l2_norm or 0) / math.sqrt(numel)))
    return all(
        one == two or (math.isnan(one) and math.isnan(two)) or abs(one - two) <= most
        for one, two, most in pairs
        if one is not None and two is not None
    )


_SAME = 1e-9
"""Relative difference, with a margin, of two float64 sums of up to 2**40 terms in different orders."""


class DeferredStatistics:
    """Pending results on one device.

    Each tensor produces six numbers, in lists by their dtype, because one stacked copy per list is one kernel and
    converting each number would be thousands. A kernel that computes all six is used if available.

    A device without float64 sums floating-point numbers in float32, and integers exactly, in int64: rounded sums of
    token ids would differ from those that a host computes of equal ones.

    Results are not written to rows allocated beforehand (``out=``). With a view made for each tensor that takes 29 µs
    on the host, and with views kept for all rows 18, as the operators that return theirs do (64 elements); then
    joining, 2 µs for a tensor, would be spared too. But not every device has these variants of all six operators, and
    the memory is bounded anyway: see `msprobe.pytorch._reduce.MOST_SEPARATE`.
    """

    def __init__(self, kernel: ProvenKernel | None = None) -> None:
        self._kernel = kernel
        self._size = 0
        self._fused: list[Fused] = []
        self._digests: list[tuple[Digest, torch.dtype, int, bool]] = []
        self._results: dict[torch.dtype, list[Tensor]] = {}
        self._places: list[tuple[tuple[torch.dtype, int], ...]] = []
        self._kept: dict[torch.dtype, int] = {}

    def __len__(self) -> int:
        """Return the number of tensors."""
        return self._size

    def add(self, values: Tensor, digest: Digest) -> None:
        """Enqueue the reductions of one tensor."""
        self._size += 1
        dtype = values.dtype
        values = widened(values)
        if self._kernel is not None and self._kernel.add(values, digest):
            return
        if values.is_complex():
            values = values.abs()
        elif dtype is torch.bool:
            values = values.to(torch.uint8)
        lacks_double = values.device.type in WITHOUT_DOUBLE
        if values.dtype is torch.float64 and lacks_double:
            values = values.float()  # a norm in a smaller dtype than its input is refused
        low, high = torch.aminmax(values)
        # Values are unknown here, so the sums are wide enough for any.
        wide = torch.float32 if lacks_double else torch.float64
        is_exact = lacks_double and not values.is_floating_point()
        if values.is_floating_point():
            rest = torch.isnan(values).sum(), torch.isinf(values).sum()
        elif is_exact:
            whole = values.to(torch.int64)
            rest = whole.sum(), whole.square().sum()
            values = whole.to(wide)
        else:
            num_none = torch.zeros((), dtype=torch.int64, device=values.device)
            rest = num_none, num_none
            values = values.to(wide)
        total, norm = values.sum(dtype=wide), torch.linalg.vector_norm(values, dtype=wide)
        self._digests.append((digest, dtype, values.numel(), is_exact))
        self._places.append(tuple(self._keep(result) for result in (high, low, total, norm, *rest)))

    def _keep(self, result: Tensor) -> tuple[torch.dtype, int]:
        kept = self._results.setdefault(result.dtype, [])
        kept.append(result)
        return result.dtype, len(kept) - 1

    def finish(self) -> Tensor | None:
        """Return a vector of all results, which is the only one to transfer; ``None`` if there are none.

        Its numbers are float64, or the bits of float32 and int64 as int32 if the device lacks that.
        """
        stacked = {dtype: torch.stack(results) for dtype, results in self._results.items()}
        self._kept = {dtype: len(results) for dtype, results in self._results.items()}
        self._results.clear()
        fused, self._fused = ([], []) if self._kernel is None else self._kernel.finish()
        if any(each.device.type in WITHOUT_DOUBLE for each in stacked.values()):
            parts = [each.to(_carrier(dtype)).view(torch.int32) for dtype, each in stacked.items()]
        else:
            parts = [*(each.to(torch.float64) for each in stacked.values()), *fused]
        return torch.cat(parts) if parts else None

    def fill_in(self, vector: Tensor) -> None:
        """Fill in the digests from the vector."""
        has_bits = vector.dtype is torch.int32
        every: list[float] = [] if has_bits else vector.tolist()
        bits = vector.cpu() if has_bits else None
        numbers: dict[torch.dtype, list[float]] = {}
        start = 0
        for dtype, count in self._kept.items():
            stop = start + count * (_carrier(dtype).itemsize // 4 if has_bits else 1)
            # A view as int64 must be aligned.
            numbers[dtype] = (
                every[start:stop] if bits is None else bits[start:stop].clone().view(_carrier(dtype)).tolist()
            )
            start = stop
        for (digest, dtype, numel, is_exact), places in zip(self._digests, self._places, strict=True):
            found = [numbers[kept][i] for kept, i in places]
            if is_exact:
                high, low, rounded, norm, total, squares = found
                found = [high, low, *sums_of_integers(int(total), int(squares), rounded, norm), 0, 0]
            digest.stats = _to_stats(dtype, numel, found)
        if self._kernel is not None:
            self._kernel.fill_in(self._fused, every[start:])


def _carrier(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that represents the numbers of another one and leaves a device without float64."""
    return torch.float32 if dtype.is_floating_point else torch.int64


WITHOUT_DOUBLE = frozenset({"npu", "mps"})
"""Kinds of device without usable float64."""


def _to_stats(dtype: torch.dtype, numel: int, numbers: Sequence[float]) -> Stats:
    high, low, total, norm, num_nan, num_inf = numbers
    if num_nan:
        high = low = math.nan
    if dtype is torch.bool:
        return Stats(bool(high), bool(low), total / numel, norm, 0, 0)
    if not dtype.is_floating_point and not dtype.is_complex:
        most = torch.iinfo(dtype).max  # float64 may have rounded it up
        return Stats(min(int(high), most), min(int(low), most), total / numel, norm, 0, 0)
    return Stats(high, low, total / numel, norm, int(num_nan), int(num_inf))
