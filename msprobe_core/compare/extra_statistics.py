"""Statistics that plugins offer, in dumps: their columns, what they are judged by, and their values of merged parts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from msprobe_core.compare.compare_codes import CompareCode
from msprobe_core.findings import Finding, Level
from msprobe_core.judge.columns import EXTRA_ERROR, EXTRA_LIMIT, EXTRA_PREFIX, EXTRA_STATISTIC
from msprobe_core.plugins import registry
from msprobe_core.protocols.statistics import Merging, Statistic, is_statistic_name
from msprobe_core.store.frame import numbers_of
from msprobe_core.store.stored_rows import Rows, has_any

MAX_SHOWN = 64
"""Statistics of a dump that get columns; a damaged dump may have another one in each row."""


def names_of(columns: Sequence[str]) -> list[str]:
    """Return the names of the statistics that rows with these columns have."""
    own = [name for name in columns if name.startswith(EXTRA_PREFIX) and name.endswith("_target")]
    return [name.removeprefix(EXTRA_PREFIX).removesuffix("_target") for name in own]


def with_extra_columns(rows: Rows, sides: Sequence[str]) -> tuple[Rows, list[Finding]]:
    """Return ``rows`` with ``extra_{side}``, which is JSON, replaced by columns of each statistic that all sides have.

    These are ``extra:{name}_{side}`` and, of two sides, ``extra:{name}_diff`` and what is judged: ``extra_statistic``,
    the one that is farthest over its limit, or nearest to it, with ``extra_error`` and ``extra_limit``. Statistics that
    no plugin offers here are shown and not judged, as the findings say.

    Args:
        rows: Rows with ``extra_{side}``.
        sides: ``target``, ``golden`` or both.
    """
    others = rows.drop([f"extra_{side}" for side in sides])
    if not all(has_any(rows, f"extra_{side}") for side in sides):
        return others, []
    cells = {side: [_none if text is None else numbers_of(text) for text in rows[f"extra_{side}"]] for side in sides}
    of_sides = [dict.fromkeys(name for cell in column for name in cell) for column in cells.values()]
    shown = [name for name in of_sides[0] if is_statistic_name(name) and all(name in own for own in of_sides)]
    columns = [
        pl.Series(f"{EXTRA_PREFIX}{name}_{side}", [cell.get(name) for cell in column], pl.Float64)
        for name in shown[:MAX_SHOWN]
        for side, column in cells.items()
    ]
    if len(sides) == 1 or not columns:
        return others.with_columns(columns), []
    offered = registry().statistics()
    differences = pl.DataFrame(columns).select(
        *[_difference(name).alias(f"{EXTRA_PREFIX}{name}_diff") for name in shown[:MAX_SHOWN]],
        *_judged([offered[name] for name in shown[:MAX_SHOWN] if name in offered]),
    )
    unknown = [name for name in shown[:MAX_SHOWN] if name not in offered]
    fields = {"statistics": ", ".join(unknown)}
    found = [Finding(CompareCode.UNKNOWN_STATISTICS, Level.WARNING, fields)] if unknown else []
    return others.with_columns(*columns, *differences.get_columns()), found


_SIDES = ("target", "golden")
_none: Mapping[str, float] = {}


def _difference(name: str) -> pl.Expr:
    """Return target - golden; 0 where both are equal, NaN and infinities included, and null where one is missing."""
    target, golden = (pl.col(f"{EXTRA_PREFIX}{name}_{side}") for side in _SIDES)
    return pl.when(target == golden).then(0.0).otherwise(target - golden)  # polars compares NaN as equal


def _judged(statistics: Sequence[Statistic]) -> list[pl.Expr]:
    """Return what each row is judged by: of the statistics with a limit, the one that is farthest over its own."""
    judged = [each for each in statistics if each.limit is not None]
    if not judged:
        return []
    errors = [_error(each) for each in judged]
    limits = [float(each.limit or 0.0) for each in judged]
    ratios = [_ratio(error, limit) for error, limit in zip(errors, limits, strict=True)]
    is_worst = [ratio == pl.max_horizontal(ratios) for ratio in ratios]

    def of_worst(cells: Sequence[pl.Expr]) -> pl.Expr:
        return pl.coalesce([pl.when(is_own).then(cell) for is_own, cell in zip(is_worst, cells, strict=True)])

    return [
        of_worst([pl.lit(each.name) for each in judged]).alias(EXTRA_STATISTIC),
        of_worst(errors).alias(EXTRA_ERROR),
        of_worst([pl.lit(limit) for limit in limits]).alias(EXTRA_LIMIT),
    ]


def _error(statistic: Statistic) -> pl.Expr:
    """Return the difference as it is judged; infinite where one side alone is NaN, or is divided by 0."""
    size = _difference(statistic.name).abs()
    if statistic.is_relative:
        golden = pl.col(f"{EXTRA_PREFIX}{statistic.name}_golden").abs()
        size = pl.when(size == 0).then(0.0).when(golden.is_infinite()).then(math.inf).otherwise(size / golden)
    return size.fill_nan(math.inf)


def _ratio(error: pl.Expr, limit: float) -> pl.Expr:
    if limit > 0:
        return error / limit
    return pl.when(error > 0).then(math.inf).when(error == 0).then(0.0)


def merged_extra(
    texts: Sequence[str], sizes: Sequence[int], offered: Mapping[str, Statistic] | None = None
) -> str | None:
    """Return the cell of a whole from those of its parts; ``None`` if nothing of the whole follows from them.

    Args:
        texts: Cells of the frame's column ``extra``, of each part.
        sizes: Number of elements of each part, at least one.
        offered: Statistics by name; ``None`` takes those of all plugins.
    """
    offered = registry().statistics() if offered is None else offered
    parts = [numbers_of(text) for text in texts]
    merged: dict[str, float | str] = {}
    for name in parts[0]:
        how = offered[name].merge if name in offered else None
        if how is not None and all(name in part for part in parts):
            value = _merged(how, np.array([part[name] for part in parts]), sizes)
            merged[name] = value if math.isfinite(value) else str(value)
    return msgspec.json.encode(merged).decode() if merged else None


def _merged(how: Merging, values: NDArray[np.float64], sizes: Sequence[int]) -> float:
    with np.errstate(all="ignore"):
        if how is Merging.MEAN:
            return float(np.average(values, weights=sizes))
        reduce = {Merging.SUM: np.sum, Merging.MAX: np.max, Merging.MIN: np.min}[how]
        return float(reduce(values))
