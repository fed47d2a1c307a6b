"""Which numbers a floating-point dtype has, and values rounded to it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Form(NamedTuple):
    """A floating-point dtype.

    Attributes:
        precision: Number of significant bits, the leading one included.
        least_exponent: Exponent of the smallest normal number.
        largest: Largest finite number.
        held_in: NumPy dtype that represents all of its numbers.
    """

    precision: int
    least_exponent: int
    largest: float
    held_in: str


FORMS = {
    "float64": Form(53, -1022, float(np.finfo(np.float64).max), "float64"),
    "float32": Form(24, -126, float(np.finfo(np.float32).max), "float32"),
    "float16": Form(11, -14, 65504.0, "float16"),
    "bfloat16": Form(8, -126, 3.3895313892515355e38, "float32"),
    "float8_e4m3fn": Form(4, -6, 448.0, "float32"),
    "float8_e4m3fnuz": Form(4, -7, 240.0, "float32"),
    "float8_e5m2": Form(3, -14, 57344.0, "float32"),
    "float8_e5m2fnuz": Form(3, -15, 57344.0, "float32"),
}
"""Sources: IEEE 754-2019, table 3.5; OCP OFP8, table 1; for bfloat16, float32 with 8 significant bits."""


def rounded(values: Array, dtype: str) -> Array:
    """Return float64 values rounded to a dtype, to nearest, ties to even, in the NumPy dtype that holds it.

    A number beyond the largest becomes Inf.

    Args:
        values: Of any shape.
        dtype: A key of `FORMS`.
    """
    form = FORMS[dtype]
    with np.errstate(all="ignore"):
        if dtype == form.held_in:
            return np.asarray(values).astype(dtype)
        wide = np.asarray(values, np.float64)
        _, exponents = np.frexp(wide)
        # frexp's fractions are below 1, so the last digit of a normal number is 2^(exponent - precision).
        digit = np.maximum(exponents, form.least_exponent + 1) - form.precision
        near = np.where(np.isfinite(wide), np.ldexp(np.rint(np.ldexp(wide, -digit)), digit), wide)
        near = np.where(np.isfinite(near) & (np.abs(near) > form.largest), np.sign(near) * np.inf, near)
        return np.asarray(near.astype(form.held_in))
