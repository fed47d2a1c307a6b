"""Add or share columns of frames with millions of rows without copying the existing columns."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

SLICE = 1 << 16
"""Number of rows processed at once if each row is independent: intermediate columns then take some tens of MB."""


def joined(rows: pl.DataFrame, found: pl.DataFrame, *, on: str) -> pl.DataFrame:
    """Return ``rows`` with the columns of ``found``, null where it has no row.

    A join of the whole frame would copy every column of it.

    Args:
        rows: Keep their order.
        found: Has unique values of ``on``.
        on: A column of both.
    """
    added = rows.select(on).join(found, on=on, how="left", maintain_order="left").drop(on)
    return rows.hstack(added)


def with_added(rows: pl.DataFrame, work: Callable[[pl.DataFrame], pl.DataFrame]) -> pl.DataFrame:
    """Add the columns that ``work`` computes from slices of ``rows``; columns of the same name are replaced.

    Args:
        rows: The rows. Their order is kept, and their other columns are not copied.
        work: Computes each result row from one row alone, and returns as many rows as it is given.
    """
    added = pl.concat([work(part) for part in rows.iter_slices(SLICE)] or [work(rows)], rechunk=True)
    return rows.with_columns(added.get_columns())


def numbered(texts: pl.Series) -> pl.Series:
    """Return a number for each text, equal for equal texts; fast if equal ones are consecutive, as entries are."""
    runs = texts.rle_id()
    if texts.n_unique() == runs.n_unique():
        return runs
    return pl.select(pl.lit(texts).rank("dense").cast(runs.dtype)).to_series()


def with_texts_of(frame: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame:
    """Return ``frame`` that shares with ``other`` the text columns that are equal, so that they are in memory once."""
    texts = [name for name, kind in frame.schema.items() if kind == pl.String and other.schema.get(name) == kind]
    if frame.height != other.height:
        return frame
    return frame.with_columns(other[name] for name in texts if frame[name].equals(other[name]))
