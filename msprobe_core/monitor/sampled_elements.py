"""Elements of large tensors at equal distances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msprobe_core.protocols.capabilities import MeasuringFramework


def sampled(tools: MeasuringFramework, tensors: Sequence[Any], most: int) -> Sequence[Any] | None:
    """Return the same elements of several tensors of one shape, each as a vector, and a view if possible.

    Args:
        tools: Knows the tensors.
        tensors: What belongs together.
        most: All are returned if there are not more than these, else some at equal distances in memory.

    Returns: ``None`` if one cannot be read, or if their shapes differ.
    """
    elements = tools.elements(tensors[0])
    return None if elements is None else tools.sampled(tensors, stride_of(math.prod(elements.shape), most))


def stride_of(size: int, most: int) -> int:
    """Return a distance of elements that leaves at most ``most``.

    It has no common factor with their number, so that all rows and columns are met, and evenly.
    """
    stride = max(1, math.ceil(size / most))
    while stride > 1 and math.gcd(stride, size) > 1:
        stride += 1
    return stride
