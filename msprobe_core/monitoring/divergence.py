"""Find where a monitored training stops being finite, and where two of them diverge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from msprobe_core.monitoring.history import Monitored, Place, in_order, place_of

DIVERGED = 0.01
"""Relative difference of a statistic from which two trainings are reported as diverged.

It is well above the effect of rounding on norms and extremes. The first difference of any size is reported as well.
There is no measure of the noise of a monitor's values.
"""

_JUDGED = ("norm", "max", "min")
"""Statistics that are judged, if present. Means are near zero, where relative differences are meaningless."""

_KEYS = ["rank", "quantity", "stage", "name", "micro_step", "step"]
"""Columns that identify a value of one training."""

_MAX_NAMED = 50


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first place where values stop being finite or differ.

    Attributes:
        step: The first step in which it happens.
        place: The value.
        ranks: Ranks on which it happens to this value in this step.
        statistic: The statistic that shows it.
        target: Its value in the target, on the first of these ranks.
        golden: Its value in golden; ``None`` if there is only one training.
        relative: Their relative difference, infinite if only one is finite.
        others: Other values to which it happens in this step, in the order in which they are computed.
        num_places: Number of such values, including the first one.
    """

    step: int
    place: Place
    ranks: Sequence[int]
    statistic: str
    target: float
    golden: float | None
    relative: float
    others: Sequence[Place]
    num_places: int


def first_non_finite(run: Monitored) -> Divergence | None:
    """Return the first value that is not finite; ``None`` if all are finite."""
    statistics = [name for name in run.statistics if name in ("norm", "max", "min", "mean")] or list(run.statistics)
    is_bad = [pl.col(name).is_not_null() & ~pl.col(name).is_finite() for name in statistics]
    found = run.frame.with_columns(
        _told=pl.coalesce(*[pl.when(bad).then(pl.lit(name)) for name, bad in zip(statistics, is_bad, strict=True)])
    )
    if "nans" in run.statistics:  # other statistics may ignore NaN
        found = found.with_columns(_told=pl.coalesce("_told", pl.when(pl.col("nans") > 0).then(pl.lit("nans"))))
    found = found.filter(pl.col("_told").is_not_null()).with_columns(_relative=pl.lit(float("inf")))
    return _first(found)


def first_divergence(target: Monitored, golden: Monitored, limit: float = DIVERGED) -> Divergence | None:
    """Return the first value with a differing statistic; ``None`` if there is none.

    Args:
        target: The training under test.
        golden: The trusted one.
        limit: Smallest relative difference that counts, ``|target - golden| / |golden|``; NaN on one side is infinitely
            far. 0 finds the first difference of any size.
    """
    shared = [name for name in target.statistics if name in golden.statistics]
    judged = [name for name in _JUDGED if name in shared] or shared
    pairs = target.frame.select(*_KEYS, "place", *judged).join(
        golden.frame.select(*_KEYS, *judged), on=_KEYS, how="inner", suffix="_golden", nulls_equal=True
    )
    resolution = 1.5 * max(target.resolution, golden.resolution)
    pairs = pairs.with_columns(**{f"{name}_relative": relative_difference(name, resolution) for name in judged})
    worst = pl.max_horizontal(*[f"{name}_relative" for name in judged])
    parted = pairs.with_columns(_relative=worst).filter(pl.col("_relative") > limit)
    told = [pl.when(pl.col(f"{name}_relative") == pl.col("_relative")).then(pl.lit(name)) for name in judged]
    return _first(parted.with_columns(_told=pl.coalesce(*told)))


def num_shared(target: Monitored, golden: Monitored) -> int:
    """Return the number of values, by step and rank, that both have."""
    return target.frame.select(_KEYS).join(golden.frame.select(_KEYS), on=_KEYS, how="semi", nulls_equal=True).height


def relative_difference(name: str, resolution: float) -> pl.Expr:
    """Return the difference of a statistic relative to golden's: 0 if equal to the files' precision, or both NaN."""
    target, golden = pl.col(name), pl.col(f"{name}_golden")
    is_same = (target == golden) | (target.is_nan() & golden.is_nan()) | ((target - golden).abs() <= resolution)
    are_finite = target.is_finite() & golden.is_finite() & (golden != 0)
    return (
        pl.when(is_same.fill_null(False)).then(0.0)
        .when(target.is_null() | golden.is_null()).then(None)
        .when(are_finite).then((target - golden).abs() / golden.abs())
        .otherwise(float("inf"))
    )  # fmt: skip


def _first(found: pl.DataFrame) -> Divergence | None:
    if not found.height:
        return None
    found = in_order(found.filter(pl.col("step") == pl.col("step").min()))
    first = found.row(0, named=True)
    places = list(dict.fromkeys(place_of(row) for row in found.iter_rows(named=True)))
    same = [row for row in found.iter_rows(named=True) if place_of(row) == places[0]]
    statistic = first["_told"]
    return Divergence(
        step=first["step"],
        place=places[0],
        ranks=sorted({row["rank"] for row in same}),
        statistic=statistic,
        target=first[statistic],
        golden=first.get(f"{statistic}_golden"),
        relative=first["_relative"],
        others=places[1:_MAX_NAMED],
        num_places=len(places),
    )
