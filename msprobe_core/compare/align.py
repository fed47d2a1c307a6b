"""Lay two dumps side by side: one row per pair of values, in the target's execution order."""

from __future__ import annotations

from enum import Enum

import polars as pl

_SHARED = ("entry", "role", "phase")


class Match(str, Enum):
    """Which sides have a row."""

    BOTH = "both"
    TARGET = "only target"
    GOLDEN = "only golden"


def align(target: pl.DataFrame, golden: pl.DataFrame) -> pl.DataFrame:
    """Return both frames joined by row key.

    Columns of a dump's frame appear twice, ending in ``_target`` and ``_golden``; ``entry``, ``role`` and ``phase``
    once; ``match`` says which sides have the row. Rows are in the target's order; a row that only the golden side
    has follows the row that it follows there.
    """
    joined = _side(target, "target").join(_side(golden, "golden"), on=["key", "occurrence"], how="full", coalesce=True)
    has_target, has_golden = pl.col("row_target").is_not_null(), pl.col("row_golden").is_not_null()
    return (
        joined.with_columns(
            pl.when(has_target & has_golden)
            .then(pl.lit(Match.BOTH.value))
            .when(has_target)
            .then(pl.lit(Match.TARGET.value))
            .otherwise(pl.lit(Match.GOLDEN.value))
            .alias("match"),
            *[pl.coalesce(f"{name}_target", f"{name}_golden").alias(name) for name in _SHARED],
        )
        .sort("row_golden", nulls_last=True)
        .with_columns(anchor=pl.coalesce("row_target", pl.col("row_target").forward_fill(), pl.lit(-1)))
        .sort("anchor", has_golden & ~has_target, "row_golden", nulls_last=False)
        .drop(
            "anchor",
            "occurrence",
            "row_target",
            "row_golden",
            *[f"{n}_{s}" for n in _SHARED for s in ("target", "golden")],
        )
    )


def _side(frame: pl.DataFrame, side: str) -> pl.DataFrame:
    return frame.with_columns(
        # A key occurs once in a sound dump; should one occur twice, rows are paired in order.
        occurrence=pl.int_range(pl.len()).over("key"),
        row=pl.int_range(pl.len(), dtype=pl.Int64),
    ).rename({name: f"{name}_{side}" for name in [*frame.columns, "row"] if name != "key"})
