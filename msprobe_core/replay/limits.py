"""What is allowed of one output, in a few numbers: for scripts that judge results without replays of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is allowed of one output.

    Attributes:
        is_exact: Whether elements are compared for equality: integers and booleans.
        rounding: Allowed norm of the error, relative to that of the exact result.
        condition: Norm of the error that rounding the inputs explains; allowed too.
        absolute: Allowed error of an element whose exact value is 0.
        relative: What is allowed in addition, per magnitude of the exact element.
        largest: Magnitude of an exact element beyond which the result is infinite.
        num_different: Allowed number of elements that differ, or, of floating-point results, are unexpectedly NaN or
            Inf.
    """

    is_exact: bool = False
    rounding: float = 0.0
    condition: float = 0.0
    absolute: float = 0.0
    relative: float = 0.0
    largest: float = float("inf")
    num_different: int = 0


_STEEPEST = 64


def cover(magnitudes: Array, allowed: Array, roundoff: float) -> tuple[float, float]:
    """Return ``absolute`` and ``relative``, so that ``absolute + relative * magnitudes >= allowed`` everywhere.

    Of several such pairs it is the one with the smallest sum over all elements.

    Args:
        magnitudes: Magnitudes of the exact elements.
        allowed: Allowed error of each.
        roundoff: Unit round-off of the result, which ``relative`` is a multiple of.
    """
    if not allowed.size:
        return 0.0, 0.0

    def pair(relative: float) -> tuple[float, float, float]:
        absolute = max(float(np.max(allowed - relative * magnitudes)), float(np.min(allowed)))
        return absolute + relative * float(np.mean(magnitudes)), absolute, relative

    return min(pair(multiple * roundoff) for multiple in (0, *(2**k for k in range(_STEEPEST.bit_length()))))[1:]
