"""Effect of one rounding of every element of a tensor on each measure: the lower bound of floors.

Let the elements be rounded independently, each by a relative error of at most the unit round-off ``u``. The distance is
then of the size of ``u`` times the norm, and so is the error of an extreme, which is one element. In a sum of ``n``
elements the errors have both signs and grow like ``sqrt(n)`` while the sum grows like ``n``: norm, mean and scale are
off by ``u / sqrt(n)``. Source: Higham and Mary, *A New Approach to Probabilistic Rounding Error Analysis*, SIAM Journal
on Scientific Computing 41(5), 2019: constants ``n u`` in bounds become ``sqrt(n) u`` if roundings are independent with
mean zero.

They are not quite independent: an intermediate rounding, such as that of the reciprocal root mean square of a row in a
normalisation, is shared by all elements of the last dimension, or by the channels of a position in an image. So the
floors of averaged measures are at least the share of the distance that remains if only the rows are independent.

Nor do all elements count. The errors of a few large elements do not average out over many small ones: the gradient of
an embedding has rows for the tokens of the step, and zeros for the rest of the vocabulary. The largest of ``n`` normal
elements is about ``sqrt(2 ln n)`` times their root mean square; if it is much larger, correspondingly fewer elements
make up the norm.
"""

from __future__ import annotations

import polars as pl

from msprobe_core.judge.joining import with_added
from msprobe_core.judge.limits import roundoff_of
from msprobe_core.judge.noise.channel_shapes import ChannelShapes
from msprobe_core.judge.noise.measures import Measure
from msprobe_core.store.stored_rows import Rows, roots_of

RESOLUTION = 2.0**-23
"""Relative error of statistics that were summed in float32, for tensors in float32 or coarser formats."""

ROW_SHARE = 0.5
"""Share of the estimate for independent rows that floors contain at least.

Measured on tiny Llama and GPT-2 in bfloat16, three perturbed repetitions: the error of the norm is 0.2 to 0.7 times the
distance over the square root of the number of rows in half of the tensors, up to 6 times in one of a hundred.
"""


_FLOAT16 = r"(?i)\b(?:float16|half)$"

_SMALLEST_FLOAT16 = 2.0**-24
"""Smallest positive number in float16, which is the distance of subnormal ones. Source: IEEE 754-2019, sec. 3.3."""

_USUAL_TAILS = 8.0
"""How many times the square of a normal tensor's largest element may be exceeded before fewer elements count."""


def with_sizes(rows: Rows, shapes: ChannelShapes | None = None) -> Rows:
    """Return aligned rows with ``roundoff``, the largest error of one rounding, and ``num_rows``.

    ``roundoff`` is the unit round-off of the row's precision; more for float16 whose typical elements are subnormal, as
    those of gradients may be.

    ``num_rows`` is the number of elements that count over the last dimension, or over the channels of ``shapes``; at
    least 2 for several rows; 1 for a vector, and for the result of a reduction over the last dimension, whose elements
    have no others in their row. Both are null for dtypes that are not floats.
    """
    last = pl.col("shape_golden").str.extract(r"(\d+)\]$").cast(pl.Float64)
    numel = pl.col("numel_golden").cast(pl.Float64)
    is_float = pl.col("precision").is_not_null()
    num_rows = pl.when(last > 1).then(numel / last).otherwise(1.0)
    if shapes is not None:
        num_rows = pl.coalesce(shapes.num_rows(), num_rows)
    # What averages over several rows is judged as such, however few of them count.
    num_rows = pl.max_horizontal(num_rows * _share_that_counts(numel), pl.min_horizontal(num_rows, pl.lit(2.0)))
    added = {
        "roundoff": pl.when(is_float).then(_largest_rounding(numel)),
        "num_rows": pl.when(is_float).then(pl.max_horizontal(num_rows, pl.lit(1.0)).fill_nan(1.0).fill_null(1.0)),
    }
    return with_added(rows, lambda part: part.select(**added), roots_of(*added.values()))


def _largest_rounding(numel: pl.Expr) -> pl.Expr:
    """Return the largest error of one rounding, relative to a typical element; 1 if it is as large as the element."""
    size = pl.col("norm_golden") / (numel * _share_that_counts(numel)).sqrt()
    subnormal = (_SMALLEST_FLOAT16 / 2 / size).fill_nan(0.0).fill_null(0.0).clip(0.0, 1.0)
    is_float16 = pl.any_horizontal(pl.col(f"dtype_{side}").str.contains(_FLOAT16) for side in ("target", "golden"))
    return pl.max_horizontal(roundoff_of(pl.col("precision")), pl.when(is_float16 & (size > 0)).then(subnormal))


def _share_that_counts(numel: pl.Expr) -> pl.Expr:
    """Return the share of the elements that make up the norm.

    It is 1 if the largest element is at most ``sqrt(_USUAL_TAILS)`` times as large as that of normal elements.
    """
    squares = pl.col("norm_golden") ** 2
    largest = pl.max_horizontal(pl.col("max_golden").abs(), pl.col("min_golden").abs())
    share = _USUAL_TAILS * 2 * numel.log() * squares / (numel * largest**2)
    return share.fill_nan(1.0).fill_null(1.0).clip(0.0, 1.0)


def least(measure: Measure, distance: pl.Expr) -> pl.Expr:
    """Return the lower bound of the floor of a measure.

    Args:
        measure: The measure.
        distance: Floor of ``rel_l2``, or of its substitute.
    """
    roundoff = pl.col("roundoff")
    if not measure.averages:
        return roundoff
    numel = pl.max_horizontal(pl.col("numel_golden").cast(pl.Float64), pl.lit(1.0))
    return pl.max_horizontal(
        roundoff / numel.sqrt(),
        ROW_SHARE * pl.max_horizontal(distance, roundoff) / pl.col("num_rows").sqrt(),
        pl.min_horizontal(2 * roundoff, pl.lit(RESOLUTION)),
    )
