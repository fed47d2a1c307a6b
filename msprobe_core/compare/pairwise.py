"""Everything that is known of a pair of tensors, in one pass over both.

Pieces are taken in blocks that stay in a core's cache while they are gone over several times. Sums are accumulated in
float64 (complex128); relative errors of elements are computed in float32 where both sides are no wider, as the
established tables have them.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msprobe_core.compare.ulps import Distances

Array: TypeAlias = NDArray[Any]

_BLOCK = 1 << 15
"""Elements of a block: 128 KiB in float32, and about 1.5 MiB with everything that is computed from it."""

NUM_SAMPLES = 1 << 16
"""Distances in ulps of which the percentile is taken; of a larger tensor that many, evenly spaced."""


class PairSums:
    """Takes two tensors piece by piece; the attributes are what is known of those taken so far.

    Attributes:
        num_elements: Number of elements.
        num_nan: Of target and golden.
        num_inf: Of target and golden.
        mismatch: Index, target and golden value of the first element that is NaN or Inf on one side and not the same
            on the other; nothing below goes on from there.
        num_different: Elements whose values are not equal; those where both are NaN, or the same infinity, are.
        largest_abs: Largest absolute difference, and ``worst``: its index, target and golden value.
        largest_golden: Largest magnitude of golden.
        largest_rel: Largest relative difference of an element; where golden is 0, epsilon is added to both.
        num_within_1e3: Elements whose relative difference is below 0.001.
        num_within_5e3: Elements whose relative difference is below 0.005.
        difference_sum: Sum of target - golden.
        largest_ulp: Largest distance in ulps.

    What NaN or Inf on both sides alike leave out counts as an element that is 0 on both.
    """

    def __init__(self, numel: int, distances: Distances | None) -> None:
        """Begin with no element.

        Args:
            numel: Number of elements that will come.
            distances: Measures distances in ulps; ``None`` where there are none.
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
        self._distances = distances
        self._samples: list[Array] = []
        self._numel = numel
        self._rooms: dict[tuple[str, Any], Array] = {}
        # Odd, so that the samples of a matrix whose rows are a power of two long do not all lie in one column.
        self._sample_step = -(-numel // NUM_SAMPLES) | 1

    def add(self, target: Array, golden: Array) -> None:
        """Take two vectors of one length, of numbers of any dtypes."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
            for begin in range(0, target.size, _BLOCK):
                end = begin + _BLOCK
                self._add_block(target[begin:end], golden[begin:end])
                self.num_elements += min(end, target.size) - begin

    @property
    def has_distances(self) -> bool:
        """Whether distances in ulps were measured."""
        return self._distances is not None

    def ulp_percentile(self, percent: float) -> float:
        """Return the distance in ulps that this many of 100 elements do not exceed; see `NUM_SAMPLES`."""
        return float(np.percentile(np.concatenate(self._samples), percent, method="inverted_cdf"))

    def _add_block(self, target: Array, golden: Array) -> None:
        is_same = _has_same_bytes(target, golden)
        if not is_same and _are_wide_integers(target, golden):
            self._add_wide_integers(target, golden)
            return
        stored = target, golden
        kind = _arithmetic_of(target, golden)
        target = _cast(target, kind)
        golden = target if is_same else _cast(golden, kind)
        if not (np.isfinite(target).all() and (is_same or np.isfinite(golden).all())):
            stored = target, golden = self._without_special(target, golden)
        if self.mismatch is not None:
            return
        if is_same:
            self._add_equal(golden)
        elif self._add_numbers(target, golden):
            self._add_distances(*stored)
        else:
            self._add_samples(np.zeros(golden.size, np.uint8))

    def _add_wide_integers(self, target: Array, golden: Array) -> None:
        """Take integers that float64 may not hold; those that look equal there are told apart."""
        first, second = target.astype(np.float64), golden.astype(np.float64)
        # They are less than 2**12 apart, so that the difference is right however the subtraction wraps.
        exact: Any = target.astype(np.uint64) - golden.astype(np.uint64)
        difference = first - second
        self._add_numbers(first, second, np.where(difference == 0, exact.view(np.int64), difference))

    def _without_special(self, target: Array, golden: Array) -> tuple[Array, Array]:
        """Count NaN and Inf, and return both sides with 0 in their places."""
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

    def _add_equal(self, golden: Array) -> None:
        self.num_within_1e3 += golden.size
        self.num_within_5e3 += golden.size
        self._add_samples(np.zeros(golden.size, np.uint8))
        largest = _largest(golden)
        self.largest_golden = max(self.largest_golden, largest)
        exponent, scaled = _scaled(self._widened(golden, "golden"), largest)
        square = _dot(scaled, scaled)
        for total in (self.target_squares, self.golden_squares, self.products):
            total.add(square, 2 * exponent)

    def _add_numbers(self, target: Array, golden: Array, difference: Array | None = None) -> bool:
        """Take finite numbers; return whether there is any difference."""
        wide_target, wide_golden = self._widened(target, "target"), self._widened(golden, "golden")
        if difference is None:
            room = self._room("difference", wide_target.dtype, target.size)
            difference = np.subtract(wide_target, wide_golden, out=room)
        largest = _largest(golden)
        self.largest_golden = max(self.largest_golden, largest)
        largest_difference = self._add_difference(target, golden, difference)
        target_exponent, target_scaled = _scaled(wide_target, _bounded(wide_target, largest, largest_difference))
        golden_exponent, golden_scaled = _scaled(wide_golden, largest)
        self.target_squares.add(_dot(target_scaled, target_scaled), 2 * target_exponent)
        self.golden_squares.add(_dot(golden_scaled, golden_scaled), 2 * golden_exponent)
        self.products.add(_dot(target_scaled, golden_scaled), target_exponent + golden_exponent)
        self._add_relative(target, golden)
        return largest_difference > 0

    def _add_difference(self, target: Array, golden: Array, difference: Array) -> float:
        magnitudes: Any = np.abs(difference) if np.iscomplexobj(difference) else difference
        largest = _largest(magnitudes)
        if largest == 0:
            return largest
        self.num_different += int(np.count_nonzero(magnitudes))
        if largest > self.largest_abs:
            place = int(np.argmax(magnitudes))
            if abs(magnitudes[place]) != largest:
                place = int(np.argmin(magnitudes))
            self.largest_abs = largest
            self.worst = self.num_elements + place, target[place], golden[place]
        exponent, scaled = _scaled(difference, largest)
        self.difference_squares.add(_dot(scaled, scaled), 2 * exponent)
        self.difference_sum += float(np.sum(difference).real)
        return largest

    def _add_relative(self, target: Array, golden: Array) -> None:
        room = self._room("relative", target.dtype, target.size)
        ratio: Any = np.divide(np.subtract(target, golden, out=room), golden, out=room)
        relative: Any = np.abs(ratio) if np.iscomplexobj(ratio) else np.abs(ratio, out=ratio)
        if not np.isfinite(relative.max()):  # golden is 0 somewhere, or the quotient beyond the dtype's range
            relative = _with_epsilon(relative, target, golden)
        self.largest_rel = max(self.largest_rel, float(relative.max()))
        self.num_within_1e3 += int(np.count_nonzero(relative < 0.001))
        self.num_within_5e3 += int(np.count_nonzero(relative < 0.005))

    def _add_distances(self, target: Array, golden: Array) -> None:
        if self._distances is not None:
            distances: Any = self._distances(target, golden)
            self.largest_ulp = max(self.largest_ulp, float(distances.max()))
            self._add_samples(distances)

    def _add_samples(self, distances: Array) -> None:
        if self._distances is not None:
            samples = distances[-self.num_elements % self._sample_step :: self._sample_step]
            if samples.size:
                self._samples.append(samples.astype(np.float64))

    def _widened(self, values: Array, name: str) -> Array:
        """Return real values in float64; others are complex128 or float64 already."""
        if values.dtype != np.float32:
            return values
        room = self._room(name, np.float64, values.size)
        np.copyto(room, values)
        return room

    def _room(self, name: str, dtype: Any, size: int) -> Array:
        """Return memory for a block. The same is used for all blocks: new memory costs more than what is done in it."""
        room = self._rooms.get((name, dtype))
        if room is None:
            room = self._rooms[name, dtype] = np.empty(min(_BLOCK, self._numel), dtype)
        return room[:size]


class WideSum:
    """A sum of numbers that float64 need not hold: ``value * 2**exponent``."""

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
    """Return the cosine similarity, -1 to 1; of two sides of zeros 1, and NaN where one side is.

    A norm up to float64's epsilon counts as 0.
    """
    products, first, second = sums.products, sums.target_squares, sums.golden_squares
    epsilon = float(np.finfo(np.float64).eps)
    are_zero = [squares.root() <= epsilon for squares in (first, second)]
    if any(are_zero):
        return 1.0 if all(are_zero) else math.nan
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
    return np.array_equal(_viewed(target, word), _viewed(golden, word))


def _viewed(values: Array, dtype: str) -> Any:
    contiguous: Any = np.ascontiguousarray(values)
    return contiguous.view(dtype)


def _are_wide_integers(target: Array, golden: Array) -> bool:
    return target.dtype.kind in "iu" and golden.dtype.kind in "iu" and max(target.itemsize, golden.itemsize) == 8


def _arithmetic_of(target: Array, golden: Array) -> Any:
    """Return float32, float64 or complex128, whichever holds the values of both."""
    if np.iscomplexobj(target) or np.iscomplexobj(golden):
        return np.complex128
    is_narrow = all(side.dtype.kind == "f" and side.dtype.itemsize <= 4 for side in (target, golden))
    return np.float32 if is_narrow else np.float64


def _cast(values: Array, kind: Any) -> Array:
    return values if values.dtype == kind else values.astype(kind)


def _largest(values: Array) -> float:
    """Return the largest magnitude of finite numbers."""
    if np.iscomplexobj(values):
        return float(np.abs(values).max())
    return max(float(values.max()), -float(values.min()))


def _bounded(wide_target: Array, largest_golden: float, largest_difference: float) -> float:
    """Return a magnitude that tells whether the squares of the target are safe: the largest, where that is not sure."""
    bound = largest_golden + largest_difference
    return bound if _is_safe(bound) else _largest(wide_target)


def _is_safe(magnitude: float) -> bool:
    """Whether float64 holds squares of numbers of this size, and sums of as many as a tensor has."""
    return magnitude == 0 or 1e-140 < magnitude < 1e140


def _scaled(wide: Array, largest: float) -> tuple[int, Array]:
    """Return an exponent, and the values divided by 2 to its power, so that float64 holds the sum of their squares."""
    if _is_safe(largest) or not math.isfinite(largest):
        return 0, wide
    exponent = math.frexp(largest)[1]
    # In two steps: 2**-exponent itself may be beyond float64's range.
    half = exponent // 2
    return exponent, wide * math.ldexp(1.0, -half) * math.ldexp(1.0, half - exponent)


def _dot(first: Any, second: Any) -> float:
    """Return the sum of products, of complex numbers the real part of that with the conjugate.

    Not ``np.dot``: what it calls may start threads of its own, for a product of a few microseconds.
    """
    if np.iscomplexobj(first):
        first, second = _viewed(first, "f8"), _viewed(second, "f8")
    return float(np.einsum("i,i->", first, second))


def _with_epsilon(relative: Array, target: Array, golden: Array) -> Array:
    """Return the relative errors as tables have them where golden is 0: epsilon is added to both sides there."""
    is_zero = golden == 0
    epsilon: Any = np.finfo(target.dtype).eps
    shifted = golden[is_zero] + epsilon
    relative[is_zero] = np.abs((target[is_zero] + epsilon - shifted) / shifted)
    return relative
