"""Floors without repetitions: unit round-off times a growth with depth.

Each call rounds its result, and passes on earlier roundings. Strict bounds multiply the amplification of every call. In
a network whose blocks neither amplify nor damp, such as one of normalised residual blocks, the actual error is a sum of
independent roundings, one per call, whose size grows like the square root of their number (Higham and Mary, see
`msprobe_core.judge.noise.rounding`).

The depth of a row is the number of calls that began before it in the step, according to the dump; backward continues
the count of forward. A dump of modules only has fewer calls than were made: the calls that it has are counted.
"""

from __future__ import annotations

import math

import polars as pl

from msprobe_core.judge.joining import with_added
from msprobe_core.judge.limits import roundoff_of
from msprobe_core.judge.noise.divisions import with_divisions
from msprobe_core.judge.noise.exponents import with_exponents
from msprobe_core.judge.noise.measures import MEASURES, Measure
from msprobe_core.judge.noise.null_distribution import ScoreDistribution, ScoreDistributions
from msprobe_core.judge.noise.operations import Operations
from msprobe_core.judge.noise.rounding import least
from msprobe_core.store.stored_rows import Rows, frame_of, roots_of, stored_as

ROUNDINGS = 0.35
"""Share of each call's rounding, in unit round-offs, that reaches the end."""

_AVERAGED = 2.0
"""Factor by which averaged measures exceed the estimate for independent rows."""

CLOSED_NULLS: ScoreDistributions = {
    measure: ScoreDistribution(dof=30.0, factor=0.35, is_log=True)
    if measure is Measure.REL_L2
    else ScoreDistribution(dof=8.0, factor=1.0)
    for measure in MEASURES
}
"""Wider than those of a measured profile, because a formula knows nothing about the row."""


def closed_distance(roundoff: float, depth: int) -> float:
    """Return the floor of one value's distance, relative to its norm; `with_closed_form` computes it for rows.

    Args:
        roundoff: Unit round-off of its precision.
        depth: Number of calls that began before it.
    """
    return roundoff * max(1.0, ROUNDINGS * math.sqrt(depth))


def with_closed_form(rows: Rows, operations: Operations | None = None) -> Rows:
    """Return aligned rows with a column ``closed_{measure}`` for each floor; null for dtypes that are not floats.

    Args:
        rows: Rows in execution order, with ``roundoff`` and ``num_rows``; ``flips_distance``, if there, raises floors.
        operations: Operations of the golden dump's calls, if the dumps are of different frameworks.
    """
    depth = (pl.col("entry") != pl.col("entry").shift()).fill_null(value=True).cum_sum()
    # Before this value, others are rounded, which need not be subnormal.
    growing = roundoff_of(pl.col("precision")) * pl.max_horizontal(pl.lit(1.0), ROUNDINGS * depth.sqrt())
    flips = pl.col("flips_distance") if "flips_distance" in rows.columns else pl.lit(0.0)
    distance = pl.when(pl.col("roundoff").is_not_null()).then(pl.max_horizontal(growing, "roundoff", flips))
    shift = pl.lit(0.0)
    if operations is not None:
        from msprobe_core.judge.noise.propagation import SHIFT, SPREAD, with_flow  # unused within one framework

        rows = stored_as(rows, with_flow(frame_of(rows), operations))
        distance, shift = pl.max_horizontal(distance, SPREAD), pl.col(SHIFT).fill_null(0.0)
    rows = rows.with_columns(closed_distance=distance, closed_shift=shift)
    if operations is None:  # effects of operations include those of exponentials
        # An argument's error is often that of a sum, which many arguments share, and then does not average out.
        shift = pl.max_horizontal("closed_shift", "exponent")
        rows = with_exponents(rows, "closed_distance").with_columns(closed_shift=shift).drop("exponent")
    rows = with_divisions(rows, "closed_distance")
    floors = [
        (
            least(measure, pl.col("closed_distance")) * _AVERAGED + pl.col("closed_shift")
            if measure.averages
            else pl.max_horizontal(pl.col("closed_distance"), pl.col("roundoff")) + pl.col("closed_shift")
        ).alias(closed(measure))
        for measure in MEASURES
    ]
    raised = with_added(rows, lambda part: part.select(floors), roots_of(*floors))
    return raised.drop("closed_distance", "closed_shift")


def closed(measure: Measure) -> str:
    """Return the column of a measure's floor by the formula."""
    return f"closed_{measure.value}"
