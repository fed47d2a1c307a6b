"""The values of one tensor in short: statistics, the first ones, and a histogram."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from msprobe_core.protocols.storage import TensorSource
from msprobe_core.store.tensor_statistics import statistics_of

_CHUNK = 1 << 18
NUM_BINS = 10


@dataclass(frozen=True)
class Summary:
    """Values of a tensor.

    Attributes:
        statistics: See `msprobe_core.store.tensor_statistics.statistics_of`.
        first: The first values in C order, as text.
        edges: Edges of the histogram's bins, one more than bins; empty if there is none.
        counts: Number of finite values in each bin; of complex values, their magnitudes.
    """

    statistics: Mapping[str, float]
    first: Sequence[str]
    edges: Sequence[float] = ()
    counts: Sequence[int] = ()


def summary_of(source: TensorSource, num_values: int) -> Summary:
    """Return the values of a tensor in short; it is read twice, in pieces.

    Args:
        source: The tensor.
        num_values: How many of its first values.

    Raises:
        DumpError: it cannot be read.
    """
    first: list[str] = []
    low, high = math.inf, -math.inf
    for values in source.chunks(_CHUNK):
        if len(first) < num_values:
            first += [_text_of(value) for value in values[: num_values - len(first)].tolist()]
        finite = _finite(values)
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    statistics = statistics_of(source)
    if low > high:
        return Summary(statistics, first)
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = [low + (high - low) * i / NUM_BINS for i in range(NUM_BINS + 1)]
    edges[-1] = high
    if not math.isfinite(high - low) or any(a >= b for a, b in itertools.pairwise(edges)):
        return Summary(statistics, first)
    counts = np.zeros(NUM_BINS, np.int64)
    for values in source.chunks(_CHUNK):
        counts += np.histogram(_finite(values), edges)[0]
    return Summary(statistics, first, edges, counts.tolist())


def _finite(values: Any) -> Any:
    """Return the finite values as float64; of complex ones the magnitudes, of text none."""
    if values.dtype.kind not in "biufc":
        return np.empty(0)
    reals: Any = np.abs(values) if values.dtype.kind == "c" else values
    wide: Any = reals.astype(np.float64)
    return wide[np.isfinite(wide)]


def _text_of(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)
