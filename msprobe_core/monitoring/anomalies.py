"""Find what moved first in the history of one training, measured against that history itself.

The logarithm of a value's magnitude is compared with its own past: how far it is from the median of the last values, in
units of the median distance that these had from theirs (the median absolute deviation, times 1.4826, is the standard
deviation of a normal distribution).

How large such distances get without a fault is measured in the same training: the largest one of a quantity in each
step. The largest of many values follow a Gumbel distribution (Fisher, Tippett, Gnedenko), whose place and width are
taken from median and quartiles of the steps before, so that a fault does not widen its own limit. The limit is what
such a distribution exceeds with the probability that all steps and quantities share: the rate of false alarms.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import polars as pl

from msprobe_core.findings import Field, Finding, Level
from msprobe_core.monitoring.history import Monitored, Place, in_order, place_of
from msprobe_core.monitoring.monitoring_codes import AnomalyCode
from msprobe_core.monitoring.quantities import Quantity

HISTORY = 20
"""Values that must precede one that is judged; 2.5 times as many are looked back at."""

_WINDOW = 50
_SERIES = ["rank", "quantity", "stage", "name", "micro_step"]
_LEAST_SPREAD, _LEAST_CHANGE = 0.02, 1e-3
"""The least standard deviation of a logarithm, 2 %, and of its change in a step."""

_SMOOTH = [each.value for each in (Quantity.PARAM_ORIGIN, Quantity.PARAM_UPDATED, Quantity.EXP_AVG)]
"""Quantities that carry their value over from step to step: they drift, and what is judged is the change in a step."""

_SQUARED = Quantity.EXP_AVG_SQ.value
"""Second moments rise with the square of a gradient, at once, and fall slowly: only NaN, Inf and zero are judged."""

_TO_DEVIATION = 1.4826
_BLOCKS = 100
"""Steps whose largest distances a limit is taken from, `HISTORY` of them at least."""

_MEDIAN, _QUARTILES = -math.log(math.log(2)), math.log(math.log(4) / math.log(4 / 3))
"""Median and distance of the quartiles of a Gumbel distribution of place 0 and width 1: 0.3665 and 1.5725."""

_JUDGED = ("norm", "max", "min", "mean")


@dataclass(frozen=True, kw_only=True)
class Anomaly:
    """A value that its own past does not explain.

    Attributes:
        step: In which it appears.
        rank: Of the process.
        place: The value.
        statistic: That shows it.
        value: The statistic.
        usual: Median of its past; ``None`` if the value is not finite.
        distance: How far it is from that, in units of what is usual; infinite if it is not finite.
        limit: The distance that is allowed; ``None`` before enough steps have shown it.
    """

    step: int
    rank: int
    place: Place
    statistic: str
    value: float
    usual: float | None
    distance: float
    limit: float | None

    @property
    def finding(self) -> Finding:
        """The anomaly as a finding."""
        fields: dict[str, Field] = {"statistic": self.statistic, "value": self.value, "usual": self.usual}
        if not math.isfinite(self.value):
            return Finding(AnomalyCode.NOT_FINITE, Level.ERROR, {**fields, "value": str(self.value)})
        if self.value == 0:
            return Finding(AnomalyCode.BECAME_ZERO, Level.ERROR, fields)
        return Finding(AnomalyCode.MOVED, Level.ERROR, {**fields, "distance": self.distance, "limit": self.limit})


@dataclass(frozen=True, kw_only=True)
class Anomalies:
    """What is unusual in a training.

    Attributes:
        found: In the order of computation, at most as many as were asked for.
        num_found: How many there are.
        num_judged: Values that had enough of a past to be judged.
    """

    found: list[Anomaly]
    num_found: int
    num_judged: int


def find_anomalies(
    run: Monitored, *, false_alarms: float = 1e-3, most: int = 8, steps: Collection[int] = ()
) -> Anomalies:
    """Return the values that do not follow from their past, the first ones of all.

    Args:
        run: A training.
        false_alarms: Probability that a healthy training of this length has any.
        most: How many to return.
        steps: Steps to return anomalies of; empty for all.
    """
    statistic = next((name for name in _JUDGED if name in run.statistics), None)
    if statistic is None:
        return Anomalies(found=[], num_found=0, num_judged=0)
    rows = _with_distances(run.frame.sort("step", maintain_order=True), statistic)
    num_judged = rows["_distance"].count()
    rows = rows.join(_limits(rows, false_alarms), on=["quantity", "step"], how="left", maintain_order="left")
    is_unusual = (pl.col("_distance") > pl.col("_limit")).fill_null(False) | pl.col("_is_broken")
    found = in_order(rows.filter(is_unusual))
    found = found.filter(pl.col("step").is_in(list(steps))) if steps else found
    first = [_anomaly(row, statistic) for row in found.head(most).iter_rows(named=True)]
    return Anomalies(found=first, num_found=found.height, num_judged=num_judged)


def _with_distances(rows: pl.DataFrame, statistic: str) -> pl.DataFrame:
    """Return a history, in the order of steps, with what each value is compared with.

    Adds ``_value``; ``_before``, the median of its past; ``_distance``, null without enough of a past; ``_is_broken``:
    it is no longer finite, or has become zero.
    """
    value = pl.col(statistic)
    before, has_past = value.shift(1).over(_SERIES), pl.col("_log").cum_count().over(_SERIES) > HISTORY
    is_finite = value.is_finite().fill_null(True)
    nans = (pl.col("nans") > 0).fill_null(False) if "nans" in rows.columns else pl.lit(False)
    # What is infinite from the first is meant, as a mask is.
    is_meant = value.is_infinite() & (before.is_null() | before.is_infinite())
    became_zero = (value == 0) & (before != 0) & has_past
    rows = rows.with_columns(_value=value, _log=pl.when(is_finite & (value != 0)).then(value.abs().log()))
    is_smooth = pl.col("quantity").is_in(_SMOOTH)
    change = pl.col("_log") - pl.col("_log").shift(1).over(_SERIES)
    rows = rows.with_columns(_judged=pl.when(is_smooth).then(change).otherwise("_log"))
    rows = rows.with_columns(_apart=(pl.col("_judged") - _past("_judged").over(_SERIES)).abs())
    least = pl.when(is_smooth).then(_LEAST_CHANGE).otherwise(_LEAST_SPREAD)
    spread = pl.max_horizontal(_TO_DEVIATION * _past("_apart").over(_SERIES), least)
    is_judged = has_past & (pl.col("quantity") != _SQUARED)
    return rows.with_columns(
        _before=_past("_log").over(_SERIES).exp(),
        _distance=pl.when(is_judged).then(pl.col("_apart") / spread),
        _is_broken=((~is_finite | nans) & ~is_meant) | became_zero.fill_null(False),
    )


def _anomaly(row: dict[str, Any], statistic: str) -> Anomaly:
    return Anomaly(
        step=row["step"],
        rank=row["rank"],
        place=place_of(row),
        statistic=statistic,
        value=row["_value"],
        usual=row["_before"],
        distance=math.inf if row["_is_broken"] else row["_distance"],
        limit=row["_limit"],
    )


def _past(column: str) -> pl.Expr:
    """Return the median of a series' values before each one."""
    return pl.col(column).rolling_median(_WINDOW, min_samples=HISTORY // 2).shift(1)


def _limits(rows: pl.DataFrame, false_alarms: float) -> pl.DataFrame:
    """Return the largest distance that is allowed, by quantity and step; null of steps without enough before them."""
    largest = rows.filter(pl.col("_distance").is_finite()).group_by("quantity", "step").agg(pl.col("_distance").max())
    largest = largest.sort("quantity", "step")

    def past(quantile: float) -> pl.Expr:
        share = pl.col("_distance").rolling_quantile(quantile, "linear", _BLOCKS, min_samples=HISTORY)
        return share.shift(1).over("quantity")

    width = (past(0.75) - past(0.25)) / _QUARTILES
    place = past(0.5) - _MEDIAN * width
    shared = -math.log1p(-false_alarms) / max(largest.height, 1)  # of one step and quantity
    return largest.select("quantity", "step", _limit=place - width * math.log(shared))
