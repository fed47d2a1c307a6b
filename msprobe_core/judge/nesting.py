"""Judge how calls are nested, where dumps hold no values."""

from __future__ import annotations

import polars as pl

from msprobe_core.judge.columns import Match
from msprobe_core.judge.formatting import formatted
from msprobe_core.judge.verdict import Verdict
from msprobe_core.store.frame import RowKind


def judge_nesting(rows: pl.DataFrame) -> pl.DataFrame:
    """Return judged rows in which a call that stands elsewhere than its partner is an error.

    Args:
        rows: Of two frames of calls, aligned and judged; rows of values are left as they are.
    """
    is_call = pl.col("name_target") == pl.col("entry")
    both = (pl.col("match") == Match.BOTH.value) & (pl.col("kind_target") == RowKind.NONE.value)
    moved = is_call & both & pl.col("text_target").ne_missing(pl.col("text_golden"))
    said = formatted(
        "error: it is called {}, and in the golden run {}.", _within("text_target"), _within("text_golden")
    )
    return rows.with_columns(
        verdict=pl.when(moved).then(pl.lit(Verdict.ERROR.value)).otherwise("verdict"),
        messages=pl.when(moved).then(pl.concat_list("messages", said)).otherwise("messages"),
    )


def _within(column: str) -> pl.Expr:
    return (
        pl.when(pl.col(column).is_null())
        .then(pl.lit("outside of every call"))
        .otherwise(formatted("within {}", column))
    )
