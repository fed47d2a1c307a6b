"""Add or share columns of frames with millions of rows without copying the existing columns.

Rows may be in files (`msprobe_core.store.stored_rows`), and are then read in parts of whole entries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np
import polars as pl

from msprobe_core.store.stored_rows import Rows, StoredRows, roots_of

SLICE = 1 << 16
"""Number of rows processed at once if each row is independent: intermediate columns then take some tens of MB."""


def joined(rows: Rows, found: pl.DataFrame, *, on: str) -> Rows:
    """Return ``rows`` with the columns of ``found``, null where it has no row.

    A join of the whole frame would copy every column of it.

    Args:
        rows: Keep their order.
        found: Has unique values of ``on``.
        on: A column of both.
    """

    def beside(part: pl.DataFrame) -> pl.DataFrame:
        return part.select(on).join(found, on=on, how="left", maintain_order="left").drop(on)

    return rows.with_each(beside, [on]) if isinstance(rows, StoredRows) else rows.hstack(beside(rows))


def with_added(rows: Rows, work: Callable[[pl.DataFrame], pl.DataFrame], reads: Iterable[str] | None = None) -> Rows:
    """Add the columns that ``work`` computes from slices of ``rows``; columns of the same name are replaced.

    Args:
        rows: The rows. Their order is kept, and their other columns are not copied.
        work: Computes each result row from one row alone, and returns as many rows as it is given.
        reads: Columns that it reads; ``None`` for all.
    """
    if isinstance(rows, StoredRows):
        return rows.with_each(work, reads)
    added = pl.concat([work(part) for part in rows.iter_slices(SLICE)] or [work(rows)], rechunk=True)
    return rows.with_columns(added.get_columns())


def with_added_by_entry(rows: Rows, work: Callable[[pl.DataFrame], pl.DataFrame], reads: Iterable[str]) -> Rows:
    """Add the columns that ``work`` computes from entries, of which it treats each by itself; see `with_added`."""
    if not isinstance(rows, StoredRows):
        return rows.with_columns(work(rows).get_columns())
    return rows.with_each(work, reads) if rows.has_whole_entries else rows.hstack(work(rows.frame(reads)))


def with_marks(rows: Rows, name: str, numbers: Collection[int]) -> Rows:
    """Add a column that is true for the rows of some numbers."""
    if not numbers:
        return rows.with_columns(pl.lit(value=False).alias(name))
    is_marked = np.zeros(rows.height, dtype=np.bool_)
    is_marked[list(numbers)] = True
    return rows.with_columns(pl.Series(name, is_marked))


def parts_of(rows: Rows, names: Iterable[str]) -> Iterator[pl.DataFrame]:
    """Yield some columns of all rows: at once, or of rows in files part by part."""
    return rows.parts(names) if isinstance(rows, StoredRows) else iter([rows.select(list(names))])


def any_of(rows: Rows, condition: pl.Expr) -> bool:
    """Whether any row meets a condition on each row alone."""
    return any(bool(part.select(condition.any()).item()) for part in parts_of(rows, roots_of(condition)))


def filtered(rows: Rows, names: Iterable[str], condition: pl.Expr, index: str | None = None) -> pl.DataFrame:
    """Return some columns of the rows that meet a condition on each row alone.

    Args:
        rows: The rows.
        names: The columns.
        condition: The condition.
        index: Name of a further column, with the numbers of the rows.
    """
    return pl.concat(filtered_parts(rows, names, condition, index))


def filtered_parts(
    rows: Rows, names: Iterable[str], condition: pl.Expr, index: str | None = None
) -> Iterator[pl.DataFrame]:
    """Yield the result of `filtered` for the parts of the rows."""
    names, begin = list(names), 0
    for part in parts_of(rows, dict.fromkeys([*names, *roots_of(condition)])):
        numbered = part if index is None else part.with_row_index(index, begin)
        yield numbered.filter(condition).select(*([] if index is None else [index]), *names)
        begin += part.height


def kept(rows: Rows, condition: pl.Expr) -> Rows:
    """Return the rows that meet a condition on each row alone."""
    return rows.kept(condition) if isinstance(rows, StoredRows) else rows.filter(condition)


def of_entry(rows: Rows, entry: str, names: Iterable[str] | None = None) -> pl.DataFrame:
    """Return some columns, or all, of the rows of an entry."""
    if isinstance(rows, StoredRows):
        return rows.of_entry(entry, names)
    own = rows.filter(pl.col("entry") == entry)
    return own if names is None else own.select(list(names))


def by_entry(rows: Rows, names: Iterable[str], work: Callable[[pl.DataFrame], pl.DataFrame]) -> pl.DataFrame:
    """Return the result of a function of entries, of all parts in turn if these are whole entries.

    Args:
        rows: The rows.
        names: The columns that the function reads.
        work: The function; it treats each entry by itself.
    """
    if not isinstance(rows, StoredRows):
        return work(rows)
    return pl.concat(map(work, rows.parts(names))) if rows.has_whole_entries else work(rows.frame(names))


def hashed(rows: Rows, name: str) -> pl.Series:
    """Return hashes of a column of texts, which take a tenth of the memory; uint64, equal for equal texts."""
    return pl.concat([part[name].hash() for part in parts_of(rows, [name])], rechunk=True)


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
