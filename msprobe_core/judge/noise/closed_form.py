"""Floors without repetitions: unit round-off times a growth with depth.

Each call rounds its result, and passes on what was rounded before it. Bounds of what comes of that multiply what every
call may amplify; in a network whose blocks neither amplify nor damp, such as one of normalised residual blocks, what is
left is a sum of independent roundings, one of every call, whose size grows like the square root of their number (Higham
and Mary, see `msprobe_core.judge.noise.rounding`).

The depth of a row is the number of calls that began before it in the step, as the dump has them; backward goes on
where forward ended. A dump of modules alone shows fewer calls than were made: it counts what it has.
"""

from __future__ import annotations

import math

import polars as pl

from msprobe_core.judge.noise.measures import MEASURES, Measure
from msprobe_core.judge.noise.null_distribution import ScoreDistribution, ScoreDistributions
from msprobe_core.judge.noise.operations import Operations
from msprobe_core.judge.noise.rounding import least

ROUNDINGS = 0.35
"""Roundings of each call, in unit round-offs, that reach the end."""

_AVERAGED = 2.0
"""How many times what independent rows explain the averaged measures are off."""

CLOSED_NULLS: ScoreDistributions = {
    measure: ScoreDistribution(dof=30.0, factor=0.35, is_log=True)
    if measure is Measure.REL_L2
    else ScoreDistribution(dof=8.0, factor=1.0)
    for measure in MEASURES
}
"""Wider than those of a measured profile: a formula knows nothing of the row."""


def closed_distance(roundoff: float, depth: int) -> float:
    """Return the floor of the distance of one value, relative to its norm; `with_closed_form` does so for rows.

    Args:
        roundoff: Unit round-off of its precision.
        depth: How many calls began before it.
    """
    return roundoff * max(1.0, ROUNDINGS * math.sqrt(depth))


def with_closed_form(rows: pl.DataFrame, operations: Operations | None = None) -> pl.DataFrame:
    """Return aligned rows with ``closed_`` and the name of each measure: its floor; null where there are no floats.

    Args:
        rows: In execution order, with ``roundoff`` and ``num_rows``.
        operations: What the golden dump's calls compute, if the two are of different frameworks.
    """
    depth = (pl.col("entry") != pl.col("entry").shift()).fill_null(value=True).cum_sum()
    distance = pl.col("roundoff") * pl.max_horizontal(pl.lit(1.0), ROUNDINGS * depth.sqrt())
    shift = pl.lit(0.0)
    if operations is not None:
        from msprobe_core.judge.noise.flow import SHIFT, SPREAD, with_flow  # within one framework nobody needs it

        rows = with_flow(rows, operations)
        distance, shift = pl.max_horizontal(distance, SPREAD), pl.col(SHIFT).fill_null(0.0)
    rows = rows.with_columns(closed_distance=distance, closed_shift=shift)
    return rows.with_columns(
        (
            least(measure, pl.col("closed_distance")) * _AVERAGED + pl.col("closed_shift")
            if measure.averages
            else pl.max_horizontal(pl.col("closed_distance"), pl.col("roundoff")) + pl.col("closed_shift")
        ).alias(closed(measure))
        for measure in MEASURES
    ).drop("closed_distance", "closed_shift")


def closed(measure: Measure) -> str:
    """Return what the frame of rows calls the floor of a measure by the formula."""
    return f"closed_{measure.value}"
