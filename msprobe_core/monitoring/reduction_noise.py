r"""How far a reduced gradient may be from the sum of the ranks' gradients by rounding alone, and what exceeds that.

A reduction rounds every element some ``n + 2`` times: partial sums of ``n`` ranks, a division, a clipping, and once
when the result is stored. A rounding to nearest with unit roundoff ``u`` is off by ``0.425 u`` of the rounded number in
the mean square (uniform within its interval, of a number whose logarithm is uniform within a binade: the root of
``(1 - 1/4) / (6 ln 2)``), and roundings of different elements and stages are independent. No partial sum is larger than

    S^2 = max(sum_r ||f u_r||^2, ||sum_r f u_r||^2)

in the mean of orders and gradients, where ``f`` is the factor of the reduction. So the error's norm has the mean square
``sigma^2 = (0.425 u)^2 (n + 2) S^2``. The sketch is linear and keeps norms: the 64 numbers of the error's sketch have
the mean square ``sigma^2 / 64`` each, and their squared norm is above

    sigma^2 chi2(d, 1 - a) / d

with probability ``a``, where ``d`` is the number of numbers among which the energy is spread: at most 64 and the number
of elements, less if few elements dominate. ``a`` is the rate of false alarms divided by the number of gradients.

``u`` is that of the gradients' dtype, or what the run itself shows if that is more, as with gradients in float32 that
are exchanged in bfloat16: the median, over all gradients, of what no combination of the ranks' gradients explains,
which a wrong combination does not raise. It is never taken to be above bfloat16's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

from msprobe_core.fingerprint.sketch import SIZE
from msprobe_core.monitoring.reduction_steps import Case, Floats

_ROUNDING = math.sqrt(0.75 / (6 * math.log(2)))
"""Root of the mean square of a rounding error, in units of ``u`` times the rounded number: 0.425."""

_ROUNDOFFS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_SKETCH_ROUNDOFF = 2.0**-24
_COARSEST = _ROUNDOFFS["bfloat16"]
_LEAST = 2.0**-24
"""Distance of float16's smallest numbers, within which a rounding error is uniform."""

_MEASURED_MARGIN = 1.5
"""Gradients differ in how they cancel, so that some have more noise than their median."""

_POWER = 0.95


@dataclass(frozen=True)
class Noise:
    """Limits of rounding.

    Attributes:
        measured: By dtype, the roundoff that the run shows; see `apparent_roundoff`.
        false_alarms: Probability that one gradient of a healthy run is above its limit.
    """

    measured: Mapping[str, float]
    false_alarms: float

    def sigma(self, case: Case, factor: float) -> float:
        """Return the root of the mean squared norm of a gradient's rounding error."""
        roundoff = max(_roundoff(case.dtype), min(_MEASURED_MARGIN * self.measured.get(case.dtype, 0.0), _COARSEST))
        num_roundings = case.num_elements * (len(case.ranks) + 2)
        tiny = _LEAST * math.sqrt(num_roundings / 12) if case.dtype.endswith(".float16") else 0.0
        return math.hypot(math.hypot(roundoff, _SKETCH_ROUNDOFF) * _unit(case, factor), tiny)

    def bounds(self, case: Case, factor: float) -> tuple[float, float]:
        """Return ``sigma``, and the norm that a rounding error exceeds with the probability of a false alarm."""
        sigma = self.sigma(case, factor)
        return sigma, sigma * _root_quantile(degrees_of(case), 1 - self.false_alarms)

    def visible(self, case: Case, factor: float) -> Floats:
        """Return by how much one rank's contribution must be scaled to be found in 19 of 20 cases, ``[ranks]``.

        A ratio: 0.01 is a contribution times 1.01 or 0.99. What it adds to the sketch must exceed the limit and the
        rounding errors that may cancel it. Infinite if the contribution is zero.
        """
        sigma, limit = self.bounds(case, factor)
        hidden = limit + sigma * _root_quantile(degrees_of(case), _POWER)
        with np.errstate(divide="ignore"):
            return hidden / (abs(factor) * np.linalg.norm(case.own, axis=1))


def apparent_roundoff(case: Case, reduced: Floats, shares: Floats) -> float | None:
    """Return the roundoff that would explain what no combination of the ranks' gradients does; ``None`` if any would.

    That is the distance of the reduced gradient from the space that the ranks' gradients span, in units of the noise
    that a roundoff of 1 makes there.
    """
    factor = float(np.abs(shares).mean())
    num_equations = min(SIZE, case.num_elements)
    num_free = num_equations - len(case.ranks)
    unit = _unit(case, factor)
    if num_free < SIZE / 4 or unit == 0:
        return None
    left = reduced - shares @ case.own
    return float(np.linalg.norm(left)) / unit * math.sqrt(num_equations / num_free)


def coefficients(own: Floats, reduced: Floats) -> Floats:
    """Return how much of each rank's sketch is in a reduced one, ``[ranks]``; the smallest solution if several fit."""
    return reduced @ np.linalg.pinv(own, rcond=1e-6)


def degrees_of(case: Case) -> int:
    """Return the number of independent numbers in the sketch of a rounding error.

    That is estimated by the participation ratio ``(sum e)^2 / sum e^2`` of the energies ``e``, each the sum of ``n``
    ranks' squares. If all numbers are normally distributed with one width, its mean is ``n / (n + 2)`` of their count;
    that is not made up for, as few large elements have more effect in the tail than on the ratio.
    """
    squares = (case.own**2).sum(axis=0)
    total = float((squares**2).sum())
    spread = float(squares.sum()) ** 2 / total if total else 1.0
    return max(1, min(SIZE, case.num_elements, round(spread)))


def median_roundoffs(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median by dtype."""
    return {dtype: float(np.median(values)) for dtype, values in found.items() if values}


def _unit(case: Case, factor: float) -> float:
    """Return the error that a roundoff of 1 makes, a norm."""
    apart = float((case.norms**2).sum())
    together = float((case.own.sum(axis=0) ** 2).sum())
    return _ROUNDING * abs(factor) * math.sqrt((len(case.ranks) + 2) * max(apart, together))


def _roundoff(dtype: str) -> float:
    return _ROUNDOFFS.get(dtype.rpartition(".")[2].lower(), _SKETCH_ROUNDOFF)


@cache
def _root_quantile(degrees: int, probability: float) -> float:
    """Return the root of a quantile of the chi-squared distribution, divided by its mean.

    Source: Wilson and Hilferty, *The Distribution of Chi-Square*, PNAS 17, 1931; with one degree of freedom the result
    is a tenth too large in the far tail.
    """
    width = 2 / (9 * degrees)
    deviate = NormalDist().inv_cdf(probability)
    return max(1 - width + deviate * math.sqrt(width), 0.0) ** 1.5
