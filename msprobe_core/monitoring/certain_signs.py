"""Signs of a fault that need no limit: values that stay the same to the last digit, and values that are always zero.

How unlikely it is that a value repeats by chance is measured by how much it usually changes: if it changes by a million
times the least difference that its number can show, one step in a million repeats it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import polars as pl

from msprobe_core.monitoring.history import ID, SERIES
from msprobe_core.monitoring.monitoring_codes import AnomalyCode
from msprobe_core.monitoring.quantities import Quantity

TELLING = 6.0
"""Decades of unlikeliness from which a repetition is no chance: one in a million."""

_OF_ALL = 3.0
"""Decades of unlikeliness that remain for all values and steps of a rank together."""

_SINGLE = 1.2e-7
"""Least relative difference of numbers in single precision, 2 to the power of -23."""

_RECENT = 5
_ALWAYS_CHANGED = 20
"""Steps before a repetition in each of which the value must have changed."""

_LOCAL = [
    each.value
    for each in (
        Quantity.ACTIVATION,
        Quantity.ACTIVATION_GRADIENT,
        Quantity.GRADIENT_UNREDUCED,
        Quantity.GRADIENT_REDUCED,
    )
]
_OF_UPDATES = [
    each.value for each in (Quantity.EXP_AVG, Quantity.EXP_AVG_SQ, Quantity.PARAM_ORIGIN, Quantity.PARAM_UPDATED)
]
_MARGIN = 1000
"""Times the least difference of a file that other layers must have where one layer is zero: files round."""


def with_repeats(rows: pl.DataFrame, statistics: Sequence[str], resolution: float) -> pl.DataFrame:
    """Return rows of `with_ids` of one rank with ``_is_same`` and ``_recent``.

    ``_is_same`` says whether the statistics of a value repeat those of the step before; ``_recent`` how unlikely that
    is by chance, as a power of ten, by their changes in the last steps.
    """
    same = pl.all_horizontal((_change(name) == 0).fill_null(False) for name in statistics)
    rows = rows.with_columns(_is_same=same.over(ID))
    if not rows["_is_same"].any():  # what follows is a third of the work
        return rows.with_columns(_recent=pl.lit(0.0))
    # A schedule lets changes shrink.
    last = {name: _change(name).rolling_min(_RECENT, min_samples=1).shift(1).over(ID) for name in statistics}
    return rows.with_columns(_recent=_told(last, resolution))


def decades_of(rows: pl.DataFrame, statistics: Sequence[str], resolution: float) -> pl.Series:
    """Return how unlikely it is that the statistics of each value repeat by chance, as a power of ten.

    Args:
        rows: Of `with_ids`.
        statistics: Names of their columns.
        resolution: Least difference that the files can show.
    """
    changes = {name: f"_change_{name}" for name in statistics}
    rows = rows.with_columns(_change(name).over(ID).alias(change) for name, change in changes.items())
    usual = rows.group_by(ID).agg(pl.col(*changes.values()).median().name.suffix("_usual"))
    rows = rows.join(usual, on=ID, how="left", maintain_order="left")
    told = _told({name: pl.col(f"{each}_usual") for name, each in changes.items()}, resolution)
    return rows.select(told.cast(pl.Float32)).to_series()


def _change(name: str) -> pl.Expr:
    return (pl.col(name) - pl.col(name).shift(1)).abs()


def _told(sizes: Mapping[str, pl.Expr], resolution: float) -> pl.Expr:
    """Return how unlikely it is, in decades, that all statistics repeat that change by some sizes."""
    found: list[pl.Expr] = []
    for name, size in sizes.items():
        least = pl.max_horizontal(pl.col(name).abs() * _SINGLE, pl.lit(max(resolution, 1e-30)))
        found.append((size / least).log10().clip(0.0, TELLING).fill_nan(0.0).fill_null(0.0))
    # A tensor of one element, or of equal ones, has one number to tell, however many statistics say it.
    is_one = pl.col("min") == pl.col("max") if {"min", "max"} <= {*sizes} else pl.lit(False)
    return pl.when(is_one).then(pl.max_horizontal(found)).otherwise(pl.sum_horizontal(found))


def unchanged(rows: pl.DataFrame, statistic: str) -> pl.DataFrame:
    """Return rows that repeat the step before and changed until then, as no other value of the optimizer does.

    A step in which the optimizer changes nothing at all, as with a loss that overflows, is meant.
    """
    code = pl.lit(AnomalyCode.UNCHANGED.value)
    if not rows["_is_same"].any():
        return rows.clear().with_columns(_code=code)
    always = pl.col("_is_same").cast(pl.Int8).rolling_max(_ALWAYS_CHANGED, min_samples=_ALWAYS_CHANGED).shift(1)
    # The first row of a series repeats nothing, and has nothing to repeat.
    rows = rows.with_columns(_changed_before=(always == 0).over(ID).fill_null(False))
    least = max(TELLING, _OF_ALL + math.log10(max(rows.height, 1)))
    is_found = pl.col("_is_same") & pl.col("_changed_before") & (pl.col("_recent") >= least)
    is_found &= pl.col(statistic) != 0
    share = pl.col("_is_same").mean().over("quantity", "step")
    is_meant = pl.col("quantity").is_in(_OF_UPDATES) & (share > 0.5)
    found = rows.filter(is_found & ~is_meant)
    return found.with_columns(_code=code)


def always_zero(rows: pl.DataFrame, statistic: str, resolution: float, least_steps: int) -> pl.DataFrame:
    """Return the first row of values that are zero in all steps, where the same value of other layers is not.

    Args:
        rows: Of `with_ids`, of one rank.
        statistic: The norm, or what there is instead.
        resolution: Least difference that the files can show.
        least_steps: In which a value must have been seen.
    """
    size, code = pl.col(statistic).abs(), pl.lit(AnomalyCode.ALWAYS_ZERO.value)
    if not (rows.group_by(ID).agg(size.max())[statistic] == 0).any():  # a tenth of the work
        return rows.clear().with_columns(_before=pl.lit(0.0), _steps=pl.lit(0), _code=code)
    series = rows.lazy().filter(pl.col("quantity").is_in(_LOCAL)).group_by(ID, *SERIES).agg(
        pl.len().alias("_count"), size.max().alias("_largest"), size.median().alias("usual"), pl.col("step").min()
    )  # fmt: skip
    alike = ["quantity", "stage", "micro_step", pl.col("name").str.replace_all(r"\d+", "*").alias("_pattern")]
    dead = series.with_columns(_others=pl.col("usual").max().over(alike)).filter(
        (pl.col("_largest") == 0) & (pl.col("_count") >= least_steps) & (pl.col("_others") > _MARGIN * resolution)
    )
    first = rows.lazy().join(dead.select(ID, "step", "_others", "_count"), on=[ID, "step"])
    named = first.rename({"_others": "_before", "_count": "_steps"})
    return named.with_columns(_code=code).collect()
