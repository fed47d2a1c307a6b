"""Reductions on a device: enqueued, and fetched together when the window ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ops

from msprobe.mindspore._device import COMPLEX, FLOATING, copied, is_host
from msprobe_core.interception import sums_of_integers
from msprobe_core.plugin import Digest, Stats

_TINY = float(np.finfo(np.float32).tiny)

HELD_BYTES = 256 << 20
"""Maximum size of copies that wait on a device; beyond it, results are fetched within the step."""


def widest_float() -> Any:
    """Return the dtype for sums: float64, or float32 on devices without a usable wider one."""
    return ms.float64 if is_host() else ms.float32


class DeferredStatistics:
    """Pending numbers on the device: seven for each tensor, stacked and fetched in one transfer.

    Integers have four more, in int64, on a device without float64: float32 rounds their sums and large extremes, which
    would then differ from those that a host computes of equal ones.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Digest, Any, int, int | None]] = []
        self._numbers: list[Any] = []
        self._integers: list[Any] = []
        self._zero: Any = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is pending."""
        return not self._waiting

    def add(self, values: Any, digest: Digest) -> None:
        """Enqueue the reductions of a non-empty tensor.

        Sums are scaled by the largest magnitude, so that no square overflows float32. The unscaled sum determines the
        mean if there are infinities.
        """
        dtype, wide = values.dtype, widest_float()
        numbers: Any = ops.cast(ops.abs(values) if dtype in COMPLEX else values, wide)
        high, low = _MAX(numbers, ()), _MIN(numbers, ())
        size = ops.maximum(ops.maximum(ops.abs(high), ops.abs(low)), _TINY)
        scaled = numbers / size
        counts = (
            [_SUM(ops.cast(test(numbers), wide), ()) for test in (ops.isnan, ops.isinf)] if dtype in FLOATING else []
        )
        results = (high, low, _SUM(numbers, ()), _SUM(scaled, ()), _SUM(ops.square(scaled), ()), *counts)
        place = None if dtype in FLOATING or wide == ms.float64 else len(self._integers)
        self._waiting.append((digest, dtype, values.size, place))
        self._numbers += results
        if place is not None:
            whole: Any = ops.cast(values, ms.int64)
            self._integers += [_MAX(whole, ()), _MIN(whole, ()), _SUM(whole, ()), _SUM(whole * whole, ())]
        if not counts:
            if self._zero is None:
                self._zero = high * 0.0
            self._numbers += [self._zero] * 2

    def collect(self) -> None:
        """Fetch all numbers and fill in the digests."""
        if not self._waiting:
            return
        fetched: Any = ops.stack(self._numbers).asnumpy()
        integers: Any = ops.stack(self._integers).asnumpy() if self._integers else None
        for i, (digest, dtype, size, place) in enumerate(self._waiting):
            found = fetched[7 * i : 7 * i + 7].tolist()
            if place is None:
                digest.stats = _to_stats(dtype, size, *found)
            else:
                digest.stats = _of_integers(dtype, size, integers[place : place + 4].tolist(), found)
        self._waiting, self._numbers, self._integers = [], [], []


_MAX, _MIN, _SUM = ops.ReduceMax(), ops.ReduceMin(), ops.ReduceSum()


def _to_stats(
    dtype: Any, numel: int, high: float, low: float, total: float, scaled: float, squares: float, nan: float, inf: float
) -> Stats:
    if nan:
        return Stats(math.nan, math.nan, math.nan, math.nan, int(nan), int(inf))
    size = max(abs(high), abs(low))
    if inf:
        return Stats(high, low, total / numel, math.inf, 0, int(inf))
    mean, norm = scaled * size / numel, math.sqrt(squares) * size
    if dtype == ms.bool_:
        return Stats(bool(high), bool(low), mean, norm, 0, 0)
    if dtype not in FLOATING:
        return Stats(int(high), int(low), mean, norm, 0, 0)
    return Stats(high, low, mean, norm, 0, 0)


def _of_integers(dtype: Any, numel: int, exact: list[int], rounded: list[float]) -> Stats:
    high, low, total, squares = exact
    largest, smallest, rounded_total, _, scaled_squares, *_ = rounded
    norm = math.sqrt(scaled_squares) * max(abs(largest), abs(smallest))
    total, norm = sums_of_integers(total, squares, rounded_total, norm)
    if dtype == ms.bool_:
        return Stats(bool(high), bool(low), total / numel, norm, 0, 0)
    return Stats(high, low, total / numel, norm, 0, 0)


class DeferredCopies:
    """Copies that wait on the device until they are reduced on the host, for reductions without a device operator."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[Any, Digest], None], Any, Digest]] = []
        self.num_bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is pending."""
        return not self._waiting

    def add(self, tensor: Any, digest: Digest, reduce: Callable[[Any, Digest], None]) -> None:
        """Copy the current values of a tensor; ``reduce`` receives the copy and the digest when it is fetched."""
        self._waiting.append((reduce, copied(tensor), digest))
        self.num_bytes += tensor.nbytes

    def collect(self) -> None:
        """Reduce all of them."""
        waiting, self._waiting, self.num_bytes = self._waiting, [], 0
        for reduce, copy, digest in waiting:
            reduce(copy, digest)
