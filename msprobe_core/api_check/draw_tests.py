"""Statistical tests of random draws; scripts of single calls have copies of these functions.

The p-values are upper bounds for any number of elements, but for that of the places, which is the limit for many:

* binomial: Chernoff, *A Measure of Asymptotic Efficiency for Tests of a Hypothesis Based on the Sum of Observations*,
  Ann. Math. Stat. 23(4), 1952, in the form ``exp(-n KL(k/n || p))`` of Hoeffding, JASA 58, 1963, Theorem 1;
* distance from a distribution: Dvoretzky, Kiefer, Wolfowitz with the constant of Massart, *The Tight Constant in the
  Dvoretzky-Kiefer-Wolfowitz Inequality*, Ann. Prob. 18(3), 1990;
* distance of two samples: Smirnov, *Table for Estimating the Goodness of Fit*, Ann. Math. Stat. 19(2), 1948.
"""

# The arrays of scripts have no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

LEVEL = 1e-7
"""Largest p-value that is called wrong."""

TOLERANCE = 3.0
"""In units of round-off: kernels round 1 / (1 - p), and the product."""


def binomial_bound(count: int, number: int, chance: float) -> float:
    """Return an upper bound of the two-sided p-value of a count of independent events with the same chance."""
    share, divergence = count / max(number, 1), 0.0
    for part, of in ((share, chance), (1.0 - share, 1.0 - chance)):
        if part > 0.0:
            divergence += part * math.log(part / of) if of > 0.0 else math.inf
    return min(1.0, 2.0 * math.exp(-min(number * divergence, 700.0))) if number else 1.0


def distance_bound(distance: float, number: float) -> float:
    """Return an upper bound of the p-value of the largest distance of an empirical distribution from the true one."""
    return min(1.0, 2.0 * math.exp(-min(2.0 * number * distance * distance, 700.0)))


def places_bound(is_dropped: Any) -> float:
    """Return the p-value of the distance between the places of dropped and of kept elements."""
    number, dropped = int(is_dropped.size), int(np.count_nonzero(is_dropped))
    kept = number - dropped
    if not dropped or not kept:
        return 1.0
    sums = np.cumsum(is_dropped, dtype=np.float64)
    distance = float(np.max(np.abs(sums / dropped - (np.arange(1.0, number + 1) - sums) / kept)))
    return distance_bound(distance, dropped * kept / number)


def pairs(marks: Any, is_valid: Any, least: float, most: float) -> Iterator[tuple[int, float]]:
    """Yield for up to 4 dimensions the lag to the next element in it, and the p-value of how many are marked together.

    Pairs have no element in common, so they are independent. The chance that an element is marked is between ``least``
    and ``most``; the p-value is that of the chance that explains the count best.
    """
    flat, valid, shape = marks.reshape(-1), is_valid.reshape(-1), marks.shape
    for lag in sorted({math.prod(shape[axis + 1 :]) for axis in range(len(shape)) if shape[axis] > 1})[:4]:
        usable = flat.size // (2 * lag) * 2 * lag
        halves, both = flat[:usable].reshape(-1, 2, lag), valid[:usable].reshape(-1, 2, lag).all(1)
        number, count = int(np.sum(both)), int(np.sum(halves.all(1) & both))
        chance = min(max(count / max(number, 1), least * least), most * most)
        yield lag, binomial_bound(count, number, chance)


def distance_of(values: Any, roundoff: float, span: float, distribution: Callable[[Any], Any]) -> float:
    """Return the largest distance of sorted values from a distribution, beyond what rounding them explains."""
    width, steps = roundoff * np.maximum(np.abs(values), span), np.linspace(0.0, 1.0, values.size + 1)
    above = np.max(steps[1:] - distribution(values + width))
    below = np.max(distribution(values - width) - steps[:-1])
    return max(float(above), float(below), 0.0)


# --- cumulative distribution functions ----------------------------------------------------------------------------


def uniform(values: Any, first: float, second: float) -> Any:
    """Return that of the numbers between ``first`` and ``second``."""
    return np.minimum(np.maximum((values - first) / ((second - first) or 1.0), 0.0), 1.0)


def exponential(values: Any, first: float, second: float) -> Any:  # noqa: ARG001  # they have the same arguments
    """Return that of the rate ``first``."""
    return -np.expm1(-first * np.maximum(values, 0.0))


def normal(values: Any, first: float, second: float) -> Any:
    """Return that of the mean ``first`` and the deviation ``second``, with an error below 3e-7.

    Source: Abramowitz and Stegun, *Handbook of Mathematical Functions*, 7.1.28.
    """
    scaled = (values - first) / second
    size = np.abs(scaled) / math.sqrt(2.0)
    sums = 1.0 + size * (0.0705230784 + size * (0.0422820123 + size * (
        0.0092705272 + size * (0.0001520143 + size * (0.0002765672 + size * 0.0000430638)))))  # fmt: skip
    with np.errstate(over="ignore"):
        tail = 0.5 * sums**-16
    return tail + (scaled >= 0) * (1.0 - 2.0 * tail)
