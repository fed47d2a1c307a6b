"""Parameters behind an update: by how much those of two healthy runs may differ.

Repetitions of one step begin with the golden run's parameters, and tell nothing of this. The first updates of Adam have
the size of the learning rate wherever a gradient is not zero, so where an element's gradient is all rounding its update
has either sign: extremes jump. Norm and mean of a whole parameter hardly move, and by as much as those of the same
parameter of other layers.
"""

from __future__ import annotations

import polars as pl

from msprobe_core.compare.align import Match
from msprobe_core.model import Role

ALL_NOISE = 0.3
"""From this relative floor on a value is hardly more than rounding: such as the gradient of a bias that the softmax
behind it cancels."""

_LIMIT = 8.0
"""How many times as far as its like a parameter must be to be called another."""

_LEAST, _OF_ELEMENT = 3e-5, 0.16
"""The least that its like are taken to differ by: this, or this over the number of elements, as where one jumps."""

_FEW = 3
_OF_PARAMETER = r"^(.*)\.(?:forward\.\d+\.parameters|parameters_grad\.\d+)\.(.*)$"
_SIDES = ("target", "golden")


def value_of_row() -> pl.Expr:
    """Return what a value is known again by: its statistics on both sides, as text."""
    statistics = ("numel", "max", "min", "mean", "norm")
    columns = [f"{name}_{side}" for name in statistics for side in _SIDES]
    return pl.concat_str(columns, separator=" ", ignore_nulls=True)


def with_updated_parameters(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows of a step behind the first with ``score`` and ``excess`` of parameters as said above.

    Those that have floors of their own, from repetitions of whole trainings, keep what they have. So does everything
    where errors are held against limits alone.

    Args:
        rows: As `msprobe_core.locate.nodes.with_scores` makes them.
    """
    if "noise_floor" not in rows.columns:
        return rows
    value = value_of_row()
    judged = _judged(rows).select(value.alias("value"), "drift_score", "is_of_noise").unique("value")
    of_value = rows.select(value.alias("value")).join(judged, on="value", how="left", maintain_order="left")
    is_drift = pl.col("is_parameter") & pl.col("drift_score").is_not_null()
    return (
        rows.with_columns(of_value["drift_score"], of_value["is_of_noise"])
        .with_columns(
            score=pl.when(is_drift).then("drift_score").otherwise("score"),
            score_limit=pl.when(is_drift).then(_LIMIT).otherwise("score_limit"),
            excess=pl.when(is_drift).then(pl.col("drift_score") / _LIMIT).otherwise("excess"),
            # What it is given to is of noise as well.
            noise_floor=pl.when(is_drift & pl.col("is_of_noise")).then(1.0).otherwise("noise_floor"),
        )
        .drop("drift_score", "is_of_noise")
    )


def _judged(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the parameters of modules, with how far each is off in units of what its like are."""
    place = pl.col("key").str.replace(_OF_PARAMETER, "$1 $2")
    # Gradients that are nothing beside what they are a sum of have no score.
    is_noise = (pl.col("role") == Role.PARAMETERS_GRAD.value) & (
        pl.col("is_exempt") | (pl.col("noise_floor") >= ALL_NOISE).fill_null(False)
    )
    of_noise = rows.filter(is_noise).select(place).to_series().to_list()
    own = rows.filter((pl.col("role") == Role.PARAMETERS.value) & (pl.col("match") == Match.BOTH.value))
    own = own.filter(
        pl.col("noise_floor").is_null()
        & (pl.col("norm_golden") > 0)
        & (pl.col("shape_target") == pl.col("shape_golden"))
    )
    norm = (pl.col("norm_target") - pl.col("norm_golden")).abs() / pl.col("norm_golden")
    root = pl.col("numel_golden").cast(pl.Float64).sqrt()
    mean = (pl.col("mean_target") - pl.col("mean_golden")).abs() * root / pl.col("norm_golden")
    like = place.str.replace_all(r"\.\d+", ".#")
    own = own.with_columns(place=place, like=like, drift=pl.max_horizontal(norm, mean))
    own = own.filter(pl.col("drift").is_finite())
    has_like = pl.len().over("like") >= _FEW
    usual = pl.when(has_like).then(pl.col("drift").median().over("like")).otherwise(pl.col("drift").median())
    least = pl.max_horizontal(pl.lit(_LEAST), _OF_ELEMENT / pl.col("numel_golden"))
    # Where a fault of an earlier step has reached all of them, being like the others is no excuse.
    score = pl.col("drift") / pl.max_horizontal(pl.min_horizontal(usual, "limit"), least)
    own = own.with_columns(is_of_noise=pl.col("place").is_in(of_noise))
    return own.with_columns(drift_score=pl.when("is_of_noise").then(0.0).otherwise(score))
