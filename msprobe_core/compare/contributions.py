"""Contributions to gradients that only one side has, because it sets gradients to zero instead of removing them."""

from __future__ import annotations

import polars as pl

from msprobe_core import names
from msprobe_core.judge.columns import SIDES, Match
from msprobe_core.judge.joining import any_of, filtered, kept
from msprobe_core.judge.statistics_columns import STATISTICS
from msprobe_core.model import Role
from msprobe_core.store.stored_rows import Rows


def without_lone_additions_to_zero(rows: Rows) -> Rows:
    """Leave out contributions of one side alone that equal the gradient as accumulated: it was zero before.

    As after ``zero_grad(set_to_none=False)``. Where a gradient was not zeroed, both differ.
    """
    is_part = pl.coalesce("name_target", "name_golden").str.contains(names.CONTRIBUTION_ROW)
    is_lone = (pl.col("match") != Match.BOTH.value) & is_part
    if not any_of(rows, is_lone):
        return rows
    is_sum = (pl.col("role") == Role.PARAMETERS_GRAD.value) & ~is_part
    for side in SIDES:
        name, values = f"name_{side}", [f"{value}_{side}" for value in (*STATISTICS, "checksum")]
        has_name = pl.col(name).is_not_null()
        parts = filtered(rows, [name, *values], is_lone & has_name)
        sums = filtered(rows, [name, *values], is_sum & has_name)
        sum_of = pl.col(name).str.replace(rf"\.{names.CONTRIBUTION}(\.\d+)?$", "$1")
        both = parts.with_columns(sum=sum_of).join(sums, left_on="sum", right_on=name, suffix="_sum")
        # Without statistics there are checksums; with them a checksum tells no more, but that -0 and 0 are added to 0.
        statistics, checksum = values[:-1], values[-1]
        is_equal = pl.all_horizontal(pl.col(each) == pl.col(f"{each}_sum") for each in statistics)
        is_same = pl.coalesce(is_equal, pl.col(checksum) == pl.col(f"{checksum}_sum"))
        zeroed = both.filter(is_same)[name].to_list()
        rows = kept(rows, ~(is_lone & pl.col(name).is_in(zeroed).fill_null(value=False)))
    return rows
