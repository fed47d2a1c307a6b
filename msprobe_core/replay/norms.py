"""Norms of errors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def norm_of(values: NDArray[Any]) -> float:
    """Return the Euclidean norm of finite values, which neither overflows nor loses small ones."""
    largest = float(np.max(np.abs(values), initial=0.0))
    if largest == 0.0 or not np.isfinite(largest):
        return largest
    return largest * float(np.linalg.norm(np.ravel(values) / largest))
