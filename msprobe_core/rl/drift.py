"""Whether the difference of two engines grows over the steps of a training, though each step by itself passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

FEWEST_STEPS = 8
MAX_GROWTH = 2.0
"""Growth over all steps that passes by default."""

_Z = 3.29
"""Quantile of the normal distribution for one false alarm in 2,000 trainings without a trend."""


@dataclass(frozen=True)
class Drift:
    """Trend of a measure over steps.

    Attributes:
        first: Value at the first step, by the fitted line.
        last: Value at the last step, by the fitted line.
        z: Statistic of the test of Mann and Kendall; standard normal if there is no trend.
    """

    first: float
    last: float
    z: float

    @property
    def growth(self) -> float:
        """The last over the first."""
        return self.last / self.first

    def is_over(self, max_growth: float) -> bool:
        """Whether the trend is no chance, and larger than allowed."""
        return self.z > _Z and self.growth > max_growth


def drift_of(steps: Sequence[int], values: Sequence[float]) -> Drift | None:
    """Return the trend of positive values; ``None`` for too few.

    Source: Mann, *Nonparametric tests against trend*, 1945; the slope of the logarithms is that of Sen, *Estimates of
    the regression coefficient based on Kendall's tau*, 1968. Both are insensitive to single outliers.

    Args:
        steps: Numbers of the steps, ascending.
        values: The measure at each.
    """
    points = [(step, math.log(value)) for step, value in zip(steps, values, strict=True) if value > 0]
    n = len(points)
    if n < FEWEST_STEPS:
        return None
    pairs = list(combinations(points, 2))
    score = sum((b[1] > a[1]) - (b[1] < a[1]) for a, b in pairs)
    spread = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    z = (score - math.copysign(1, score)) / spread if score else 0.0
    slope = median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs)
    level = median(value - slope * step for step, value in points)
    first, last = (math.exp(level + slope * points[at][0]) for at in (0, -1))
    return Drift(first, last, z)
