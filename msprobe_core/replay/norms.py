"""Norms of errors, and slices of large tensors to compute them in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_LENGTH = 1 << 16
"""Elements in a slice: half a MiB in float64, which takes little memory, and stays in the cache."""


def slices_of(size: int) -> list[slice]:
    """Return slices that together cover ``size`` elements; there is one at least."""
    return [slice(first, min(first + _LENGTH, size)) for first in range(0, max(size, 1), _LENGTH)]


def norm_of(values: NDArray[Any]) -> float:
    """Return the Euclidean norm of finite values, which neither overflows nor loses small ones."""
    largest = float(np.max(np.abs(values), initial=0.0))
    if largest == 0.0 or not np.isfinite(largest):
        return largest
    return largest * float(np.linalg.norm(np.ravel(values) / largest))
