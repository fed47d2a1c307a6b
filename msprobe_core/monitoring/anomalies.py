"""Find what moved first in the history of one training, measured against that history itself.

The logarithm of a value's magnitude is compared with its own past: how far it is from the median of the last values, in
units of the median distance that these had from theirs (the median absolute deviation, times 1.4826, is the standard
deviation of a normal distribution). How large such distances get without a fault is measured in the same training, by
the largest one of a quantity in each step before, so that a fault does not widen its own limit; see `limits`.

`certain_signs` and `replicas` find what a value's own past does not show.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from msprobe_core.findings import Field, Finding, Level
from msprobe_core.monitoring.certain_signs import always_zero, unchanged, with_repeats
from msprobe_core.monitoring.history import ID, SCHEMA, Monitored, Place, in_order, place_of, with_ids
from msprobe_core.monitoring.limits import largest_of, limits_by_past, past_median, past_medians
from msprobe_core.monitoring.monitoring_codes import AnomalyCode
from msprobe_core.monitoring.replicas import Replicas
from msprobe_core.monitoring.unusual import (
    HISTORY,
    JUDGED,
    LEAST_CHANGE,
    LEAST_LIMIT,
    LEAST_SPREAD,
    SMOOTH,
    SQUARED,
    TO_DEVIATION,
)

_COLUMNS = {
    **SCHEMA, "_code": pl.String, "_statistic": pl.String, "_value": pl.Float64, "_before": pl.Float64,
    "_distance": pl.Float64, "_limit": pl.Float64, "_steps": pl.Int64, "_other": pl.Int64, "_percent": pl.Float64,
}  # fmt: skip
"""Of what was found: where, and what its finding is made of."""

_FIELDS: Mapping[AnomalyCode, Mapping[str, str]] = {
    AnomalyCode.MOVED: {"usual": "_before", "distance": "_distance", "limit": "_limit"},
    AnomalyCode.NOT_FINITE: {"usual": "_before"},
    AnomalyCode.BECAME_ZERO: {"usual": "_before"},
    AnomalyCode.ALWAYS_ZERO: {"others": "_before", "steps": "_steps"},
    AnomalyCode.UNCHANGED: {},
    AnomalyCode.SAME_DATA: {"other": "_other"},
    AnomalyCode.REPLICAS_DIFFER: {},
    AnomalyCode.BEYOND_MEAN: {"others": "_before"},
    AnomalyCode.RANK_DEPARTS: {"percent": "_percent", "until": "_steps"},
}
"""Fields of findings, and the columns that they are in."""


@dataclass(frozen=True, kw_only=True)
class Anomaly:
    """A value that neither its own past nor the other ranks explain.

    Attributes:
        step: In which it appears.
        rank: Of the process.
        place: The value.
        statistic: That shows it.
        value: The statistic; ``None`` if the finding is not about one number.
        code: What it does.
        fields: Of the finding, besides statistic and value.
    """

    step: int
    rank: int
    place: Place
    statistic: str
    value: float | None
    code: AnomalyCode
    fields: Mapping[str, Field]

    @property
    def finding(self) -> Finding:
        """The anomaly as a finding."""
        value = self.value if self.value is None or math.isfinite(self.value) else str(self.value)
        return Finding(self.code, Level.ERROR, {"statistic": self.statistic, "value": value, **self.fields})


@dataclass(frozen=True, kw_only=True)
class Anomalies:
    """What is unusual in a training.

    Attributes:
        found: In the order of computation, at most as many as were asked for.
        num_found: How many there are.
        num_judged: Values that had enough of a past, or of other ranks, to be judged.
    """

    found: list[Anomaly]
    num_found: int
    num_judged: int


def find_anomalies(
    run: Monitored, *, false_alarms: float = 1e-3, most: int = 8, steps: Collection[int] = ()
) -> Anomalies:
    """Return the values that do not follow from their past or from other ranks, the first ones of all.

    Args:
        run: A training.
        false_alarms: Probability that a healthy training of this length has any.
        most: How many to return.
        steps: Steps to return anomalies of; empty for all.
    """
    of_ranks = (replace(run, frame=frame) for frame in run.frame.partition_by("rank", maintain_order=True))
    return anomalies_of_ranks(of_ranks, false_alarms=false_alarms, most=most, steps=steps)


def anomalies_of_ranks(
    runs: Iterable[Monitored], *, false_alarms: float = 1e-3, most: int = 8, steps: Collection[int] = ()
) -> Anomalies:
    """Return the same of a training whose ranks are given one after the other, so that they need not fit in memory."""
    replicas = Replicas()
    num_judged = 0
    far: list[pl.DataFrame] = []
    found: list[pl.DataFrame] = []
    largest: list[pl.DataFrame] = []
    for run in runs:
        statistics = [name for name in JUDGED if name in run.statistics]
        if not statistics or not run.frame.height:
            continue
        rows = with_repeats(with_ids(run.frame), statistics, run.resolution)
        replicas.add(rows, statistics, run.resolution)
        found += [
            _named(part, statistics[0])
            for part in (
                unchanged(rows, statistics[0]), always_zero(rows, statistics[0], run.resolution, HISTORY),
            )
        ]  # fmt: skip
        rows = _with_distances(rows, statistics[0])
        num_judged += rows["_distance"].count()
        largest.append(largest_of(rows))
        far.append(_named(_far(rows), statistics[0]))
    if not far:
        return Anomalies(found=[], num_found=0, num_judged=0)
    of_replicas = replicas.found(false_alarms / 2)
    num_compared = replicas.num_judged()
    share = false_alarms / 2 if num_compared else false_alarms
    limits = limits_by_past(pl.concat(largest), share)
    moved = pl.concat(far, how="diagonal").join(limits, on=["quantity", "step"], how="left", maintain_order="left")
    is_unusual = (pl.col("_distance") > pl.col("_limit")).fill_null(False)
    parts = [moved.filter(is_unusual | pl.col("_is_broken")), *found, *of_replicas]
    everything = in_order(pl.concat([_complete(part) for part in parts]))
    everything = everything.filter(pl.col("step").is_in(list(steps))) if steps else everything
    first = [_anomaly(row) for row in everything.head(most).iter_rows(named=True)]
    return Anomalies(found=first, num_found=everything.height, num_judged=num_judged + num_compared)


def _with_distances(rows: pl.DataFrame, statistic: str) -> pl.DataFrame:
    """Return rows of `with_ids` with what each value is compared with.

    Adds ``_log``; ``_middle``, the median of the past of what is judged; ``_distance``, null without enough of a past;
    ``_is_broken``: it is no longer finite, or has become zero.
    """
    value = pl.col(statistic)
    before, has_past = value.shift(1).over(ID), pl.col("_log").cum_count().over(ID) > HISTORY
    is_finite = value.is_finite().fill_null(True)
    nans = (pl.col("nans") > 0).fill_null(False) if "nans" in rows.columns else pl.lit(False)
    # What is infinite from the first is meant, as a mask is.
    is_meant = value.is_infinite() & (before.is_null() | before.is_infinite())
    became_zero = (value == 0) & (before != 0) & has_past
    rows = rows.with_columns(_log=pl.when(is_finite & (value != 0)).then(value.abs().log()))
    is_smooth = pl.col("quantity").is_in(SMOOTH)
    change = pl.col("_log") - pl.col("_log").shift(1).over(ID)
    rows = rows.with_columns(_judged=pl.when(is_smooth).then(change).otherwise("_log"))
    rows = rows.with_columns(_middle=past_medians(rows, "_judged", ID))
    rows = rows.with_columns(_apart=(pl.col("_judged") - pl.col("_middle")).abs())
    least = pl.when(is_smooth).then(LEAST_CHANGE).otherwise(LEAST_SPREAD)
    spread = pl.max_horizontal(TO_DEVIATION * past_medians(rows, "_apart", ID), least)
    is_judged = has_past & (pl.col("quantity") != SQUARED)
    return rows.with_columns(
        _distance=pl.when(is_judged).then(pl.col("_apart") / spread),
        _is_broken=((~is_finite | nans) & ~is_meant) | became_zero.fill_null(False),
    )


def _far(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that a limit may call unusual, with ``_before``, the median of each one's past."""
    is_far = pl.col("_is_broken") | (pl.col("_distance") > LEAST_LIMIT)
    is_smooth = pl.col("quantity").is_in(SMOOTH)
    others = rows.filter(is_far & ~is_smooth).with_columns(_before=pl.col("_middle").exp())
    series = rows.filter(is_far & is_smooth)[ID].unique()
    smooth = rows.filter(pl.col(ID).is_in(series)).with_columns(_before=past_median("_log").over(ID).exp())
    return pl.concat([others, smooth.filter(is_far)])


def _named(rows: pl.DataFrame, statistic: str) -> pl.DataFrame:
    """Return rows with the statistic that shows what was found, and with a code."""
    value = pl.col(statistic)
    rows = rows.with_columns(_value=value, _statistic=pl.lit(statistic))
    if "_code" in rows.columns:
        return _complete(rows)
    is_finite = value.is_finite().fill_null(True)
    broken = pl.when(is_finite & (value == 0)).then(pl.lit(AnomalyCode.BECAME_ZERO.value))
    broken = broken.otherwise(pl.lit(AnomalyCode.NOT_FINITE.value))
    code = pl.when("_is_broken").then(broken).otherwise(pl.lit(AnomalyCode.MOVED.value))
    kept = [name for name in _COLUMNS if name in rows.columns]
    return rows.select(*kept, "_is_broken", _code=code)


def _complete(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(
        pl.col(name).cast(kind) if name in rows.columns else pl.lit(None, kind).alias(name)
        for name, kind in _COLUMNS.items()
    )


def _anomaly(row: dict[str, Any]) -> Anomaly:
    code = AnomalyCode(row["_code"])
    return Anomaly(
        step=row["step"],
        rank=row["rank"],
        place=place_of(row),
        statistic=row["_statistic"] or "",
        value=row["_value"],
        code=code,
        fields={name: row[column] for name, column in _FIELDS[code].items()},
    )
