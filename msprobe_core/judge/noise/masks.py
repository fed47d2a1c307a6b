"""Tensors that a mask has filled: the size of their other elements.

Attention adds -Inf, or the lowest number of the dtype, where a token must not look. Statistics then no longer tell how
large the other elements are, to which an error is relative: an extreme that is off by 7 % is 0 % off in relation to
3.4e38. The masking call was given them before: their size is the largest finite magnitude in its result and in its
inputs of as many elements. Later calls are given the same tensor, which is recognised by its statistics.
"""

from __future__ import annotations

import polars as pl

from msprobe_core.judge.joining import filtered, with_added
from msprobe_core.model import Role
from msprobe_core.store.stored_rows import Rows

MASKED_SIZE = "masked_size"
"""Column that `with_masked_sizes` adds: the size of the elements that are not masked; null if unknown or not masked."""

FILL = 1e30
"""Magnitude from which a mask has filled in an element; the lowest number of float32 and bfloat16 is -3.4e38."""

IDENTITY = ("numel_golden", "norm_golden", "max_golden", "min_golden")
"""Statistics by which a value is recognised."""

_EXTREMES = ("max_golden", "min_golden")


def with_masked_sizes(rows: Rows) -> Rows:
    """Return rows with `MASKED_SIZE`, or as they are if no recorded call has masked any tensor.

    Args:
        rows: Rows of calls, with the statistics of the golden side.
    """
    made = filtered(rows, ["entry", *IDENTITY], (pl.col("role") == Role.OUTPUT.value) & is_masked(FILL))
    if made.is_empty():
        return rows
    own = pl.max_horizontal("unmasked", largest_unmasked(FILL))
    sizes = before_masking(rows, made, FILL).group_by(IDENTITY).agg(size=own.max()).filter(pl.col("size") > 0)

    def of_value(part: pl.DataFrame) -> pl.DataFrame:
        found = part.join(sizes, on=IDENTITY, how="left", nulls_equal=True, maintain_order="left")
        return found.select(pl.col("size").alias(MASKED_SIZE))

    return with_added(rows, of_value, IDENTITY)


def before_masking(rows: Rows, made: pl.DataFrame, limit: float) -> pl.DataFrame:
    """Return ``made`` with ``unmasked``: the largest magnitude below ``limit`` that its call was given.

    Inputs of as many elements as the result count: it has theirs where nothing is masked, in contrast to products.

    Args:
        rows: Rows of calls.
        made: Masked results, with ``entry`` and `IDENTITY`.
        limit: Magnitude from which an element is masked.
    """
    key = ["entry", "numel_golden"]
    is_given = (pl.col("role") == Role.INPUT.value) & pl.col("entry").is_in(made["entry"].unique().to_list())
    given = filtered(rows, [*key, *_EXTREMES], is_given)
    return made.join(given.group_by(key).agg(unmasked=largest_unmasked(limit).max()), on=key)


def largest_unmasked(limit: float) -> pl.Expr:
    """Return the largest magnitude of the golden extremes that are below ``limit``; null if both are masked."""
    return pl.max_horizontal(pl.when(pl.col(each).abs() < limit).then(pl.col(each).abs()) for each in _EXTREMES)


def is_masked(limit: float) -> pl.Expr:
    """Whether a golden extreme has a magnitude of at least ``limit``."""
    return pl.any_horizontal(pl.col(each).abs() >= limit for each in _EXTREMES)
