"""All metrics of a pair of tensors, computed in one pass over both.

Pieces are processed in blocks that stay in a core's cache, because each is traversed several times. Sums are
accumulated in float64 (complex128); relative errors of elements are computed in float32 if both sides are no wider, for
consistency with established tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msprobe_core.compare.ulps import Distances, distances_in

Array: TypeAlias = NDArray[Any]

_BLOCK = 1 << 15
"""Elements per block: 128 KiB in float32, and about 1.5 MiB with all intermediate results."""

NUM_SAMPLES = 1 << 14
"""Number of elements used for percentiles of errors, evenly spaced in a larger tensor. The estimate of the 99.9th
percentile is then, in 95 of 100 cases, between the 99.85th and the 99.95th."""


class Workspace:
    """Buffers for the blocks of one thread, reused for all pairs: allocation would cost more than the computation."""

    def __init__(self) -> None:
        self._rooms: dict[tuple[str, Any], Array] = {}
        self._distances: dict[tuple[str, str], Distances | None] = {}

    def room(self, name: str, dtype: Any, size: int) -> Array:
        """Return a buffer for ``size`` elements, at most a block; calls with the same name and dtype share it."""
        room = self._rooms.get((name, dtype))
        if room is None:
            room = self._rooms[name, dtype] = np.empty(_BLOCK, dtype)
        return room[:size]

    def distances(self, dtypes: tuple[str, str]) -> Distances | None:
        """Return the function for distances in ulps of the coarser dtype; ``None`` if there is none."""
        if dtypes not in self._distances:
            self._distances[dtypes] = distances_in(*dtypes)
        return self._distances[dtypes]


class PairSums:
    """Accumulates two tensors piece by piece; the attributes describe the pieces so far.

    Attributes:
        num_elements: Number of elements.
        num_nan: Numbers for target and golden.
        num_inf: Numbers for target and golden.
        mismatch: Index, target and golden value of the first element that is NaN or Inf on one side and differs on the
            other; the following attributes are not updated after it.
        num_different: Number of elements with different values; two NaN, or the same infinity, count as equal.
        largest_abs: Largest absolute difference, and ``worst``: its index, target and golden value.
        largest_golden: Largest magnitude of golden.
        largest_rel: Largest relative difference of an element; if golden is 0, epsilon is added to both.
        num_within_1e3: Number of elements with a relative difference below 0.001.
        num_within_5e3: Number of elements with a relative difference below 0.005.
        difference_sum: Sum of target - golden.
        largest_ulp: Largest distance in ulps.

    Elements with equal NaN or Inf on both sides count as 0 on both.
    """

    def __init__(self, numel: int, dtypes: tuple[str, str], workspace: Workspace) -> None:
        """Begin without elements.

        Args:
            numel: Total number of elements.
            dtypes: Dtypes of target and golden; ulps are those of the coarser.
            workspace: A workspace that no other pair uses until this one is complete.
        """
        self.num_elements = 0
        self.num_nan = [0, 0]
        self.num_inf = [0, 0]
        self.mismatch: tuple[int, Any, Any] | None = None
        self.num_different = 0
        self.largest_abs = 0.0
        self.worst: tuple[int, Any, Any] | None = None
        self.largest_golden = 0.0
        self.largest_rel = 0.0
        self.num_within_1e3 = 0
        self.num_within_5e3 = 0
        self.difference_sum = 0.0
        self.largest_ulp = 0.0
        self.target_squares, self.golden_squares = WideSum(), WideSum()
        self.difference_squares, self.products = WideSum(), WideSum()
        self._distances = workspace.distances(dtypes)
        self._room = workspace.room
        self._samples: list[Array] = []
        self._num_zero_samples = 0
        self._absolute, self._relative = _Samples(), _Samples()
        # An odd step: otherwise the samples of a matrix whose rows have a power of two elements could share one column.
        self._sample_step = -(-numel // NUM_SAMPLES) | 1

    def add(self, target: Array, golden: Array) -> None:
        """Add two vectors of equal length, of any numeric dtypes."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
            for begin in range(0, target.size, _BLOCK):
                end = begin + _BLOCK
                self._add_block(target[begin:end], golden[begin:end])
                self.num_elements += min(end, target.size) - begin

    @property
    def has_distances(self) -> bool:
        """Whether distances in ulps were measured."""
        return self._distances is not None

    @property
    def scale(self) -> float | None:
        """The factor of golden that fits target best, less one; ``None`` if golden is all zero."""
        products, squares = self.products, self.golden_squares
        if squares.value == 0:
            return None
        return _ldexp(products.value / squares.value, products.exponent - squares.exponent) - 1

    def ulp_percentile(self, percent: float) -> float:
        """Return the distance in ulps that ``percent`` % of the elements do not exceed; see `NUM_SAMPLES`.

        Source: Hyndman and Fan, Sample Quantiles in Statistical Packages, 1996, definition 1.
        """
        num_samples = self._num_zero_samples + sum(samples.size for samples in self._samples)
        place = math.ceil(num_samples * percent / 100) - 1 - self._num_zero_samples
        return 0.0 if place < 0 else float(np.partition(np.concatenate(self._samples), place)[place])

    def absolute_percentiles(self, percents: Sequence[float]) -> list[float]:
        """Return the absolute differences that ``percents`` % of elements do not exceed; see `NUM_SAMPLES`."""
        return self._absolute.percentiles(percents, self._num_zero_samples, self.largest_abs)

    def relative_percentiles(self, percents: Sequence[float]) -> list[float]:
        """Return the same for relative differences; if golden is 0, epsilon is added to both sides."""
        return self._relative.percentiles(percents, self._num_zero_samples, self.largest_rel)

    def _add_block(self, target: Array, golden: Array) -> None:
        if _has_same_bytes(target, golden):
            self._add_same(_cast(golden, _arithmetic_of(golden, golden)))
        elif _are_wide_integers(target, golden):
            self._add_wide_integers(target, golden)
        else:
            self._add_others(target, golden)

    def _add_same(self, values: Array) -> None:
        largest = _largest(values)
        if not math.isfinite(largest):
            values, _ = self._without_special(values, values)
            largest = _largest(values)
        if self.mismatch is None:
            self._add_equal(values, largest)

    def _add_others(self, target: Array, golden: Array) -> None:
        stored = target, golden
        kind = _arithmetic_of(target, golden)
        target, golden = _cast(target, kind), _cast(golden, kind)
        difference = self._difference(target, golden)
        if not math.isfinite(difference.largest):  # NaN and Inf propagate to the difference
            stored = target, golden = self._without_special(target, golden)
            difference = self._difference(target, golden)
        if self.mismatch is not None:
            return
        if difference.largest == 0:
            self._add_equal(golden, _largest(golden))
        else:
            self._add_numbers(target, golden, difference)
            self._add_distances(*stored)

    def _add_wide_integers(self, target: Array, golden: Array) -> None:
        """Add integers that float64 may not represent exactly; differences that it loses are computed in integers."""
        first, second = target.astype(np.float64), golden.astype(np.float64)
        # Integers that are equal in float64 differ by less than 2**12, so the wrapped difference is exact.
        exact: Any = target.astype(np.uint64) - golden.astype(np.uint64)
        difference = first - second
        exactly = np.where(difference == 0, exact.view(np.int64), difference)
        self._add_numbers(first, second, _Difference(first, second, exactly))

    def _without_special(self, target: Array, golden: Array) -> tuple[Array, Array]:
        """Count NaN and Inf, and return both sides with 0 in their place."""
        special = ~(np.isfinite(target) & np.isfinite(golden))
        first, second = target[special], golden[special]
        for side, values in enumerate((first, second)):
            is_nan = np.isnan(values)
            self.num_nan[side] += int(np.count_nonzero(is_nan))
            self.num_inf[side] += int(np.count_nonzero(np.isinf(values) & ~is_nan))
        is_same = (first == second) | (np.isnan(first) & np.isnan(second))
        if self.mismatch is None and not is_same.all():
            place = int(np.flatnonzero(special)[int(np.argmin(is_same))])
            self.mismatch = self.num_elements + place, target[place], golden[place]
        zero = np.zeros(1, target.dtype)
        return np.where(special, zero, target), np.where(special, zero, golden)

    def _difference(self, target: Array, golden: Array) -> _Difference:
        wide_target, wide_golden = self._widened(target, "target"), self._widened(golden, "golden")
        room = self._room("difference", wide_target.dtype, target.size)
        return _Difference(wide_target, wide_golden, np.subtract(wide_target, wide_golden, out=room))

    def _add_equal(self, golden: Array, largest: float) -> None:
        """Add finite numbers that are equal on both sides."""
        self.num_within_1e3 += golden.size
        self.num_within_5e3 += golden.size
        self._num_zero_samples += len(range(self._first_sample, golden.size, self._sample_step))
        self.largest_golden = max(self.largest_golden, largest)
        exponent, scaled = _scaled(self._widened(golden, "golden"), largest)
        square = _dot(scaled, scaled)
        for total in (self.target_squares, self.golden_squares, self.products):
            total.add(square, 2 * exponent)

    def _add_numbers(self, target: Array, golden: Array, difference: _Difference) -> None:
        """Add finite numbers."""
        largest = _largest(golden)
        self.largest_golden = max(self.largest_golden, largest)
        bound = largest + difference.largest
        largest_target = bound if _is_safe(bound) else _largest(difference.target)
        target_exponent, target_scaled = _scaled(difference.target, largest_target)
        golden_exponent, golden_scaled = _scaled(difference.golden, largest)
        self.target_squares.add(_dot(target_scaled, target_scaled), 2 * target_exponent)
        self.golden_squares.add(_dot(golden_scaled, golden_scaled), 2 * golden_exponent)
        self.products.add(_dot(target_scaled, golden_scaled), target_exponent + golden_exponent)
        self._add_difference(target, golden, difference)
        self._add_relative(target, golden)

    def _add_difference(self, target: Array, golden: Array, difference: _Difference) -> None:
        # Counting booleans is several times as fast as counting floats.
        self.num_different += int(np.count_nonzero(difference.magnitudes != 0))
        if difference.largest > self.largest_abs:
            place = difference.place()
            self.largest_abs = difference.largest
            self.worst = self.num_elements + place, target[place], golden[place]
        exponent, scaled = _scaled(difference.values, difference.largest)
        self.difference_squares.add(_dot(scaled, scaled), 2 * exponent)
        self.difference_sum += float(np.sum(difference.values).real)
        self._absolute.add(self._sampled(difference.magnitudes))

    def _add_relative(self, target: Array, golden: Array) -> None:
        room = self._room("relative", target.dtype, target.size)
        ratio: Any = np.divide(np.subtract(target, golden, out=room), golden, out=room)
        relative: Any = np.abs(ratio) if np.iscomplexobj(ratio) else np.abs(ratio, out=ratio)
        if not np.isfinite(relative.max()):  # golden is 0 somewhere, or the quotient exceeds the dtype's range
            relative = _with_epsilon(relative, target, golden)
        self.largest_rel = max(self.largest_rel, float(relative.max()))
        self.num_within_1e3 += int(np.count_nonzero(relative < 0.001))
        self.num_within_5e3 += int(np.count_nonzero(relative < 0.005))
        self._relative.add(self._sampled(relative))

    def _add_distances(self, target: Array, golden: Array) -> None:
        if self._distances is not None:
            distances: Any = self._distances(target, golden)
            self.largest_ulp = max(self.largest_ulp, float(distances.max()))
            samples = self._sampled(distances)
            if samples.size:
                self._samples.append(samples.copy())

    def _sampled(self, of_block: Any) -> Any:
        """Return a view of the samples among the elements of the current block."""
        return of_block[self._first_sample :: self._sample_step]

    @property
    def _first_sample(self) -> int:
        """Index of the first sample in the next block."""
        return -self.num_elements % self._sample_step

    def _widened(self, values: Array, name: str) -> Array:
        """Return real values in float64; others are complex128 or float64 already."""
        if values.dtype != np.float32:
            return values
        room = self._room(name, np.float64, values.size)
        np.copyto(room, values)
        return room


class _Samples:
    """Magnitudes of the sampled elements of a tensor, for percentiles.

    They are sorted by the upper 16 bits of their float32, seven of which belong to the fraction: NumPy sorts 16-bit
    integers in a quarter of the time of a partition of the values. So a percentile is off by up to 1/256 of itself, and
    magnitudes below 1e-38 and above 3e38 count as 0 and as infinite.
    """

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: list[Array] = []

    def add(self, values: Any) -> None:
        """Add real numbers; their sign is ignored."""
        if values.size:
            self._values.append(values.copy())

    def percentiles(self, percents: Sequence[float], num_zeros: int, largest: float) -> list[float]:
        """Return the magnitudes that ``percents`` % do not exceed, with ``num_zeros`` additional zeros.

        Source: Hyndman and Fan, Sample Quantiles in Statistical Packages, 1996, definition 1.
        """
        if not self._values:
            return [0.0] * len(percents)
        with np.errstate(over="ignore", under="ignore"):
            narrowed: Any = np.abs(np.concatenate(self._values).astype(np.float32))
        codes = np.sort((narrowed.view(np.uint32) >> 16).astype(np.uint16), kind="stable")
        # Rounded, because float64 cannot represent 99.9 exactly.
        places = [math.ceil(round((num_zeros + codes.size) * percent / 100, 6)) - 1 - num_zeros for percent in percents]
        found: Any = codes[np.maximum(places, 0)].astype(np.uint32) << 16
        values = found.view(np.float32).astype(np.float64) * (1 + 1 / 256)
        return [0.0 if place < 0 else min(float(value), largest) for place, value in zip(places, values, strict=True)]


class _Difference:
    """Both sides of a block in float64 or complex128, target - golden, and its largest magnitude."""

    __slots__ = ("golden", "largest", "magnitudes", "target", "values")

    def __init__(self, target: Array, golden: Array, values: Array) -> None:
        self.target, self.golden, self.values = target, golden, values
        self.magnitudes: Any = np.abs(values) if np.iscomplexobj(values) else values
        self.largest = _largest(self.magnitudes)

    def place(self) -> int:
        """Return the index of the first element with the largest magnitude, of either sign."""
        place = int(np.argmax(self.magnitudes))
        return place if abs(self.magnitudes[place]) == self.largest else int(np.argmin(self.magnitudes))


class WideSum:
    """A sum that float64 may not be able to represent: ``value * 2**exponent``."""

    __slots__ = ("exponent", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.exponent = 0

    def add(self, value: float, exponent: int) -> None:
        """Add ``value * 2**exponent``."""
        if value == 0:
            return
        if self.value == 0 or exponent > self.exponent:
            self.value, self.exponent = _ldexp(self.value, self.exponent - exponent), exponent
        self.value += _ldexp(value, exponent - self.exponent)

    def root(self) -> float:
        """Return the square root of a sum of squares."""
        return _ldexp(math.sqrt(self.value), self.exponent // 2)  # exponents of squares are even


def cosine(sums: PairSums) -> float:
    """Return the cosine similarity, -1 to 1; 1 for two sides of zeros, and NaN if one side is all zero.

    Elements may be arbitrarily small: the sign of gradients of 1e-20 matters too.
    """
    products, first, second = sums.products, sums.target_squares, sums.golden_squares
    are_zero = [squares.value == 0 for squares in (first, second)]
    if any(are_zero) or sums.num_different == 0:  # avoids the roundings of the roots below
        return 1.0 if all(are_zero) or not any(are_zero) else math.nan
    exponent = products.exponent - (first.exponent + second.exponent) // 2
    ratio = products.value / math.sqrt(first.value) / math.sqrt(second.value)
    return min(1.0, max(-1.0, _ldexp(ratio, exponent)))


def _ldexp(value: float, exponent: int) -> float:
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(math.inf, value)


def _has_same_bytes(target: Array, golden: Array) -> bool:
    if target.dtype != golden.dtype:
        return False
    word = f"u{min(target.dtype.itemsize, 8)}"
    first, second = _viewed(target, word), _viewed(golden, word)
    # If two blocks differ, their beginnings usually differ too.
    return bool((first[:256] == second[:256]).all()) and bool((first == second).all())


def _viewed(values: Array, dtype: str) -> Any:
    contiguous: Any = np.ascontiguousarray(values)
    return contiguous.view(dtype)


def _are_wide_integers(target: Array, golden: Array) -> bool:
    return target.dtype.kind in "iu" and golden.dtype.kind in "iu" and max(target.itemsize, golden.itemsize) == 8


def _arithmetic_of(target: Array, golden: Array) -> Any:
    """Return float32, float64 or complex128, whichever can represent the values of both."""
    if np.iscomplexobj(target) or np.iscomplexobj(golden):
        return np.complex128
    is_narrow = all(side.dtype.kind == "f" and side.dtype.itemsize <= 4 for side in (target, golden))
    return np.float32 if is_narrow else np.float64


def _cast(values: Array, kind: Any) -> Array:
    return values if values.dtype == kind else values.astype(kind)


def _largest(values: Array) -> float:
    """Return the largest magnitude; NaN or Inf if there is one."""
    if np.iscomplexobj(values):
        return float(np.abs(values).max())
    return max(float(values.max()), -float(values.min()))


def _is_safe(magnitude: float) -> bool:
    """Whether float64 can represent squares of numbers of this size, and sums of as many as a tensor has."""
    return magnitude == 0 or 1e-140 < magnitude < 1e140


def _scaled(wide: Array, largest: float) -> tuple[int, Array]:
    """Return an exponent, and the values divided by 2**exponent, so that float64 can represent their sum of squares."""
    if _is_safe(largest) or not math.isfinite(largest):
        return 0, wide
    exponent = math.frexp(largest)[1]
    # In two steps, because 2**-exponent may exceed float64's range.
    half = exponent // 2
    return exponent, wide * math.ldexp(1.0, -half) * math.ldexp(1.0, half - exponent)


def _dot(first: Any, second: Any) -> float:
    """Return the sum of products; for complex numbers the real part of the product with the conjugate.

    Not ``np.dot``, whose library may start its own threads for a product of a few microseconds.
    """
    if np.iscomplexobj(first):
        first, second = _viewed(first, "f8"), _viewed(second, "f8")
    return float(np.einsum("i,i->", first, second))


def _with_epsilon(relative: Array, target: Array, golden: Array) -> Array:
    """Set the relative errors where golden is 0, by the convention of tables: epsilon is added to both sides."""
    is_zero = golden == 0
    epsilon: Any = np.finfo(target.dtype).eps
    shifted = golden[is_zero] + epsilon
    relative[is_zero] = np.abs((target[is_zero] + epsilon - shifted) / shifted)
    return relative
