"""What quantisation to 8-bit floating point would lose of a tensor, using operators that all libraries share.

Arithmetic is in float32, as in kernels that quantise; a float64 element outside the range of float32 counts as Inf. The
rounding is that of a saturating cast: half to even, gradual underflow. No 8-bit dtype is needed, so devices and
libraries without one give the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from msprobe_core.fingerprint.arrays import Arrays
from msprobe_core.model import Fp8Stats


class Fp8Format(NamedTuple):
    """An 8-bit format.

    Attributes:
        largest: Largest finite value.
        spacing: Distance between subnormal values.
        fraction_bits: Number of stored bits of the fraction.
    """

    largest: float
    spacing: float
    fraction_bits: int


E4M3 = Fp8Format(448.0, 2.0**-9, 3)
E5M2 = Fp8Format(57344.0, 2.0**-16, 2)

LARGEST = {
    "float8_e4m3fn": E4M3.largest, "float8_e4m3fnuz": 240.0, "float8_e5m2": E5M2.largest, "float8_e5m2fnuz": 57344.0,
}  # fmt: skip
"""Largest finite value of each dtype for which the use of its format is measured."""

_EXPONENT = 0x7F800000
"""The exponent bits of float32; all of them are set only in NaN and Inf."""

_LARGEST_SCALE = float(np.finfo(np.float32).max)

_NUM_SHARED, _NUM_OF_FORMAT = 2, 4
SIZE = _NUM_SHARED + 2 * _NUM_OF_FORMAT
"""Number of elements in the vectors that `quantised` and `used` return."""


def quantised(values: Any, arrays: Arrays) -> Any:
    """Return the input of `losses` as a vector of `SIZE` numbers on the device of ``values``.

    Args:
        values: Floating-point array with at least one element.
        arrays: The library of ``values``.
    """
    with np.errstate(all="ignore"):
        chunks = _chunks(values, arrays)
        table = arrays.zeros(len(chunks), 2)
        for i, chunk in enumerate(chunks):
            finite, is_finite = _finite(chunk, arrays)
            table[i, 0], table[i, 1] = abs(finite).max(), is_finite.sum()
        result = arrays.zeros(SIZE)
        result[0], result[1] = table[:, 0].max(), table[:, 1].sum()
        for number, form in enumerate((E4M3, E5M2)):
            first = _NUM_SHARED + number * _NUM_OF_FORMAT
            # The scale is 1 if all elements are 0.
            scale = (form.largest / (result[0] + (result[0] == 0) * form.largest)).clip(max=_LARGEST_SCALE)
            result[first] = scale
            result[first + 1 : first + _NUM_OF_FORMAT] = _lost(chunks, arrays.single(scale), form, arrays)
        return result


def used(values: Any, largest: float, arrays: Arrays) -> Any:
    """Return the input of `usage` as a vector of `SIZE` numbers on the device of ``values``.

    Args:
        values: The elements of a float8 tensor as float32; at least one.
        largest: Largest finite value of the tensor's dtype.
        arrays: The library of ``values``.
    """
    finite, _ = _finite(values.reshape(-1), arrays)
    result = arrays.zeros(SIZE)
    result[0], result[1], result[2] = abs(finite).max(), (values == 0).sum(), (abs(values) >= largest).sum()
    result[3] = (values != values).sum()  # only NaN differs from itself
    return result


def losses(numbers: Sequence[float], numel: int) -> Fp8Stats:
    """Return the statistics of a tensor of ``numel`` elements from the numbers that `quantised` returns for it."""
    amax, num_finite, *of_formats = numbers
    shown: list[float | None] = []
    for first in range(0, len(of_formats), _NUM_OF_FORMAT):
        scale, num_underflow, num_overflow, squares = of_formats[first : first + _NUM_OF_FORMAT]
        mse = squares / num_finite / scale / scale if num_finite else None
        shown += [scale, num_underflow / numel, num_overflow / numel, mse]
    return Fp8Stats(amax, *shown)


def usage(numbers: Sequence[float], numel: int) -> Fp8Stats:
    """Return the statistics of a float8 tensor of ``numel`` elements from the numbers that `used` returns for it."""
    amax, num_zeros, num_saturated, num_nan = numbers[:4]
    return Fp8Stats(amax, zeros=num_zeros / numel, saturated=num_saturated / numel, nan=num_nan / numel)


def _chunks(values: Any, arrays: Arrays) -> Sequence[Any]:
    flat = arrays.reals(values).reshape(-1)
    return [flat[begin : begin + arrays.chunk] for begin in range(0, len(flat), arrays.chunk)]


def _finite(values: Any, arrays: Arrays) -> tuple[Any, Any]:
    """Return the elements in float32, with 0 in place of NaN and Inf, and a mask of the finite ones."""
    values = arrays.single(arrays.floats(values))
    words = arrays.words(values)
    is_finite = (words & _EXPONENT) != _EXPONENT
    return (words * is_finite).view(values.dtype), is_finite


def _lost(chunks: Sequence[Any], scale: Any, form: Fp8Format, arrays: Arrays) -> Any:
    """Return the numbers of underflows and of unscaled overflows, and the sum of squared scaled errors."""
    table = arrays.zeros(len(chunks), 3)
    for i, chunk in enumerate(chunks):
        finite, _ = _finite(chunk, arrays)
        scaled = (finite * scale).clip(-form.largest, form.largest)
        # A float32 with only its exponent bits kept is a power of two, and determines the distance to the next value.
        power = (arrays.words(scaled) & _EXPONENT).view(scaled.dtype)
        spacing = (power * 2.0**-form.fraction_bits).clip(min=form.spacing)
        rounded = (scaled / spacing).round() * spacing
        error = rounded - scaled
        table[i, 0] = ((rounded == 0) & (finite != 0)).sum()
        table[i, 1] = (abs(finite) > form.largest).sum()
        table[i, 2] = (error * error).sum()
    return table.sum(0)
