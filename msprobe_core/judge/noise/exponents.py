"""Exponentials: an absolute error of the argument is a relative error of the result.

``exp(x + e) = exp(x) (1 + e)`` for a small ``e``. So where arguments are large, as the sums of logarithms by which
linear attention and state space models decay what they have seen, the result is off by the round-off of the argument
times its magnitude. Elements that a mask has made infinite, or a number in its place, are ignored: the magnitude is
then that of what the masking call was given.

What is computed from such a result is judged as any other value. It is off by less, since few elements have large
arguments and results that matter; to allow for the whole error hid faults of Mamba-2 and RWKV in bfloat16.
"""

from __future__ import annotations

import polars as pl

from msprobe_core import names
from msprobe_core.judge.joining import filtered, with_added
from msprobe_core.judge.noise.masks import IDENTITY, before_masking, is_masked, largest_unmasked
from msprobe_core.judge.rounding_rules import RoundingRule
from msprobe_core.model import Role
from msprobe_core.store.stored_rows import Rows

_EXPONENTIALS = ("exp", "exp_", "exp2", "exp2_", "expm1", "expm1_")

_MASKED = 1e4
"""Magnitude from which an argument stands for infinity: its exponential is 0 in every format."""


def with_exponents(rows: Rows, distance: str) -> Rows:
    """Return rows with ``exponent``: the relative error that a result of an exponential has by that of its argument.

    It is the same in all rows with that value, which is recognised by its statistics, and 0 in others.

    Args:
        rows: Rows in execution order.
        distance: Column of the floor of a value's distance, relative to its norm.
    """
    is_call = pl.col("entry").str.contains(names.forward_of_any(_EXPONENTIALS))
    calls = filtered(rows, ["entry", "role", *IDENTITY, distance], is_call)
    if calls.is_empty() or not RoundingRule.EXPONENTS.is_on:
        return rows.with_columns(exponent=pl.lit(0.0))
    arguments = calls.filter(pl.col("role") == Role.INPUT.value).with_columns(largest=largest_unmasked(_MASKED))
    masked = arguments.filter(is_masked(_MASKED))
    makers = filtered(rows, ["entry", *IDENTITY], (pl.col("role") == Role.OUTPUT.value) & is_masked(_MASKED))
    makers = makers.join(masked, on=IDENTITY, how="semi", nulls_equal=True)
    unmasked = before_masking(rows, makers, _MASKED).group_by(IDENTITY).agg(pl.col("unmasked").max())
    arguments = arguments.join(unmasked, on=IDENTITY, how="left", nulls_equal=True)
    error = (pl.col(distance) * pl.max_horizontal("largest", "unmasked")).max()
    errors = arguments.group_by("entry").agg(error=error.fill_nan(0.0).fill_null(0.0).clip(0.0, 1.0))
    results = calls.filter(pl.col("role") == Role.OUTPUT.value).join(errors, on="entry")
    of_values = results.group_by(IDENTITY).agg(exponent=pl.col("error").max())

    def of_value(part: pl.DataFrame) -> pl.DataFrame:
        own = part.join(of_values, on=IDENTITY, how="left", nulls_equal=True, maintain_order="left")
        return own.select(pl.col("exponent").fill_null(0.0))

    return with_added(rows, of_value, IDENTITY)
