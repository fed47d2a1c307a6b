"""Limits on the distances in a history, as a rate of false alarms; `msprobe_core.monitoring.unusual` defines them."""

from __future__ import annotations

import polars as pl

from msprobe_core.monitoring.unusual import BLOCKS, HISTORY, WINDOW, equal_share, limit_of, unsure_of


def past_median(column: str) -> pl.Expr:
    """Return the median of a series' values before each one."""
    return pl.col(column).rolling_median(WINDOW, min_samples=HISTORY // 2).shift(1)


def past_medians(rows: pl.DataFrame, column: str, series: str) -> pl.Series:
    """Return `past_median` of a column over series, for all rows.

    Nulls with which a series begins are in no median, so they are left out before: with any, polars takes twice as
    long.

    Args:
        rows: Those of a series in the order of steps.
        column: Of numbers.
        series: The column that tells series apart.
    """
    has_begun = pl.col(column).cum_count().over(series) > 0
    begun = rows.select(series, column, _row=pl.int_range(pl.len())).filter(has_begun)
    medians = begun.select("_row", _past=past_median(column).over(series))
    every = rows.select(_row=pl.int_range(pl.len()))
    return every.join(medians, on="_row", how="left", maintain_order="left")["_past"]


def largest_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the largest ``_distance`` by quantity and step."""
    is_judged = pl.col("_distance").is_finite()
    judged = rows.select("quantity", "step", "_distance").filter(is_judged)
    return judged.group_by("quantity", "step").agg(pl.col("_distance").max())


def limits_by_past(largest: pl.DataFrame, false_alarms: float) -> pl.DataFrame:
    """Return ``_limit``, the largest distance that is allowed, by quantity and step; null without enough steps before.

    Args:
        largest: Of `largest_of`; of several ranks, one after the other.
        false_alarms: Probability that any distance of all exceeds its limit by chance.
    """
    largest = largest.group_by("quantity", "step").agg(pl.col("_distance").max()).sort("quantity", "step")

    def past(quantile: float) -> pl.Expr:
        share = pl.col("_distance").rolling_quantile(quantile, "linear", BLOCKS, min_samples=HISTORY)
        return share.shift(1).over("quantity")

    count = pl.col("_distance").cum_count().shift(1).over("quantity").clip(upper_bound=BLOCKS)
    share = equal_share(false_alarms, largest.height)
    limit = limit_of(past(0.25), past(0.5), past(0.75), share, unsure=unsure_of(count.sqrt()))
    return largest.select("quantity", "step", _limit=limit)


def limit_of_all(largest: pl.Expr, false_alarms: float, num_tests: int) -> pl.Expr:
    """Return the limit that follows from all of the largest distances, which have no fault.

    Args:
        largest: Of steps, or of steps and repetitions.
        false_alarms: Probability that any distance of all exceeds its limit by chance.
        num_tests: Quantities times steps.
    """
    low, middle, high = (largest.quantile(share, "linear") for share in (0.25, 0.5, 0.75))
    share = equal_share(false_alarms, num_tests)
    return limit_of(low, middle, high, share, unsure=unsure_of(largest.count().sqrt()))
