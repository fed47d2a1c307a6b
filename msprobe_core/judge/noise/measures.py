"""Measures of the difference between the two sides of a row, all dimensionless, as columns of the whole frame.

Every measure is an error relative to the golden tensor as a whole, so that it can be compared between rows:

``norm``
    difference of the norms over the golden norm;
``mean``
    difference of the means over the golden root mean square;
``max``, ``min``
    difference of the extremes over the largest golden magnitude; of those that are not masked, if
    `msprobe_core.judge.noise.masks` knows it;
``rel_l2``
    norm of the difference over the golden norm, from tensors, or estimated from sketches;
``scale``
    ``<t, g> / <g, g> - 1``, the best-fitting factor of the golden tensor, less one: exact for tensors; for sketches
    from the norms and ``rel_l2``, by ``<t, g> = (|t|^2 + |g|^2 - |t - g|^2) / 2``.

The roundings of single elements are nearly independent: they add up in ``rel_l2`` and average out in ``norm``, ``mean``
and ``scale``. A factor of 1.01 is half a rounding of bfloat16 and lost in ``rel_l2``, but not in ``scale``.
"""

from __future__ import annotations

from enum import Enum

import polars as pl

from msprobe_core.judge.columns import SKETCH_ERROR
from msprobe_core.judge.joining import with_added
from msprobe_core.judge.noise.masks import FILL, MASKED_SIZE
from msprobe_core.store.stored_rows import Rows, frame_of, roots_of


class Measure(str, Enum):
    """One measure of a row's difference; the value is its name in tables."""

    NORM = "norm"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"
    REL_L2 = "rel_l2"
    SCALE = "scale"

    @property
    def column(self) -> str:
        """Name of its column in the frame of rows."""
        return f"measure_{self.value}"

    @property
    def averages(self) -> bool:
        """Whether the roundings of single elements average out in it."""
        return self in {Measure.NORM, Measure.MEAN, Measure.SCALE}


MEASURES = tuple(Measure)

WORDS = {
    Measure.NORM: "the norm",
    Measure.MEAN: "the mean",
    Measure.MAX: "the maximum",
    Measure.MIN: "the minimum",
    Measure.REL_L2: "the tensor",
    Measure.SCALE: "the scale",
}
"""Names of the measures in sentences."""

_PART_STATISTICS = {Measure.NORM: "norm", Measure.MEAN: "mean", Measure.MAX: "max", Measure.MIN: "min"}


def with_measures(rows: pl.DataFrame) -> pl.DataFrame:
    """Return aligned rows with a column for each measure, >= 0; null if unknown.

    0 if the two are equal; null if a number is not finite; +Inf if the golden tensor is all zero and the target's is
    not.

    Args:
        rows: Rows with the differences of `msprobe_core.judge.statistics_columns`, and ``euclidean`` or
            ``sketch_error`` if tensors or sketches were compared.
    """
    return frame_of(with_stored_measures(rows))


def with_stored_measures(rows: Rows) -> Rows:
    """As `with_measures`, of rows that may be in files."""
    norm = pl.col("norm_golden")
    whole = {
        Measure.NORM: norm,
        Measure.MEAN: norm / pl.col("numel_golden").cast(pl.Float64).sqrt(),
        Measure.MAX: _size(rows.columns, "max"),
        Measure.MIN: _size(rows.columns, "min"),
    }
    measures = [
        *(
            _ratio(pl.col(f"{name}_diff"), whole[measure]).alias(measure.column)
            for measure, name in _PART_STATISTICS.items()
        ),
        _distance(rows.columns, norm).alias(Measure.REL_L2.column),
        _scale(rows.columns).alias(Measure.SCALE.column),
    ]
    return with_added(rows, lambda part: _all(part, measures), roots_of(*measures))


def _all(part: pl.DataFrame, columns: list[pl.Expr]) -> pl.DataFrame:
    """Return columns for each row, also if none of them names any."""
    return part.with_columns(columns).select(column.meta.output_name() for column in columns)


def _ratio(difference: pl.Expr, whole: pl.Expr) -> pl.Expr:
    is_known = difference.is_finite() & whole.is_finite()
    return pl.when(difference == 0.0).then(0.0).when(is_known).then(difference.abs() / whole)


def _size(columns: list[str], name: str) -> pl.Expr:
    """Return the magnitude to which the error of an extreme is relative."""
    if MASKED_SIZE not in columns:
        return _largest()
    is_other = pl.all_horizontal(pl.col(f"{name}_{side}").abs() < FILL for side in ("target", "golden"))
    return pl.coalesce(pl.when(is_other).then(MASKED_SIZE), _largest())


def _largest() -> pl.Expr:
    return pl.max_horizontal(pl.col("max_golden").abs(), pl.col("min_golden").abs())


def _distance(columns: list[str], norm: pl.Expr) -> pl.Expr:
    known: list[pl.Expr] = []
    if "euclidean" in columns:
        known.append(_ratio(pl.col("euclidean"), norm))
        # A tensor of one element has no distance but its difference.
        known.append(_ratio(pl.col("largest_abs"), _largest()))
    if SKETCH_ERROR in columns:
        known.append(pl.col(SKETCH_ERROR))
    return pl.coalesce(known) if known else pl.lit(None, pl.Float64)


def _scale(columns: list[str]) -> pl.Expr:
    known: list[pl.Expr] = []
    if "scale" in columns:
        known.append(pl.when(pl.col("scale").is_finite()).then(pl.col("scale").abs()))
    if SKETCH_ERROR in columns:
        relative = pl.col("norm_diff") / pl.col("norm_golden")
        estimated = relative + relative**2 / 2 - pl.col(SKETCH_ERROR) ** 2 / 2
        known.append(pl.when(estimated.is_finite()).then(estimated.abs()))
    return pl.coalesce(known) if known else pl.lit(None, pl.Float64)
