"""What is unusual of a value in the history of a training: the definition that live and later judgements share.

A value is judged by the logarithm of its magnitude, and by its distance from the median of up to `WINDOW` values
before it, in units of the median of the distances that these had (times `TO_DEVIATION`, the standard deviation of a
normal distribution). The largest distance of a quantity in each step follows a Gumbel distribution (Fisher, Tippett,
Gnedenko), whose place and width come from median and quartiles of the steps before; see `limit_of`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from msprobe_core.monitoring.quantities import Quantity

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

HISTORY = 20
"""Values that must precede one that is judged; 2.5 times as many are looked back at."""

WINDOW = 50
LEAST_SPREAD, LEAST_CHANGE = 0.02, 1e-3
"""The least standard deviation of a logarithm, 2 %, and of its change in a step."""

SMOOTH = [each.value for each in (Quantity.PARAM_ORIGIN, Quantity.PARAM_UPDATED, Quantity.EXP_AVG)]
"""Quantities that carry their value over from step to step: they drift, and what is judged is the change in a step."""

SQUARED = Quantity.EXP_AVG_SQ.value
"""Second moments rise with the square of a gradient, at once, and fall slowly: only NaN, Inf and zero are judged."""

TO_DEVIATION = 1.4826
BLOCKS = 100
"""Steps whose largest distances a limit is taken from, `HISTORY` of them at least."""

LEAST_LIMIT = 5.0
"""Distance that is never an anomaly: values that drift together are all about as far, which makes limits too narrow."""

JUDGED = ("norm", "max", "min", "mean")
"""Operations, of which the first that a training has is judged."""

FALSE_ALARMS = 1e-3
"""Probability that a healthy training has any anomaly, unless another is asked for."""

_MEDIAN, _QUARTILES = -math.log(math.log(2)), math.log(math.log(4) / math.log(4 / 3))
"""Median and distance of the quartiles of a Gumbel distribution of place 0 and width 1: 0.3665 and 1.5725."""

_UNSURE = 2 * 1.26
"""Two standard errors of the width of one value, relatively: of n values, the distance of the quartiles of a Gumbel
distribution has the standard deviation 1.98 / sqrt(n), by the asymptotic covariance of sample quantiles."""

_Numbers = TypeVar("_Numbers", "NDArray[np.float64]", "pl.Expr", float)


def unsure_of(root: _Numbers) -> _Numbers:
    """Return by which factor the width of a distribution may be larger than its quartiles show.

    A limit is far beyond what has been seen, so that an error of the width counts many times.

    Args:
        root: Square root of the number of values that the quartiles are of.
    """
    return 1 + _UNSURE / root


def limit_of(low: _Numbers, middle: _Numbers, high: _Numbers, share: float, *, unsure: _Numbers) -> _Numbers:
    """Return the distance that the largest one of a step exceeds with a given probability.

    Args:
        low: Lower quartile of the largest distances of the steps before.
        middle: Their median.
        high: Their upper quartile.
        share: The probability.
        unsure: Of `unsure_of`.
    """
    width = (high - low) / _QUARTILES * unsure
    return middle - _MEDIAN * width - width * math.log(share)


def equal_share(false_alarms: float, num_judged: int) -> float:
    """Return the probability of a false alarm in each of a known number of quantities and steps.

    Args:
        false_alarms: Probability that there is any.
        num_judged: Quantities and steps.
    """
    return -math.log1p(-false_alarms) / max(num_judged, 1)


def running_share(false_alarms: float, number: int) -> float:
    """Return the probability of a false alarm in one quantity and step of a training whose length is not known.

    It falls as ``1 / (n (1 + ln n)^2)``, whose sum over all n is below 2, so that a training of any length keeps the
    whole probability (alpha spending; Foster and Stine, "alpha-investing", 2008). After 1,000 it makes a limit
    larger by 4.8 widths than `equal_share` of as many.

    Args:
        false_alarms: Probability that there is any.
        number: Of the quantity and step, from 1.
    """
    return -math.log1p(-false_alarms) / (2 * number * (1 + math.log(number)) ** 2)
