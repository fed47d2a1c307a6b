"""Effect of rounding on gradients after a rectifier.

A rectifier passes or blocks the gradient of an element, depending on the sign of its forward input. If two runs differ
by rounding there, elements near zero change sides, and their gradients are either complete or absent. Let the two
inputs differ by ``e`` of their norm, and let the elements of both the input and the difference be normal. The share of
elements whose sign differs is ``arctan(e) / pi``, about ``0.32 e``, while one half passes. So the gradient that passes
differs by ``sqrt(0.64 e)`` of its norm: 8 % if the inputs differ by 1 %.

Measured on tiny models, ``bench/healthy_pairs.py``: 0.05 to 0.11 where ``0.8 sqrt(e)`` is 0.05 to 0.08. The limit of
backward values after a rectifier is therefore `FACTOR` times ``sqrt(e)``, if that is more than the limit of the
precision. Floors of the closed form are a part of it, if more than a few elements change sides. The extremes of such a
gradient are single elements: they count half if no other information about elements exists, so that a wrong sign is
found, and not at all if tensors or sketches were compared. Rectifiers whose inputs differ by more than their limit
raise no limit, because consequences of a fault have to be visible.
"""

from __future__ import annotations

import math
from typing import cast

import polars as pl

from msprobe_core import names
from msprobe_core.judge.columns import SKETCH_LOW
from msprobe_core.judge.joining import filtered, filtered_parts
from msprobe_core.judge.limits import LimitTable, roundoff_of
from msprobe_core.judge.rounding_rules import RoundingRule
from msprobe_core.model import Phase, Role
from msprobe_core.store.stored_rows import Rows

FACTOR = 2.0
"""2.5 times the expected value, because small tensors have few elements near zero."""

HELPERS = ("whole_error", "is_behind_kink", "is_kink", "flips_distance")

_OF_FLOOR = 0.2
"""Part of this limit that is a floor: half of the expected value, because scores may be several times a floor."""

_ROUNDINGS = 16.0
"""Number of unit round-offs by which inputs of a rectifier may differ at most, as far as floors are concerned.

A fault before the rectifier may be within its limit, which is far more in float32.
"""

_FEW = 3.0
"""Expected number of elements that change sides up to which `noise.turned` finds them one by one."""


def with_kinks(rows: Rows, table: LimitTable) -> Rows:
    """Return ``rows`` with ``is_behind_kink``, ``whole_error``, and ``limit``, raised where the first is true.

    ``is_kink`` marks the gradients that a rectifier itself computes, if its forward inputs differ between the runs.
    ``flips_distance`` is the floor of the distance after rectifiers of which more than a few elements change sides.
    ``whole_error`` is the relative error without that of the extremes, or with one half of it.
    """
    raised = _raised(rows, table)
    if not raised:
        return rows.with_columns(
            is_behind_kink=pl.lit(value=False),
            is_kink=pl.lit(value=False),
            whole_error=pl.lit(None, pl.Float64),
            flips_distance=pl.lit(0.0),
        )
    is_backward = pl.col("phase").is_in([Phase.BACKWARD.value, Phase.PARAMETERS_GRAD.value])
    is_kink = is_backward & (pl.col("role") != Role.INPUT.value)
    limits, distances = ({entry: pair[i] for entry, pair in raised.items()} for i in (0, 1))
    own = pl.when(is_kink).then(pl.col("entry").replace_strict(limits, default=None, return_dtype=pl.Float64))
    distance = pl.when(is_kink).then(pl.col("entry").replace_strict(distances, default=None, return_dtype=pl.Float64))
    so_far = own.cum_max().forward_fill()
    is_behind = (is_backward & so_far.is_not_null() & (pl.col("limit") > 0)).fill_null(False)
    return (
        rows.with_columns(
            is_behind_kink=is_behind,
            is_kink=own.is_not_null(),
            whole_error=_whole_error(rows.columns),
            raised=so_far,
            flips_distance=pl.when(is_behind).then(distance.cum_max().forward_fill().fill_null(0.0)).otherwise(0.0),
        )
        .with_columns(limit=pl.when("is_behind_kink").then(pl.max_horizontal("limit", "raised")).otherwise("limit"))
        .drop("raised")
    )


def _raised(rows: Rows, table: LimitTable) -> dict[str, tuple[float, float]]:
    """Return the limit after each rectifier and the floor of the distance there, by the name of its backward entry."""
    if not table.rectifiers or not RoundingRule.ACTIVATION_FLIPS.is_on:
        return {}
    is_rectifier = pl.col("entry").str.contains(names.backward_of_any(table.rectifiers))
    is_backward = pl.col("phase") == Phase.BACKWARD.value
    entries = [part["entry"].unique() for part in filtered_parts(rows, ["entry"], is_backward & is_rectifier)]
    backwards_of: dict[str, list[str]] = {}
    for entry in cast("list[str]", pl.concat(entries).unique().to_list()):
        if (forward := names.forward_of(entry)) is not None:
            backwards_of.setdefault(forward, []).append(entry)
    if not backwards_of:
        return {}
    is_given = (
        pl.col("entry").is_in(list(backwards_of))
        & (pl.col("role") == Role.INPUT.value)
        & (pl.col("error") > 0)
        & (pl.col("error") <= pl.col("limit"))
    )
    given = filtered(rows, ["entry", "error", "numel_golden", "precision"], is_given)
    rounded = pl.min_horizontal("error", _ROUNDINGS * roundoff_of(pl.col("precision")))
    found: dict[str, tuple[float, float]] = {}
    of_entry = (pl.col("error").max(), rounded.max().alias("rounded"), pl.col("numel_golden").max())
    largest = given.group_by("entry").agg(of_entry)
    for entry, error, of_rounding, numel in largest.rows():
        floor = _OF_FLOOR * FACTOR * of_rounding**0.5 if of_rounding / math.pi * (numel or 0) > _FEW else 0.0
        found |= dict.fromkeys(backwards_of[entry], (FACTOR * error**0.5, floor))
    return found


def _whole_error(columns: list[str]) -> pl.Expr:
    rms = pl.col("norm_golden") / pl.col("numel_golden").cast(pl.Float64).sqrt()
    parts = [(pl.col("norm_diff"), pl.col("norm_golden")), (pl.col("mean_diff"), rms)]
    of_extremes = pl.when(pl.col(SKETCH_LOW).is_null()).then(pl.col("error") / 2)
    of_statistics = pl.max_horizontal(
        of_extremes,
        *[pl.when(part == 0).then(0.0).when(part.is_finite()).then(part.abs() / size) for part, size in parts],
    )
    if "euclidean" not in columns:
        return of_statistics
    distance = pl.col("euclidean")
    return pl.coalesce(pl.when(distance == 0).then(0.0).otherwise(distance / pl.col("norm_golden")), of_statistics)
