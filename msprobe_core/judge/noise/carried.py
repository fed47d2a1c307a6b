"""Noise that two runs carry into a step with their parameters.

Repetitions of one step begin with the parameters of the golden run; a target that was trained for some steps does not:
its optimizer has converted roundings of gradients to differences of parameters. The same holds without repetitions, if
floors are formulas. In both cases no measurement shows how far the parameters of two healthy runs may differ, and
conventional limits apply to them. But how far they *do* differ is known, and the consequences are no fault of this
step.

The sign of this case is that many parameters differ, as they do after an optimizer step; a wrong parameter is one among
many. Sums of differences with independent signs grow like ``sqrt(n)``, so statistics show their size too: ``|d| / |p|``
is about ``sqrt(n)`` times the relative error of the norm, or of the mean in units of the root mean square.
"""

from __future__ import annotations

import polars as pl

from msprobe_core.judge.initial_parameters import initial_values, with_parameter
from msprobe_core.judge.noise.measures import MEASURES, Measure
from msprobe_core.judge.rounding_rules import RoundingRule
from msprobe_core.model import Role
from msprobe_core.store.stored_rows import Rows

AMPLIFICATION = 8.0
"""Distance of values divided by the distance of the parameters that they are computed with.

Measured on tiny Llama and GPT-2 after one step of AdamW in float32: 7 in half of the tensors, 50 in one of a hundred;
in bfloat16 less than 2, besides the rounding in the step itself.
"""

SUMMED = 64 * 2.0**-24
"""Maximum difference between statistics of equal tensors that were summed in float32: more than pairwise or blocked
sums of any length show."""

_VECTOR = r"^\[\d*\]$"

_SHARE = 0.9
"""Share of parameters that the carried distance covers. After Adam, some parameters differ by far more than most, where
single elements have jumped; a few differ because of a fault."""

_MANY, _LEAST = 0.45, 2
"""Share of differing matrices above which the runs count as different before this step, and their least number; of all
parameters without any matrix.

Vectors say little: Adam's first update of one that began at zero is the learning rate with the signs of its gradient.
Measured after one update of ConvNeXt with mixed precision in bfloat16: 7 of 15 matrices differed, and 2 of 33 vectors.
"""


def carried_distance(rows: Rows, *, is_foreign: bool = False, is_measured: bool = False) -> float:
    """Return how far values may differ because of their parameters; 0 if the runs begin with equal parameters.

    Args:
        rows: Aligned rows with measures, ``precision_limit`` and ``roundoff``.
        is_foreign: Whether the dumps are of different frameworks.
        is_measured: Whether the step was repeated. The repetitions then show what updates within the step carry to
            later micro-batches, so that only the parameters at its beginning count.
    """
    if not RoundingRule.CARRIED_PARAMETERS.is_on:
        return 0.0
    # An extreme is one element, and exact; sums over all elements depend on the library's summation order. Within
    # one framework the sums of equal tensors are equal, so even the smallest difference shows different tensors.
    least_sum = SUMMED if is_foreign else 0.0
    exact = [measure for measure in MEASURES if not measure.averages]
    differs = pl.any_horizontal(
        *[(pl.col(measure.column) > 0).fill_null(value=False) for measure in exact],
        (pl.max_horizontal(Measure.NORM.column, Measure.MEAN.column) > least_sum).fill_null(value=False),
    )
    root = pl.col("numel_golden").cast(pl.Float64).sqrt()
    by_statistics = root * pl.max_horizontal(Measure.NORM.column, Measure.MEAN.column)
    parameters = rows.filter(is_parameter() & pl.col("roundoff").is_not_null())
    own = (initial_values(parameters) if is_measured else with_parameter(parameters)).select(
        "parameter",
        "precision_limit",
        differs=differs,
        is_vector=pl.col("shape_golden").str.contains(_VECTOR),
        distance=pl.coalesce(Measure.REL_L2.column, by_statistics),
    )
    # In mixed precision, parameters have more digits than the gradients that update them.
    gradients = with_parameter(rows.filter(pl.col("role") == Role.PARAMETERS_GRAD.value))
    of_gradients = gradients.group_by("parameter").agg(gradient_limit=pl.col("precision_limit").max())
    own = own.join(of_gradients, on="parameter", how="left", maintain_order="left")
    bound = pl.max_horizontal("precision_limit", "gradient_limit")
    own = own.with_columns(distance=pl.min_horizontal("distance", bound))
    each = own.group_by("parameter").agg(pl.col("differs").any(), pl.col("is_vector").any())
    matrices = each.filter(~pl.col("is_vector"))
    telling = (matrices if matrices.height else each)["differs"]
    num_differing = int(telling.sum())
    if num_differing <= _MANY * len(telling) or num_differing < min(_LEAST, len(telling)):
        return 0.0
    distance = own.filter("differs").select(pl.col("distance").quantile(_SHARE)).item()
    return AMPLIFICATION * float(distance or 0.0)


def is_parameter() -> pl.Expr:
    """Whether a row is a parameter of a module."""
    return pl.col("role") == Role.PARAMETERS.value
