"""Find where a training departs from a trusted one, measured against the noise between healthy trainings.

How far a value of the two is apart is the logarithm of the relative difference of its norm. How far healthy trainings
are apart is known

* from repetitions of the trusted training: the largest distance of a quantity in a step, in excess of what is usual
  for the value, follows a Gumbel distribution, whose place and width are those of the repetitions;
* else from the history of the two: the distance is judged against its own past, as `anomalies` does it with values. In
  the first steps, which have no past, a difference of `divergence.DIVERGED` counts;
* else from nothing at all: if the two were equal to the last digit, any difference is a departure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import Any

import polars as pl

from msprobe_core.findings import Field, Finding, Level
from msprobe_core.monitoring.divergence import DIVERGED, Divergence, first_divergence
from msprobe_core.monitoring.history import ID, SERIES, Monitored, Place, in_order, place_of
from msprobe_core.monitoring.limits import largest_of, limit_of_all, limits_by_past, past_median
from msprobe_core.monitoring.monitoring_codes import DepartureCode
from msprobe_core.monitoring.unusual import HISTORY

_KEYS = [*SERIES, "step"]
_LEAST = 1.2e-7
"""Relative difference that numbers in single precision can show, 2 to the power of -23."""

_SHOWN = 10.0
"""Times what can be shown that is allowed at least."""

_LEAST_SPREAD = 0.3
"""Least standard deviation of the logarithm of a distance: distances vary by chance more than values do."""

_AROUND = 11
"""Steps that the usual distance between repetitions is the median of."""

_EQUAL_STEPS = 2
"""Steps that must be equal to the last digit before the first difference of any size is a departure."""


class Basis(str, Enum):
    """What the noise is known from."""

    REPETITIONS = "repetitions"
    HISTORY = "history"
    EQUALITY = "equality"


@dataclass(frozen=True, kw_only=True)
class Departure:
    """A value that is farther apart than healthy trainings are.

    Attributes:
        step: In which it is.
        rank: Of the process.
        place: The value.
        finding: What it does.
    """

    step: int
    rank: int
    place: Place
    finding: Finding


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What two trainings have to do with each other.

    Attributes:
        departures: In the order of computation, at most as many as were asked for.
        num_departures: How many there are.
        first_difference: Of any size; ``None`` if the two are equal.
        num_shared: Values that both have.
        num_judged: Values whose noise is known.
        basis: What it is known from.
        lacking: What only one of the two has.
    """

    departures: Sequence[Departure]
    num_departures: int
    first_difference: Divergence | None
    num_shared: int
    num_judged: int
    basis: Basis
    lacking: Sequence[Finding]


def compare_monitored(
    target: Monitored,
    golden: Monitored,
    noise: Sequence[Monitored] = (),
    *,
    false_alarms: float = 1e-3,
    most: int = 8,
) -> Comparison:
    """Compare two trainings.

    Args:
        target: The training under test.
        golden: The trusted one.
        noise: Repetitions of the trusted one.
        false_alarms: Probability that a healthy training departs anywhere.
        most: How many departures to return.
    """
    statistic = next((name for name in ("norm", "max", "min", "mean") if name in _both(target, golden)), None)
    rows = _apart(target, golden, statistic)
    first = first_divergence(target, golden, 0.0) if statistic is not None else None
    steps = set(rows["step"].to_list())
    if noise:
        basis, judged = Basis.REPETITIONS, _against_repetitions(rows, golden, noise, statistic, false_alarms)
    elif first is None or sum(step < first.step for step in steps) >= _EQUAL_STEPS:
        basis, judged = Basis.EQUALITY, rows.with_columns(_usual=pl.lit(0.0), _allowed=pl.lit(0.0))
    else:
        basis, judged = Basis.HISTORY, _against_past(rows, false_alarms)
    is_apart = pl.col("_is_one_sided") | (pl.col("_relative") > pl.col("_allowed")).fill_null(False)
    found = in_order(judged.filter(is_apart))
    return Comparison(
        departures=[_departure(row, statistic or "", basis) for row in found.head(most).iter_rows(named=True)],
        num_departures=found.height,
        first_difference=first,
        num_shared=rows.height,
        num_judged=judged["_allowed"].count(),
        basis=basis,
        lacking=_lacking(target, golden),
    )


def _both(target: Monitored, golden: Monitored) -> list[str]:
    return [name for name in target.statistics if name in golden.statistics]


# --- distances ----------------------------------------------------------------------------------------------------


def _apart(target: Monitored, golden: Monitored, statistic: str | None) -> pl.DataFrame:
    """Return the values that both have, with ``_relative``, ``_log`` and ``_is_one_sided``, in the order of steps."""
    names = [name for name in (statistic, "nans") if name is not None and name in _both(target, golden)]
    pairs = target.frame.select(*_KEYS, "place", *names).join(
        golden.frame.select(*_KEYS, *names), on=_KEYS, how="inner", suffix="_golden", nulls_equal=True
    )
    if statistic is None:
        return pairs.with_columns(_relative=None, _log=None, _is_one_sided=False)
    own, other = pl.col(statistic), pl.col(f"{statistic}_golden")
    are_finite = own.is_finite() & other.is_finite()
    is_one_sided = own.is_finite() != other.is_finite()
    if "nans" in names:
        is_one_sided |= (pl.col("nans") > 0) != (pl.col("nans_golden") > 0)
    resolution = 1.5 * max(target.resolution, golden.resolution)
    gap, size = (own - other).abs(), pl.max_horizontal(own.abs(), other.abs())
    relative = pl.when(are_finite & (gap <= resolution)).then(0.0).when(are_finite).then(gap / size)
    pairs = pairs.with_columns(_relative=relative, _is_one_sided=is_one_sided.fill_null(False))
    least = pl.max_horizontal(pl.lit(_LEAST), resolution / size)
    return pairs.sort("step", maintain_order=True).with_columns(
        pl.struct(SERIES).hash().alias(ID), _least=_SHOWN * least, _log=pl.max_horizontal("_relative", least).log()
    )


def _against_past(rows: pl.DataFrame, false_alarms: float) -> pl.DataFrame:
    usual = past_median("_log").over(ID)
    has_past = pl.col("_log").cum_count().over(ID) > HISTORY
    rows = rows.with_columns(_usual_log=usual, _excess=pl.col("_log") - usual)
    # What is allowed follows from how far distances usually are from their median, in both directions.
    spread = pl.max_horizontal(
        1.4826 * pl.col("_excess").abs().rolling_median(50, min_samples=10).shift(1).over(ID), _LEAST_SPREAD
    )
    rows = rows.with_columns(_spread=spread)
    rows = rows.with_columns(_distance=pl.when(has_past).then(pl.col("_excess") / pl.col("_spread")))
    limits = limits_by_past(largest_of(rows), false_alarms)
    rows = rows.join(limits, on=["quantity", "step"], how="left", maintain_order="left")
    allowed = (pl.col("_usual_log") + pl.col("_limit") * pl.col("_spread")).exp()
    # Before there is a past, and of limits, only what rounding never does is known.
    allowed = pl.when(pl.col("_limit").is_null()).then(DIVERGED).otherwise(allowed)
    return rows.with_columns(_usual=pl.col("_usual_log").exp(), _allowed=pl.max_horizontal(allowed, "_least"))


def _against_repetitions(
    rows: pl.DataFrame, golden: Monitored, noise: Sequence[Monitored], statistic: str | None, false_alarms: float
) -> pl.DataFrame:
    parts = [_apart(each, golden, statistic).select(*_KEYS, ID, "_log") for each in noise]
    logs = [f"_log{i}" for i in range(len(parts))]
    named = [part.rename({"_log": name}) for part, name in zip(parts, logs, strict=True)]
    together = reduce(
        lambda one, other: one.join(other.select(ID, "step", pl.selectors.starts_with("_log")), on=[ID, "step"]), named
    )
    usual = pl.mean_horizontal(logs).rolling_median(_AROUND, min_samples=1, center=True).over(ID)
    together = together.sort("step", maintain_order=True).with_columns(_usual_log=usual)
    # The usual distance is made of these repetitions, which are closer to it than one that it is not made of.
    wider = math.sqrt((len(noise) + 1) / len(noise))
    excess = pl.concat(
        together.select("quantity", "step", _distance=wider * (pl.col(name) - pl.col("_usual_log"))).with_columns(
            _run=pl.lit(i)
        )
        for i, name in enumerate(logs)
    )
    largest = excess.group_by("quantity", "step", "_run").agg(pl.col("_distance").max())
    num_tests = max(largest.select("quantity", "step").n_unique(), 1)
    limits = largest.group_by("quantity").agg(_limit=limit_of_all(pl.col("_distance"), false_alarms, num_tests))
    rows = rows.join(together.select(ID, "step", "_usual_log"), on=[ID, "step"], how="left", maintain_order="left")
    rows = rows.join(limits, on="quantity", how="left", maintain_order="left")
    allowed = (pl.col("_usual_log") + pl.col("_limit")).exp()
    allowed = pl.when(allowed.is_not_null()).then(pl.max_horizontal(allowed, "_least"))
    return rows.with_columns(_usual=pl.col("_usual_log").exp(), _allowed=allowed)


# --- findings -----------------------------------------------------------------------------------------------------


def _departure(row: Mapping[str, Any], statistic: str, basis: Basis) -> Departure:
    fields: dict[str, Field] = {
        "statistic": statistic,
        "target": _shown(row[statistic]),
        "golden": _shown(row[f"{statistic}_golden"]),
    }
    code = DepartureCode.ONE_SIDED
    if not row["_is_one_sided"]:
        percents = {name: 100 * (row[f"_{name}"] or 0.0) for name in ("relative", "usual", "allowed")}
        fields |= percents
        code = DepartureCode.APART_FROM_EQUAL if basis is Basis.EQUALITY else DepartureCode.APART
    finding = Finding(code, Level.ERROR, fields)
    return Departure(step=row["step"], rank=row["rank"], place=place_of(dict(row)), finding=finding)


def _shown(value: float) -> Field:
    return value if math.isfinite(value) else str(value)


def _lacking(target: Monitored, golden: Monitored) -> list[Finding]:
    """Return what only one of the two has, of ranks, steps and quantities, and of names where both have a quantity."""
    found: list[Finding] = []
    for side, own, other in (("target", target, golden), ("golden", golden, target)):
        shared = own.frame.join(other.frame.select("quantity").unique(), on="quantity", how="semi")
        places = shared.select(SERIES[1:]).unique()
        alone = places.join(other.frame.select(SERIES[1:]).unique(), on=SERIES[1:], how="anti", nulls_equal=True)
        kinds: Sequence[tuple[DepartureCode, Sequence[Field]]] = (
            (DepartureCode.RANKS_OF_ONE, _only(own.ranks, other.ranks)),
            (DepartureCode.STEPS_OF_ONE, _only(own.steps, other.steps)),
            (DepartureCode.QUANTITIES_OF_ONE, _only(_quantities(own), _quantities(other))),
            (DepartureCode.NAMES_OF_ONE, sorted(alone["name"].unique().to_list())),
        )
        for code, listed in kinds:
            if listed:
                fields = {"side": side, "count": len(listed), "first": listed[0], "last": listed[-1]}
                found.append(Finding(code, Level.WARNING, fields))
    return found


def _quantities(run: Monitored) -> list[str]:
    return sorted(run.frame["quantity"].unique().to_list())


def _only(own: Sequence[Any], other: Sequence[Any]) -> list[Any]:
    return sorted({*own} - {*other})
