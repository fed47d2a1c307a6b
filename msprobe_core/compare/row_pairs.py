"""Pairs of rows of two sides: first as numbers of rows, then as both sides' columns beside each other.

Rows are paired by hashes of their keys, of 64 bits, so that rows of long dumps stay in files: of a million rows on each
side two different ones have one hash with a probability of 5e-8.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from msprobe_core.judge.columns import SIDES, Match
from msprobe_core.judge.joining import hashed
from msprobe_core.store.stored_rows import Rows, StoredRows, built, frame_of

SHARED = ("role", "phase")
"""Columns that pairs have once."""


@dataclass(frozen=True)
class RowPairs:
    """Numbers of rows of both sides, in the order of the result; int64, null where a side has no such row."""

    target: pl.Series
    golden: pl.Series

    @property
    def are_same(self) -> bool:
        """Whether both sides have the same rows in the same order."""
        return self.target.null_count() == 0 and self.target.equals(self.golden)


def pair_rows(target: Rows, golden: Rows) -> RowPairs:
    """Return the rows of two sides with equal keys, and those that only one side has.

    Equal keys of one side are paired in order. Rows are in the target's order; a row that only the golden side has
    follows its predecessor there.

    Args:
        target: Rows with ``key``.
        golden: The same.
    """
    own, other = hashed(target, "key"), hashed(golden, "key")
    if own.equals(other):
        same = _numbers(0, len(own))
        return RowPairs(same, same)
    head, tail = _ends_in_common(own, other)
    between = _pairs_of(*(keys.slice(head, len(keys) - head - tail) for keys in (own, other)))
    ends = [(_numbers(0, head), _numbers(len(keys) - tail, len(keys))) for keys in (own, other)]
    rows = between.select(pl.all() + head)
    return RowPairs(*(pl.concat([end[0], rows[name], end[1]]) for end, name in zip(ends, rows.columns, strict=True)))


def _numbers(begin: int, end: int) -> pl.Series:
    return pl.select(pl.int_range(begin, end, dtype=pl.Int64)).to_series()


def _ends_in_common(own: pl.Series, other: pl.Series) -> tuple[int, int]:
    """Return how many rows both sides have in common at the beginning and, from there on, at the end.

    Pairing what is between takes much more memory. A key from there that occurs again at the end may be paired with
    that, so then nothing is in common at the end.
    """
    shorter = min(len(own), len(other))
    head = _num_equal(own.head(shorter), other.head(shorter))
    tail = _num_equal(own.tail(shorter - head).reverse(), other.tail(shorter - head).reverse())
    between = pl.concat([keys.slice(head, len(keys) - head - tail) for keys in (own, other)])
    again = own.tail(tail).to_frame("key").join(between.to_frame("key"), on="key", how="semi")
    return head, 0 if again.height else tail


def _num_equal(own: pl.Series, other: pl.Series) -> int:
    """Return how many of the first elements are equal."""
    unequal = (own != other).arg_true()
    return int(unequal[0]) if len(unequal) else len(own)


def _pairs_of(own: pl.Series, other: pl.Series) -> pl.DataFrame:
    """Return ``target`` and ``golden``, the numbers of the rows with equal keys and of those of one side only."""
    row = pl.int_range(pl.len(), dtype=pl.Int64)
    # Keys are unique in a valid dump; duplicates are paired in order.
    occurrence = pl.int_range(pl.len(), dtype=pl.Int32).over("key")
    sides = [
        keys.alias("key").to_frame().with_columns(row.alias(name), occurrence=occurrence)
        for keys, name in ((own, "target"), (other, "golden"))
    ]
    joined = sides[0].join(sides[1], on=["key", "occurrence"], how="full").select("target", "golden")
    return (
        joined.sort("golden", nulls_last=True)
        .with_columns(anchor=pl.coalesce("target", pl.col("target").forward_fill(), pl.lit(-1)))
        .sort("anchor", pl.col("target").is_null(), "golden", nulls_last=False)
        .select("target", "golden")
    )


def beside(target: Rows, golden: Rows, pairs: RowPairs) -> Rows:
    """Return the columns of both sides, ending in ``_target`` and ``_golden``; see `msprobe_core.compare.align`.

    Args:
        target: Rows with ``key``, ``entry`` and the columns in `SHARED`.
        golden: The same, and ``unit``, the name of the entry in the result.
        pairs: Which rows are beside each other.
    """
    if isinstance(target, pl.DataFrame) and isinstance(golden, pl.DataFrame):
        return _paired(_taken(target, pairs.target), _taken(golden, pairs.golden))
    entries = pl.DataFrame(
        [
            hashed(target, "entry").gather(pairs.target).alias("own"),
            hashed(golden, "unit").gather(pairs.golden).alias("other"),
        ]
    )

    def part_of(begin: int, height: int) -> pl.DataFrame:
        own, other = pairs.target.slice(begin, height), pairs.golden.slice(begin, height)
        return _paired(_taken(target, own), _taken(golden, other))

    return built(entries.select(pl.coalesce("own", "other")).to_series(), part_of)


def are_in_order(target: Rows, pairs: RowPairs, phase: str) -> bool:
    """Whether both sides have their common rows of a phase in the same order.

    Args:
        target: Rows with ``phase``.
        pairs: Pairs of rows.
        phase: The phase.
    """
    phases = frame_of(target, ["phase"])["phase"]
    common = pl.DataFrame({"row": pairs.target, "other": pairs.golden}).drop_nulls()
    return common.filter(phases.gather(common["row"]) == phase)["other"].is_sorted()


def _taken(rows: Rows, numbers: pl.Series) -> pl.DataFrame:
    if isinstance(rows, StoredRows):
        return rows.taken(numbers)
    if len(numbers) == rows.height and numbers.null_count() == 0 and numbers.is_sorted():
        return rows
    return rows.select(pl.all().gather(numbers))


def _paired(target: pl.DataFrame, golden: pl.DataFrame) -> pl.DataFrame:
    sides = [
        frame.rename({name: f"{name}_{side}" for name in frame.columns})
        for frame, side in ((target, "target"), (golden, "golden"))
    ]
    both = sides[0].hstack(sides[1])
    has_target, has_golden = pl.col("key_target").is_not_null(), pl.col("key_golden").is_not_null()
    match = (
        pl.when(has_target & has_golden)
        .then(pl.lit(Match.BOTH.value))
        .when(has_target)
        .then(pl.lit(Match.TARGET.value))
        .otherwise(pl.lit(Match.GOLDEN.value))
    )
    return both.with_columns(
        match=match,
        entry=pl.coalesce("entry_target", "unit_golden"),
        **{name: pl.coalesce(f"{name}_target", f"{name}_golden") for name in ("key", *SHARED)},
    ).drop("entry_target", "unit_golden", *[f"{name}_{side}" for name in ("key", *SHARED) for side in SIDES])
