"""Single elements that a rectifier passes in one run and blocks in another.

A rectifier decides by a sign, and for an element near zero rounding decides it: see
`msprobe_core.judge.activation_flips`. If few elements are that close to zero, as in float32, the repetitions of a run
may have turned none, and floors do not cover this case. Then the next healthy run turns one, and a whole element of its
gradient is present or missing: thousands of times the effect of rounding elsewhere.

So the backward output of a rectifier may differ by a few whole elements, if its forward and backward inputs are within
the noise. Statistics show this: one element of the size ``a`` changes the sum by ``a`` and the square of the norm by
``a^2``, and no element exceeds the largest of the incoming gradient. Values computed from it in the same backward, and
by the optimizer, are then judged by that distance.
"""

from __future__ import annotations

import polars as pl

from msprobe_core import names
from msprobe_core.judge.joining import any_of
from msprobe_core.judge.noise.measures import Measure
from msprobe_core.judge.noise.null_distribution import LEAST_LIMITS
from msprobe_core.judge.rounding_rules import RoundingRule
from msprobe_core.model import Phase, Role
from msprobe_core.store.stored_rows import Rows

MOST_TURNED = 3
"""Maximum number of turned elements in one call. With more, repetitions have turned some too, and floors show it."""

_OF_AVERAGES = 0.5
"""Share of a turned element's distance in the floors of averaged measures: it is in one row of the tensor."""

_SLACK = 1.05
"""Tolerance for the rounding of all other elements."""

_LATE = (Phase.BACKWARD.value, Phase.PARAMETERS_GRAD.value)


def turned_at(rows: Rows) -> tuple[str, float] | None:
    """Return the first backward rectifier that has turned elements, and the distance by which its gradient changed.

    Args:
        rows: Scored rows with ``worst``, the largest ratio of a score and its limit, ``is_kink``, and ``source_size``.
            The result is ``None`` unless a row exceeds its limit.
    """
    if not RoundingRule.TURNED_ELEMENTS.is_on or not any_of(rows, pl.col("worst") > 1):
        return None
    size, numel = pl.col("source_size"), pl.col("numel_golden").cast(pl.Float64)
    # Both in units of the maximum effect of one element.
    of_sum = (pl.col("mean_target") - pl.col("mean_golden")).abs() * numel / size
    of_square = (pl.col("norm_target") ** 2 - pl.col("norm_golden") ** 2).abs() / size**2
    # Compare with the least limit: later rows may exceed their limits even if this one does not.
    least = {measure.value: limit for measure, limit in LEAST_LIMITS.items()}
    least_limit = pl.col("score_measure").replace_strict(least, default=None, return_dtype=pl.Float64)
    telling = rows.filter(pl.col("is_kink") & (pl.col("score") > least_limit)).select(
        "entry",
        few=(pl.max_horizontal(of_sum, of_square) <= MOST_TURNED * _SLACK).fill_null(value=False),
        distance=pl.max_horizontal(of_square.sqrt(), of_sum) * size / pl.col("norm_golden"),
    )
    for entry, few, distance in telling.rows():
        if few and distance > 0 and _is_given_what_is_right(rows, entry):
            return entry, float(distance)
    return None


def _is_given_what_is_right(rows: Rows, entry: str) -> bool:
    calls = [entry, names.forward_of(entry)]
    given = rows.filter(pl.col("entry").is_in(calls) & (pl.col("role") == Role.INPUT.value))
    return not (given["worst"] > 1).any()


def with_downstream(rows: Rows, entry: str) -> Rows:
    """Return rows with ``is_behind_turned``: whether they are computed from the result of a backward call.

    Forwards that precede a later backward belong to another micro-batch; rows after the last backward are an update.
    """
    position = pl.int_range(pl.len())
    is_late = pl.col("phase").is_in(_LATE)
    first = position.filter(pl.col("entry") == entry).min()
    last = position.filter(is_late).max()
    return rows.with_columns(is_behind_turned=(position >= first) & (is_late | (position > last)))


def raised(measure: Measure, floor: pl.Expr, distance: float) -> pl.Expr:
    """Return the floor of a measure for a gradient that is off by the distance of turned elements."""
    least = distance * (_OF_AVERAGES if measure.averages else 1.0)
    is_raised = pl.col("is_behind_turned") & floor.is_not_null()
    return pl.when(is_raised).then(pl.max_horizontal(floor, pl.lit(least))).otherwise(floor)
