"""Two logical tensors read side by side, in bounded memory: are they equal, one a cast of the other, or how far apart.

The first pass compares stored bytes and computes nothing; if all are equal, nothing else is read. Different dtypes are
compared after rounding to the coarser one. Only what remains is measured, with the sums of `compare.tensor_metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from msprobe_core.checkpoint.boxes import CHUNK_BYTES, Array, Box, boxes_of, read_box, values_of
from msprobe_core.checkpoint.contents import LogicalTensor
from msprobe_core.compare.tensor_metrics import PairSums, Workspace, cosine
from msprobe_core.compare.ulps import distances_in

MAX_ROWS = 1 << 22
"""Of tensors with more rows it is not remembered which of them differ."""


class Rounding(str, Enum):
    """How one tensor was made of the other, of another dtype."""

    EXACT = "exact"
    NEAREST = "to nearest"
    TOWARDS_ZERO = "towards zero"
    BOTH = "both were rounded"


@dataclass(frozen=True, kw_only=True)
class PairNumbers:
    """What was measured of a pair of equal shape.

    Attributes:
        is_equal: Whether all values are equal and, for equal dtypes, all bytes.
        has_same_values: Whether values are equal while bytes differ: the sign of zero, the code of NaN.
        rounding: How one was made of the other by a cast; ``None`` if it was not, or dtypes are equal.
        l2: Euclidean distance.
        norms: Euclidean norms of target and golden.
        cosine: Cosine similarity.
        scale: The factor of golden that fits target best; ``None`` if golden is all zero.
        max_abs: Largest absolute difference.
        share_differing: Share of elements with another value, 0 to 1.
        first_differing: Index of the first element with other bytes or, between dtypes, another value.
        has_other_nan: Whether NaN or Inf are on one side where they are not on the other.
        rows: For each row, along the first dimension, whether it differs; ``None`` if not remembered.
    """

    is_equal: bool = False
    has_same_values: bool = False
    rounding: Rounding | None = None
    l2: float = 0.0
    norms: tuple[float, float] = (0.0, 0.0)
    cosine: float = 1.0
    scale: float | None = None
    max_abs: float = 0.0
    share_differing: float = 0.0
    first_differing: tuple[int, ...] | None = None
    has_other_nan: bool = False
    rows: Array | None = None

    @property
    def is_same(self) -> bool:
        """Whether the two are the same tensor, but for a cast."""
        return self.is_equal or self.has_same_values or self.rounding is not None

    @property
    def relative_l2(self) -> float:
        """Distance over the golden norm; Inf if golden is zero and the target is not."""
        if self.l2 == 0:
            return 0.0
        return self.l2 / self.norms[1] if self.norms[1] else math.inf


def chunk_elements(*tensors: LogicalTensor) -> int:
    """Return how many elements are read at a time of tensors that are read side by side."""
    return CHUNK_BYTES // max(_ITEM_BYTES.get(tensor.dtype, 4) for tensor in tensors)


_ITEM_BYTES = {"float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16, "bfloat16": 2, "float16": 2}


def both(target: LogicalTensor, golden: LogicalTensor) -> Iterator[tuple[Box, int, Array, Array]]:
    """Yield boxes of two tensors of one shape: the box, the index of its first element, and the codes of both."""
    for box, flat in boxes_of(target.shape, chunk_elements(target, golden)):
        yield box, flat, read_box(target, box), read_box(golden, box)


def compare_pair(
    target: LogicalTensor, golden: LogicalTensor, workspace: Workspace, *, measures: bool = True
) -> PairNumbers:
    """Compare two tensors of equal shape.

    Args:
        target: The target.
        golden: The golden tensor.
        workspace: Buffers.
        measures: Whether to measure tensors that are neither equal nor cast; else only that they differ is reported.

    Raises:
        DumpError: one cannot be read.
    """
    if target.dtype == golden.dtype:
        first = _first_difference(target, golden)
        if first is None:
            return PairNumbers(is_equal=True)
        if not measures:
            return PairNumbers(first_differing=first, share_differing=math.nan)
        return measure_pair(target, golden, workspace, first)
    rounding = _rounding(target, golden)
    if rounding is not None:
        return PairNumbers(rounding=rounding)
    return measure_pair(target, golden, workspace) if measures else PairNumbers(share_differing=math.nan)


def same_codes(first: Array, second: Array) -> bool:
    """Whether two arrays have the same bytes."""
    if first.dtype != second.dtype:
        return False
    own, other = np.ravel(first), np.ravel(second)
    if own.nbytes % 8 == 0:
        own, other = _bits(own, "u8"), _bits(other, "u8")
    else:
        own, other = _bits(own, f"u{_word(own.itemsize)}"), _bits(other, f"u{_word(own.itemsize)}")
    return bool((own[:512] == other[:512]).all()) and bool((own == other).all())


def _word(itemsize: int) -> int:
    return itemsize if itemsize in (1, 2, 4, 8) else 1


def _bits(values: Any, dtype: str) -> Any:
    contiguous: Any = np.ascontiguousarray(values)
    return contiguous.view(dtype)


def _first_difference(target: LogicalTensor, golden: LogicalTensor) -> tuple[int, ...] | None:
    for _, flat, own, other in both(target, golden):
        if not same_codes(own, other):
            differs = own != other if own.dtype == other.dtype else np.ones(own.shape, bool)
            if own.dtype.kind in "fc" and not differs.any():
                differs = np.ones(own.shape, bool)
            place = flat + int(np.argmax(np.ravel(differs)))
            return tuple(int(i) for i in np.unravel_index(place, target.shape)) if target.shape else ()
    return None


def _rounding(target: LogicalTensor, golden: LogicalTensor) -> Rounding | None:
    """Return how one is a cast of the other."""
    distances = distances_in(target.dtype, golden.dtype)
    if distances is None:
        return _exact_cast(target, golden)
    is_coarser = _FRACTION_BITS.get(target.dtype, 0) <= _FRACTION_BITS.get(golden.dtype, 0)
    possible = set(Rounding)
    if {target.dtype, golden.dtype} != {"float16", "bfloat16"}:
        possible.discard(Rounding.BOTH)
    for _, _, own, other in both(target, golden):
        numbers = _finite(values_of(own, target.dtype), values_of(other, golden.dtype))
        if numbers is None:
            return None
        coarse, fine = numbers if is_coarser else numbers[::-1]
        if Rounding.EXACT in possible and (coarse == fine).all():
            continue
        possible.discard(Rounding.EXACT)
        largest = float(distances(coarse, fine).max(initial=0))
        if largest > 0:
            possible.discard(Rounding.NEAREST)
        if largest > 1:
            return None
        if Rounding.TOWARDS_ZERO in possible and not (np.abs(coarse) <= np.abs(fine)).all():
            possible.discard(Rounding.TOWARDS_ZERO)
        if not possible:
            return None
    return next(rounding for rounding in Rounding if rounding in possible)


def _finite(own: Array, other: Array) -> tuple[Array, Array] | None:
    """Return the finite elements of both sides; ``None`` if others are not the same on both."""
    first, second = np.ravel(own), np.ravel(other)
    finite = np.isfinite(first), np.isfinite(second)
    if finite[0].all() and finite[1].all():
        return first, second
    keep = finite[0] & finite[1]
    if not (keep | (first == second) | (np.isnan(first) & np.isnan(second))).all():
        return None
    return first[keep], second[keep]


_FRACTION_BITS = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}


def _exact_cast(target: LogicalTensor, golden: LogicalTensor) -> Rounding | None:
    """Return the cast of integers and other numbers without a unit in the last place: only an exact one."""
    for _, _, own, other in both(target, golden):
        if not np.array_equal(
            values_of(own, target.dtype), values_of(other, golden.dtype), equal_nan=own.dtype.kind in "fc"
        ):
            return None
    return Rounding.EXACT


def measure_pair(
    target: LogicalTensor, golden: LogicalTensor, workspace: Workspace, first: tuple[int, ...] | None = None
) -> PairNumbers:
    """Measure how far apart two tensors of equal shape are.

    Args:
        target: The target.
        golden: The golden tensor.
        workspace: Buffers.
        first: Index of the first element that differs, if it is known.

    Raises:
        DumpError: one cannot be read.
    """
    sums = PairSums(target.numel, (target.dtype, golden.dtype), workspace)
    num_rows = target.shape[0] if target.shape else 0
    rows = np.zeros(num_rows, bool) if 0 < num_rows <= MAX_ROWS else None
    for box, flat, codes, other_codes in both(target, golden):
        own, other = values_of(codes, target.dtype), values_of(other_codes, golden.dtype)
        sums.add(np.ravel(own), np.ravel(other))
        if rows is not None or first is None:
            differs = codes != other_codes if target.dtype == golden.dtype else own != other
            if rows is not None:
                begin, size = box.begin[0], box.sizes[0]
                rows[begin : begin + size] |= differs.reshape(size, -1).any(axis=1)
            if first is None and differs.any():
                place = flat + int(np.argmax(np.ravel(differs)))
                first = tuple(int(i) for i in np.unravel_index(place, target.shape)) if target.shape else ()
    scale = sums.scale
    return PairNumbers(
        has_same_values=sums.num_different == 0 and sums.mismatch is None,
        l2=sums.difference_squares.root(),
        norms=(sums.target_squares.root(), sums.golden_squares.root()),
        cosine=cosine(sums),
        scale=None if scale is None else scale + 1,
        max_abs=sums.largest_abs,
        share_differing=sums.num_different / max(1, target.numel),
        first_differing=first,
        has_other_nan=sums.mismatch is not None,
        rows=rows,
    )
