"""Noise that two runs carry into a step with their parameters.

Repetitions of one step begin with the parameters of the golden run; a target that is trained for some steps does not:
its optimizer has turned roundings of gradients into differences of parameters. That is so also where there is no more
than a formula. Then nothing measured says how far the parameters of two healthy runs may be apart, and conventional
limits hold for them; but how far they *are* apart is known, and what follows from it is no fault of this step.

It is told by the parameters being different in most tensors, as they are behind a step of an optimizer; a parameter
that is wrong is one among many. Sums of differences of independent signs grow like ``sqrt(n)``, so that statistics tell
their size too: ``|d| / |p|`` is about ``sqrt(n)`` times the relative error of the norm, or of the mean in units of the
root mean square.
"""

from __future__ import annotations

import polars as pl

from msprobe_core.judge.noise.measures import MEASURES, Measure
from msprobe_core.judge.rounding_rules import RoundingRule
from msprobe_core.model import Role

AMPLIFICATION = 8.0
"""Distance of values over that of the parameters that they are computed with.

Measured, tiny Llama and GPT-2 behind one step of AdamW in float32: 7 in half of the tensors, 50 in one of a hundred; in
bfloat16 less than 2, beside what is rounded in the step itself.
"""

SUMMED = 64 * 2.0**-24
"""By how much statistics of equal tensors may differ that were summed up in float32: more than pairwise or blocked sums
of any length show."""

_SHARE = 0.9
"""Share of parameters that are no farther off than what is carried: behind Adam, some are by far more than most, where
single elements have jumped, and few for a fault."""

_MOST = 0.5
"""Share of parameters that differ, from which on the runs have parted before this step."""


def carried_distance(rows: pl.DataFrame, *, is_foreign: bool = False) -> float:
    """Return how far values may be apart for what their parameters are; 0 where the runs begin with the same.

    Args:
        rows: Aligned, with measures, ``precision_limit`` and ``roundoff``.
        is_foreign: Whether the two are of different frameworks.
    """
    if not RoundingRule.CARRIED_PARAMETERS.is_on:
        return 0.0
    # An extreme is an element, and exact; sums over all elements are rounded, in another order by another library. In
    # one framework the sums of equal tensors are equal, so that the least difference shows another tensor.
    least_sum = SUMMED if is_foreign else 0.0
    exact = [measure for measure in MEASURES if not measure.averages]
    differs = pl.any_horizontal(
        *[(pl.col(measure.column) > 0).fill_null(value=False) for measure in exact],
        (pl.max_horizontal(Measure.NORM.column, Measure.MEAN.column) > least_sum).fill_null(value=False),
    )
    root = pl.col("numel_golden").cast(pl.Float64).sqrt()
    by_statistics = root * pl.max_horizontal(Measure.NORM.column, Measure.MEAN.column)
    own = rows.filter(is_parameter() & pl.col("roundoff").is_not_null()).select(
        differs=differs,
        distance=pl.min_horizontal(pl.coalesce(Measure.REL_L2.column, by_statistics), "precision_limit"),
    )
    if not own.height or float(own.select(pl.col("differs").mean()).item()) < _MOST:
        return 0.0
    distance = own.filter("differs").select(pl.col("distance").quantile(_SHARE)).item()
    return AMPLIFICATION * float(distance or 0.0)


def is_parameter() -> pl.Expr:
    """Whether a row is a parameter of a module."""
    return pl.col("role") == Role.PARAMETERS.value
