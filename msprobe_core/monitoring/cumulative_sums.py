"""Cumulative sums (CUSUM, Page 1954): a small departure from zero that stays is found in many steps.

How high a sum may get follows from the rate of false alarms by Siegmund's approximation of the average run length,
``(exp(2 k b) - 2 k b - 1) / (2 k^2)`` for the height ``b - 1.166`` in standard deviations, where ``k`` is the slack
(Siegmund, Sequential Analysis, 1985).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]

_SLACK = 0.25
"""Of the cumulative sum, in standard deviations: half of the departure that is found soonest."""

_CLIPPED = 3.0
"""Standard deviations that one step can add to the sum."""

_LEAST_SPREAD = 0.01
"""Least standard deviation of a logarithm: departures of less than half of this are not found."""

_TO_DEVIATION = 1.4826
_OVERSHOOT = 1.166
_LEAST_STEPS = 20


def height_of(num_values: int, false_alarms: float) -> float:
    """Return the height that any of the sums of healthy values exceeds with a probability.

    Args:
        num_values: Of all sums.
        false_alarms: The probability.
    """
    return math.log(2 * _SLACK**2 * 2 * num_values / false_alarms) / (2 * _SLACK) - _OVERSHOOT


def median(values: Floats, axis: int) -> Floats:
    """Return the median of what is not NaN; NaN if nothing is."""
    ordered = np.sort(values, axis=axis)  # NaN come last
    count = np.sum(~np.isnan(values), axis=axis, keepdims=True)
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, values.shape[axis] - 1)
    middle = np.take_along_axis(ordered, low, axis) + np.take_along_axis(ordered, high, axis)
    return np.squeeze(middle / 2, axis)


@dataclass(frozen=True)
class Risen:
    """A cumulative sum that exceeds its height: in which line, from which column on and up to which, and its mean."""

    line: int
    begin: int
    until: int
    mean: float


def risen_lines(values: Floats, height: float) -> Iterator[Risen]:
    """Yield the lines whose cumulative sum exceeds a height, in either direction."""
    is_there = ~np.isnan(values)
    changes = np.abs(np.diff(values, axis=1))
    count = np.sum(~np.isnan(changes), axis=1)
    # By changes from step to step, which a departure that stays does not widen; more of what few steps show.
    spread = _TO_DEVIATION * median(changes, axis=1) / math.sqrt(2) * (1 + 2 / np.sqrt(np.maximum(count, 1)))
    spread = np.maximum(np.where(np.isnan(spread), np.inf, spread), _LEAST_SPREAD)
    scores = np.minimum(np.maximum(np.where(is_there, values, 0) / spread[:, None], -_CLIPPED), _CLIPPED)
    for sign in (1, -1):
        total, is_open = np.zeros(len(values)), count >= _LEAST_STEPS
        for step in range(values.shape[1]):
            total = np.maximum(total + np.where(is_there[:, step], sign * scores[:, step] - _SLACK, 0), 0)
            for line in np.flatnonzero(is_open & (total > height)).tolist():
                begin = _onset(sign * scores[line, : step + 1])
                yield Risen(line, begin, step, float(np.nanmean(values[line, begin : step + 1])))
                is_open[line] = False


def _onset(scores: Floats) -> int:
    """Return the most likely step of a change of the mean, by maximum likelihood: all before have mean 0."""
    sums = np.cumsum(scores[::-1])[::-1]
    return int(np.argmax(np.maximum(sums, 0) ** 2 / np.arange(len(scores), 0, -1)))
