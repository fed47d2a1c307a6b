"""Divisions by almost nothing: the update of Adam where a gradient is rounding noise.

``addcdiv`` adds ``value * a / d``. Errors of ``a`` and ``d`` are relative to typical elements, ``e rms(d)``. So the
quotient of an element with a divisor of ``m`` is off by ``e rms(d) / m`` of a typical one, and has a random sign if
that exceeds 1. The statistics of ``d`` show the smallest divisor. How many elements are that small follows from their
distribution, which is not recorded:

* Elements of a normal distribution are below ``t rms`` with a probability of ``0.8 t``, so the smallest of ``n`` is
  near ``1.25 rms / n``.
* If the smallest is far below that, a part of the tensor is made of rounding alone, such as the bias of keys inside a
  fused bias of queries, keys and values, whose gradient a softmax cancels; then all elements may be small.

Elements that turn are independent: ``k`` of ``n`` move the update by ``2 sqrt(k / n)`` of its norm.
"""

from __future__ import annotations

import polars as pl

from msprobe_core import names
from msprobe_core.judge.joining import filtered
from msprobe_core.judge.rounding_rules import RoundingRule
from msprobe_core.model import Role
from msprobe_core.store.stored_rows import Rows

_APIS = ("addcdiv", "addcdiv_", "_foreach_addcdiv", "_foreach_addcdiv_")
_NUMERATOR, _DIVISOR, _VALUE = "1", "2", "3"
"""Positions of the arguments; ``value`` is also given by its name."""

_PLACE = r"\.(?:input|output)\.(\w+)(?:\.(\d+))?$"
_HALF_NORMAL = 0.8
"""Density of a half-normal distribution at zero, for a root mean square of 1: sqrt(2 / pi)."""

_FAR_BELOW = 0.1
"""Ratio of the smallest element to ``rms / n`` below which the tensor does not have one distribution.

The smallest of ``n`` normal elements is below it in 8 % of all tensors.
"""


def is_quotient_added() -> pl.Expr:
    """Whether a row is the result of ``addcdiv``, such as a parameter after Adam's update."""
    return pl.col("entry").str.contains(names.forward_of_any(_APIS)) & (pl.col("role") == Role.OUTPUT.value)


_READ = ("entry", "key", "role", "norm_golden", "numel_golden", "min_golden", "max_golden")


def with_divisions(rows: Rows, distance: str) -> Rows:
    """Return rows with the column ``distance`` raised, for results of ``addcdiv``, to what small divisors explain.

    Args:
        rows: Rows in execution order.
        distance: Column of the floor of a value's distance, relative to its norm.
    """
    if not RoundingRule.SMALL_DIVISORS.is_on:
        return rows
    is_call = pl.col("entry").str.contains(names.forward_of_any(_APIS))
    calls = filtered(rows, [name for name in (*_READ, distance) if name in rows.columns], is_call, "row")
    if calls.is_empty():
        return rows
    calls = calls.with_columns(pl.col("key").str.extract(_PLACE, group).alias(f"at_{group}") for group in (1, 2))
    is_input = pl.col("role") == Role.INPUT.value
    size = pl.col("norm_golden") / pl.col("numel_golden").cast(pl.Float64).sqrt()

    def argument(place: str, **columns: pl.Expr) -> pl.DataFrame:
        found = calls.filter(is_input & pl.col("at_1").is_in([place, "value"] if place == _VALUE else [place]))
        return found.select("entry", pl.col("at_2").alias("item"), **columns).unique(["entry", "item"], keep="first")

    results = calls.filter(pl.col("role") == Role.OUTPUT.value).with_columns(
        # The only result, or that of one tensor of a list.
        item=pl.when(pl.col("entry").str.contains("_foreach_", literal=True)).then(pl.coalesce("at_2", "at_1"))
    )
    for one in (
        argument(_NUMERATOR, above=size),
        argument(_DIVISOR, below=size, smallest=pl.col("min_golden").clip(lower_bound=0.0)),
    ):
        results = results.join(one, on=["entry", "item"], how="left", nulls_equal=True, maintain_order="left")
    factor = argument(_VALUE, factor=pl.col("max_golden").abs())
    results = results.join(factor, on=["entry", "item"], how="left", nulls_equal=True, maintain_order="left")
    common = factor.filter(pl.col("item").is_null()).select("entry", common="factor")
    results = results.join(common, on="entry", how="left", maintain_order="left")
    number = pl.col("numel_golden").cast(pl.Float64)
    length = pl.coalesce("factor", "common", pl.lit(1.0)) * pl.col("above") / pl.col("below") * number.sqrt()
    moved = length * _turned(pl.col(distance), pl.col("smallest") / pl.col("below"), number) / pl.col("norm_golden")
    raised = results.select("row", moved=pl.when(moved.is_finite()).then(moved))
    of_all = pl.select(row=pl.int_range(rows.height, dtype=pl.UInt32)).join(
        raised, on="row", how="left", maintain_order="left"
    )
    return (
        rows.with_columns(of_all["moved"])
        .with_columns(pl.max_horizontal(distance, "moved").alias(distance))
        .drop("moved")
    )


def _turned(error: pl.Expr, smallest: pl.Expr, number: pl.Expr) -> pl.Expr:
    """Return the error of quotients, relative to their norm.

    Args:
        error: Error of an element, relative to the root mean square.
        smallest: Smallest divisor, relative to the root mean square.
        number: Number of elements.
    """
    gain = pl.min_horizontal(pl.lit(1.0), error / smallest)
    few = 1 + 2 * _HALF_NORMAL * pl.max_horizontal(smallest, error) * number
    count = pl.when(smallest * number < _FAR_BELOW).then(number).otherwise(pl.min_horizontal(few, number))
    return 2 * gain * (count / number).sqrt()
