"""Limits on distances, as a rate of false alarms.

The largest of many distances follows a Gumbel distribution (Fisher, Tippett, Gnedenko). Its place and width are taken
from median and quartiles, so that a few large ones do not widen them, and the limit is what such a distribution exceeds
with the probability that all steps and quantities share.
"""

from __future__ import annotations

import math

import polars as pl

HISTORY = 20
"""Values that must precede one that is judged; 2.5 times as many are looked back at."""

_WINDOW = 50
_BLOCKS = 100
"""Steps whose largest distances a limit is taken from, `HISTORY` of them at least."""

_MEDIAN, _QUARTILES = -math.log(math.log(2)), math.log(math.log(4) / math.log(4 / 3))
"""Median and distance of the quartiles of a Gumbel distribution of place 0 and width 1: 0.3665 and 1.5725."""


def past_median(column: str) -> pl.Expr:
    """Return the median of a series' values before each one."""
    return pl.col(column).rolling_median(_WINDOW, min_samples=HISTORY // 2).shift(1)


def largest_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the largest ``_distance`` by quantity and step."""
    is_judged = pl.col("_distance").is_finite()
    return rows.filter(is_judged).group_by("quantity", "step").agg(pl.col("_distance").max())


def limits_by_past(largest: pl.DataFrame, false_alarms: float) -> pl.DataFrame:
    """Return ``_limit``, the largest distance that is allowed, by quantity and step; null without enough steps before.

    Args:
        largest: Of `largest_of`; of several ranks, one after the other.
        false_alarms: Probability that any distance of all exceeds its limit by chance.
    """
    largest = largest.group_by("quantity", "step").agg(pl.col("_distance").max()).sort("quantity", "step")

    def past(quantile: float) -> pl.Expr:
        share = pl.col("_distance").rolling_quantile(quantile, "linear", _BLOCKS, min_samples=HISTORY)
        return share.shift(1).over("quantity")

    limit = _limit(past(0.25), past(0.5), past(0.75), false_alarms, largest.height)
    return largest.select("quantity", "step", _limit=limit)


def limit_of_all(largest: pl.Expr, false_alarms: float, num_tests: int) -> pl.Expr:
    """Return the limit that follows from all of the largest distances, which have no fault.

    Args:
        largest: Of steps, or of steps and repetitions.
        false_alarms: Probability that any distance of all exceeds its limit by chance.
        num_tests: Quantities times steps.
    """
    return _limit(*(largest.quantile(share, "linear") for share in (0.25, 0.5, 0.75)), false_alarms, num_tests)


def _limit(lower: pl.Expr, median: pl.Expr, upper: pl.Expr, false_alarms: float, num_tests: int) -> pl.Expr:
    width = (upper - lower) / _QUARTILES
    shared = -math.log1p(-false_alarms) / max(num_tests, 1)  # of one step and quantity
    return median - (_MEDIAN + math.log(shared)) * width
