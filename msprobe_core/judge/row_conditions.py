"""Conditions on rows, used by the rules that judge them."""

from __future__ import annotations

import polars as pl

from msprobe_core.judge import statistics_columns
from msprobe_core.judge.columns import EXTRA_ERROR, EXTRA_LIMIT, Match
from msprobe_core.judge.formatting import formatted
from msprobe_core.judge.limits import LOWEST_FINITE, LimitTable
from msprobe_core.model import Role
from msprobe_core.store.frame import RowKind

FROM_END = "is_counted_from_end"
"""Column: whether two numbers mean the same size or dimension, which one side counts from the end."""

EXCUSE, EXCUSE_OF = "excuse", "excuse_of"
"""Columns with the reason for which a row is not judged, as a finding's code, and the side or call that it names."""

DEVICE_TEXT = r"^(cpu|cuda|npu|gpu|xpu|mps|meta|ascend)(:(\d+|None))?$"
_DTYPE_TEXT = r"^(torch|mindspore)\.\w+$"

_FOREIGN_DTYPE = r"^((torch|mindspore|ms|mstype)\.)?(b?float|u?int|complex|bool)_?\d*$"


def both(kind: RowKind) -> pl.Expr:
    """Whether both sides have a row of a kind."""
    return (pl.col("kind_target") == kind.value) & (pl.col("kind_golden") == kind.value)


def is_moved() -> pl.Expr:
    """Whether a call is nested inside another call than its partner; never true for rows of values.

    In dumps without values, rows are calls, whose text is the enclosing call.
    """
    is_call = pl.col("name_target") == pl.col("entry")
    is_pair = (pl.col("match") == Match.BOTH.value) & (pl.col("kind_target") == RowKind.NONE.value)
    return (is_call & is_pair & pl.col("text_target").ne_missing(pl.col("text_golden"))).fill_null(False)


def other_grad(*, is_foreign: bool) -> pl.Expr:
    """Whether ``requires_grad`` differs; always false between two frameworks, where it means nothing."""
    return pl.lit(value=False) if is_foreign else pl.col("requires_grad_target") != pl.col("requires_grad_golden")


def same_shape() -> pl.Expr:
    """Whether the shapes are equal; null if one is unknown."""
    return pl.col("shape_target") == pl.col("shape_golden")


def is_over_in_statistic() -> pl.Expr:
    """Whether a statistic of a plugin differs by more than its limit; null without one."""
    return pl.col(EXTRA_ERROR) > pl.col(EXTRA_LIMIT)


def is_default() -> pl.Expr:
    """Whether one side has a value and the other has nothing, or one has a number and the other a tensor of it."""
    kinds = [pl.col(f"kind_{side}").cast(pl.String) for side in ("target", "golden")]
    has_tensor = pl.any_horizontal(*[kind == RowKind.TENSOR.value for kind in kinds])
    is_number = pl.all_horizontal(*[kind != RowKind.NONE.value for kind in kinds])
    numels = [pl.col(f"numel_{side}").fill_null(1) for side in ("target", "golden")]
    is_same_number = (pl.max_horizontal(numels) == 1) & statistics_columns.is_equal("max") & is_number
    return (pl.col("role") == Role.INPUT.value) & (~has_tensor | is_same_number).fill_null(False)


def scalars_agree(table: LimitTable, *, is_foreign: bool = False) -> pl.Expr:
    """Whether two arguments that are not tensors count as equal."""
    target, golden = pl.col("text_target"), pl.col("text_golden")
    same_text = target == golden
    are_numbers = pl.col("type_target").is_in(["int", "float"]) & pl.col("type_golden").is_in(["int", "float"])
    both_floats = are_numbers & ((pl.col("type_target") == "float") | (pl.col("type_golden") == "float"))
    difference = (pl.col("max_target") - pl.col("max_golden")).abs()
    is_within = difference <= table.scalar * pl.col("max_golden").abs()
    close = both_floats & (statistics_columns.is_equal("max") | is_within)
    # Healthy runs may use other devices and cast to other formats.
    devices = target.str.contains(DEVICE_TEXT) & golden.str.contains(DEVICE_TEXT)
    dtypes = target.str.contains(_DTYPE_TEXT) & golden.str.contains(_DTYPE_TEXT)
    grounds = [same_text, close, are_lowest(), devices, dtypes]
    if is_foreign:
        types = [pl.col(f"type_{side}") for side in ("target", "golden")]
        are_values = pl.all_horizontal(*[kind.is_in(["int", "float", "bool"]) for kind in types])
        named = [text.str.to_lowercase().str.contains(_FOREIGN_DTYPE) for text in (target, golden)]
        # One side may write -1 where the other writes the size or the dimension itself.
        grounds += [are_values & statistics_columns.is_equal("max"), pl.col(FROM_END), named[0] & named[1]]
    return pl.any_horizontal(ground.fill_null(False) for ground in grounds)


def are_lowest() -> pl.Expr:
    """Whether both sides have the lowest number of a dtype, with which a mask is filled; their dtypes may differ."""
    return pl.col("max_target").is_in(LOWEST_FINITE) & pl.col("max_golden").is_in(LOWEST_FINITE)


def has_failed() -> pl.Expr:
    """Whether a side could not record the value, and has a reason for it."""
    return pl.col("failure_target").is_not_null() | pl.col("failure_golden").is_not_null()


def failures() -> pl.Expr:
    """Return the reasons for which the sides could not record the value."""
    sides = [
        pl.when(pl.col(f"failure_{side}").is_not_null()).then(formatted(f"{side} {{}}", f"failure_{side}"))
        for side in ("target", "golden")
    ]
    return pl.concat_str(sides, separator="; ", ignore_nulls=True)


def is_uncompared() -> pl.Expr:
    """Whether both sides have a tensor of the same shape with elements, and none of its values could be compared.

    False if a side has a reason for this.
    """
    both_tensors = (pl.col("match") == Match.BOTH.value) & both(RowKind.TENSOR)
    has_no_error = pl.col("error").is_null() & pl.col("judged_error").is_null()
    has_no_ground = has_no_error & ~pl.col("is_exempt") & pl.coalesce("problem", "unread").is_null()
    has_checksums = pl.col("checksum_target").is_not_null() & pl.col("checksum_golden").is_not_null()
    is_special = statistics_columns.has_nan_mismatch() | statistics_columns.has_inf_mismatch() | _has_equal_specials()
    return both_tensors & ~has_failed() & has_no_ground & ~has_checksums & ~is_special & (pl.col("numel_golden") > 0)


def _has_equal_specials() -> pl.Expr:
    return pl.any_horizontal(
        *[statistics_columns.is_equal(name).fill_null(False) for name in statistics_columns.STATISTICS]
    )


def lacks_statistics(side: str) -> pl.Expr:
    """Whether a side has no statistics for the row."""
    return pl.all_horizontal(*[pl.col(f"{name}_{side}").is_null() for name in statistics_columns.STATISTICS])


def differs_exactly(*, by_checksum: bool) -> pl.Expr:
    """Whether a row breaks a rule of exact equality."""
    other_bytes = (pl.col("checksum_target") != pl.col("checksum_golden")) & by_checksum
    other_integers = (pl.col("judged_error") > 0) & pl.col("precision").is_null()
    return pl.any_horizontal(
        rule.fill_null(value=False)
        for rule in (other_bytes, other_integers, pl.col("exact_target") != pl.col("exact_golden"))
    )
