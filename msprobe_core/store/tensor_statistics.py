"""Statistics of a stored tensor, which is read once, in pieces."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe_core.protocols.storage import TensorSource

_CHUNK = 1 << 18


def statistics_of(source: TensorSource) -> Mapping[str, float]:
    """Return the fields of `msprobe_core.model.Stats`, with sums in float64; empty for a tensor without numbers."""
    if source.dtype == "text" or 0 in source.shape:
        return {}
    parts = [_part_of(values) for values in source.chunks(_CHUNK) if values.size]
    numel = math.prod(source.shape)
    maxima, minima, totals, norms, nans, infinities = zip(*parts, strict=True)
    counts = {"num_nan": sum(nans), "num_inf": sum(infinities)}
    if sum(nans):
        return dict.fromkeys(("max", "min", "mean", "norm"), math.nan) | counts
    return {
        "max": max(maxima), "min": min(minima), "mean": sum(totals) / numel, "norm": math.hypot(*norms),
    } | counts  # fmt: skip


def _part_of(values: NDArray[Any]) -> tuple[float, float, float, float, int, int]:
    """Return maximum, minimum, sum, norm, and the numbers of NaN and Inf."""
    num_nan = int(np.count_nonzero(np.isnan(values)))
    num_inf = int(np.count_nonzero(np.isinf(values)))
    reals: Any = np.abs(values) if np.iscomplexobj(values) else values
    wide: Any = reals.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(wide.max()), float(wide.min()), float(wide.sum()), float(np.linalg.norm(wide)), num_nan, num_inf
