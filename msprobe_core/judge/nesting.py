"""Nesting of calls in dumps without values: expressions over rows of calls, whose text is the enclosing call."""

from __future__ import annotations

import polars as pl

from msprobe_core.judge.columns import Match
from msprobe_core.store.frame import RowKind


def is_moved() -> pl.Expr:
    """Whether a call is nested inside another call than its partner; never true for rows of values."""
    is_call = pl.col("name_target") == pl.col("entry")
    both = (pl.col("match") == Match.BOTH.value) & (pl.col("kind_target") == RowKind.NONE.value)
    return (is_call & both & pl.col("text_target").ne_missing(pl.col("text_golden"))).fill_null(False)
