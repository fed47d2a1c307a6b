"""Distribution of scores of healthy rows, by measure, and the resulting limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from msprobe_core.judge.noise import student
from msprobe_core.judge.noise.measures import Measure

EXTREME_LIMIT = 15.0
"""Minimum limit of single elements, such as extremes, and of vectors, which have no rows to average over."""

LEAST_LIMITS: Mapping[Measure, float] = {
    measure: 4.0 if measure is Measure.REL_L2 else 7.0 if measure.averages else EXTREME_LIMIT for measure in Measure
}
"""Minimum limits, whatever the repetitions show.

Repetitions are few, and other kernels are not quite repetitions. Extremes are single elements, whose errors have long
tails.

Measured on tiny Llama, GPT-2 and BERT, bfloat16 and float32, two steps, with other kernels, sums in two parts, other
positions of samples and two threads: healthy scores of up to 3.7 for the distance, 5.6 for averaged measures, 13 for
extremes and vectors.
"""

MOST_LIMIT = 1e3


class ScoreDistribution(msgspec.Struct, frozen=True):
    """The distribution of a healthy row's score ``error / floor``.

    Attributes:
        dof: Degrees of freedom of Student's t distribution.
        factor: Factor of its quantiles.
        is_log: Whether it is the distribution of the score's logarithm, as for a distance, which is positive and has
            the same size each time; otherwise of the score itself, which has a sign and may be near zero by chance.
        least: Lower bound of limits; see `LEAST_LIMITS`.
        most: Upper bound of limits, unless it is below ``least``.
    """

    dof: float
    factor: float
    is_log: bool = False
    least: float = 3.0
    most: float = MOST_LIMIT

    def limit(self, probability: float) -> float:
        """Return the score that a healthy row exceeds with ``probability``, at least ``least``."""
        quantile = _quantile(self.dof, self.factor, self.is_log, probability)
        return min(max(min(quantile, self.most), self.least), MOST_LIMIT)

    def rarer(self, probability: float, share: float) -> float:
        """Return the score that is ``share`` times as likely as the limit; in proportion if the limit is ``least``."""
        quantiles = [_quantile(self.dof, self.factor, self.is_log, p) for p in (probability * share, probability)]
        return self.limit(probability) * quantiles[0] / quantiles[1]


@lru_cache(1024)
def _quantile(dof: float, factor: float, is_log: bool, probability: float) -> float:
    quantile = student.limit_of(probability, dof) * factor
    return math.exp(min(quantile, 50.0)) if is_log else quantile


ScoreDistributions = Mapping[Measure, ScoreDistribution]
