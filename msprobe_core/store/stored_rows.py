"""Rows of long dumps and their comparison, in files; a few columns, or a few rows, are in memory at a time.

`StoredRows` has the methods of `polars.DataFrame` that the stages of a comparison use, so these are written once for
both. An expression is computed from the columns that it names alone, and what it returns is written to files again.
Rows are divided into parts of whole entries, and columns that are computed row by row, or entry by entry, are computed
part by part.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, count
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import polars as pl

from msprobe_core.errors import StoreError
from msprobe_core.store.held_directory import temporary_directory

PART_ROWS = 1 << 15
"""Minimum number of rows in a part."""

LONG_ROWS, LONG_BYTES = 1 << 18, 1 << 26
"""Frames up to this length, and those of JSON files up to this size, stay in memory: some 280,000 rows of statistics.

A comparison of more rows would take more than 350 MB. Files make it a fifth slower, so shorter ones do not use them.
"""

_DIRECTORY = "msprobe-rows-"
"""Beginning of the names of private temporary directories."""


class _Disk:
    """A private directory, which is removed once nothing refers to it."""

    def __init__(self) -> None:
        held = temporary_directory(_DIRECTORY)
        self._numbers = count()
        self.path = held.path
        weakref.finalize(self, held.remove)

    def write(self, frame: pl.DataFrame) -> _Block:
        """Write columns. Those without a value, and equal ones, take no room.

        Raises:
            StoreError: they cannot be written.
        """
        stored: dict[str, str] = {}
        for column in frame.iter_columns():
            if column.null_count() < len(column):
                stored[column.name] = column.name
        if "key" in stored and "name" in stored and frame["key"].equals(frame["name"]):
            stored["key"] = "name"
        path = self.path / f"{next(self._numbers)}.arrow"
        if stored:
            try:
                frame.select(list(dict.fromkeys(stored.values()))).write_ipc_stream(path, compression="uncompressed")
            except (OSError, pl.exceptions.PolarsError) as error:
                raise StoreError(
                    f"{self.path}: rows of the comparison cannot be written ({error}); set TMPDIR to a directory with "
                    "more room"
                ) from error
        return _Block(path, frame.height, stored, frame.schema)


@dataclass(frozen=True)
class _Block:
    """Columns of one part.

    Attributes:
        path: Their file.
        height: Number of rows.
        stored: Columns with values, by the columns of the file that have them.
        schema: All columns.
    """

    path: Path
    height: int
    stored: Mapping[str, str]
    schema: pl.Schema

    def read(self, names: Sequence[str]) -> dict[str, pl.Series]:
        wanted = list(dict.fromkeys(self.stored[name] for name in names if name in self.stored))
        found = pl.read_ipc_stream(self.path, columns=wanted) if wanted else pl.DataFrame()
        return {
            name: found[self.stored[name]].alias(name)
            if name in self.stored
            else pl.Series(name, [], self.schema[name]).clear(self.height)
            for name in names
        }


@dataclass(frozen=True)
class _Place:
    """Where the cells of a column are.

    Attributes:
        name: Name of the column in ``blocks``.
        blocks: By part.
        constant: The cell of all rows, if they have the same by construction.
    """

    name: str
    blocks: Sequence[_Block] = ()
    constant: pl.Series | None = None


class StoredRows:
    """Rows in files. Methods that change a frame return other rows, which share the files."""

    def __init__(
        self,
        disks: Sequence[_Disk],
        heights: Sequence[int],
        places: Mapping[str, _Place],
        schema: Mapping[str, Any],
        *,
        has_whole_entries: bool,
    ) -> None:
        """Take the places of all columns; `RowsBuilder` and `stored` make rows.

        Args:
            disks: Directories of the files; the first gets new ones.
            heights: Number of rows of each part.
            places: Places of all columns.
            schema: Their types.
            has_whole_entries: Whether the rows of an entry are consecutive, and in one part.
        """
        self._disks = disks
        self._places = places
        self.heights = heights
        self.height = sum(heights)
        self.schema = pl.Schema(schema)
        self.has_whole_entries = has_whole_entries

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._places)

    # --- reading --------------------------------------------------------------------------------------------------

    def part(self, number: int, names: Iterable[str] | None = None) -> pl.DataFrame:
        """Return some columns, or all, of a part."""
        names = self.columns if names is None else list(names)
        own = {name: self._places[name] for name in names}
        blocks = {place.blocks[number].path: place.blocks[number] for place in own.values() if place.constant is None}
        found = {
            path: block.read([p.name for p in own.values() if p.constant is None and p.blocks[number] is block])
            for path, block in blocks.items()
        }
        height = self.heights[number]
        return pl.DataFrame(
            [
                found[place.blocks[number].path][place.name].alias(name)
                if place.constant is None
                else _repeated(name, place.constant, height)
                for name, place in own.items()
            ]
        )

    def parts(self, names: Iterable[str] | None = None) -> Iterator[pl.DataFrame]:
        """Yield some columns, or all, part by part."""
        names = self.columns if names is None else list(names)
        return (self.part(number, names) for number in range(len(self.heights)))

    def __getitem__(self, name: str) -> pl.Series:
        """Return a column."""
        if (constant := self._places[name].constant) is not None:
            return _repeated(name, constant, self.height)
        return pl.concat([part[name] for part in self.parts([name])], rechunk=True)

    def frame(self, names: Iterable[str] | None = None) -> pl.DataFrame:
        """Return some columns, or all, of all rows."""
        return pl.DataFrame([self[name] for name in (self.columns if names is None else names)])

    def select(self, *columns: _Columns, **named: _Column) -> pl.DataFrame:
        """Return expressions over all rows."""
        wanted = _expressions(columns, named)
        return self._frame_for(wanted).select(wanted)

    def filter(self, *conditions: _Columns) -> pl.DataFrame:
        """Return all columns of the rows that meet conditions on each row alone."""
        wanted = pl.all_horizontal(*_expressions(conditions, {})).fill_null(value=False)
        found: list[pl.DataFrame] = []
        for number, part in enumerate(self.parts(roots_of(wanted))):
            meets = part.select(wanted).to_series()
            if meets.any():
                found.append(self.part(number).filter(meets))
        return pl.concat(found) if found else pl.DataFrame(schema=self.schema)

    def of_entry(self, entry: str, names: Iterable[str] | None = None) -> pl.DataFrame:
        """Return some columns, or all, of the rows of an entry."""
        wanted = pl.Series([entry]).hash().item()
        numbers = [number for number, hashes in enumerate(self._hashes) if (hashes == wanted).any()]
        places = [(self.part(number, ["entry"])["entry"] == entry) for number in numbers]
        found = [self.part(number, names).filter(own) for number, own in zip(numbers, places, strict=True)]
        return pl.concat(found, rechunk=True) if found else self.part(0, names).clear()

    @cached_property
    def _hashes(self) -> list[pl.Series]:
        """Hashes of the entries of each part."""
        return [part["entry"].unique().hash() for part in self.parts(["entry"])]

    def taken(self, numbers: pl.Series) -> pl.DataFrame:
        """Return the rows of some numbers, in their order; a null gives a row of nulls.

        Args:
            numbers: Signed integers. Each part with one of them is read as a whole.
        """
        wanted = numbers.drop_nulls().to_numpy()
        begins = np.cumsum([0, *self.heights])
        own = np.searchsorted(begins, wanted, side="right") - 1
        found = [self.part(0).clear()]
        for number in np.unique(own).tolist():
            places = pl.Series(wanted[own == number] - begins[number])
            found.append(self.part(number).select(pl.all().gather(places)))
        order = np.full(len(numbers), -1, dtype=np.int64)
        at = np.flatnonzero(numbers.is_not_null().to_numpy())
        order[at[np.argsort(own, kind="stable")]] = np.arange(len(wanted))
        rows = pl.concat(found)
        if np.array_equal(order, np.arange(rows.height)):
            return rows.rechunk()
        return rows.select(pl.all().gather(pl.Series(order).set(pl.Series(order < 0), None)))

    def slice(self, start: int, length: int) -> pl.DataFrame:
        """Return consecutive rows."""
        begins = accumulate(self.heights, initial=0)
        found = [
            self.part(number).slice(max(start - begin, 0), start + length - max(start, begin))
            for number, (begin, height) in enumerate(zip(begins, self.heights, strict=False))
            if begin < start + length and start < begin + height
        ]
        return pl.concat(found) if found else pl.DataFrame(schema=self.schema)

    def iter_slices(self, length: int) -> Iterator[pl.DataFrame]:
        """Yield all rows, as many at a time."""
        rest = pl.DataFrame(schema=self.schema)
        for part in self.parts():
            rest = pl.concat([rest, part], rechunk=True) if rest.height else part
            whole = rest.height // length * length
            yield from rest.slice(0, whole).iter_slices(length)
            rest = rest.slice(whole)
        if rest.height:
            yield rest

    # --- other rows -----------------------------------------------------------------------------------------------

    def kept(self, condition: pl.Expr) -> StoredRows:
        """Return the rows that meet a condition on each row alone."""
        builder = RowsBuilder(self._disks[0])
        for part in self.parts():
            builder.add(part.filter(condition))
        return builder.rows(has_whole_entries=self.has_whole_entries)

    def with_columns(self, *columns: _Columns, **named: _Column) -> StoredRows:
        """Return the rows with columns computed from all rows, each column by itself, so that few are in memory."""
        rows = self
        for column in _expressions(columns, named):
            rows = rows._with(column if isinstance(column, pl.Series) else self._computed(column))
        return rows

    def with_each(self, work: Callable[[pl.DataFrame], pl.DataFrame], reads: Iterable[str] | None = None) -> StoredRows:
        """Return the rows with the columns that ``work`` returns for some rows, which are whole entries if they can be.

        Args:
            work: Returns new and replaced columns. It sees no other rows.
            reads: The columns that it is given; ``None`` for all.
        """
        reads = None if reads is None else list(reads)
        return self._with_blocks([self._disks[0].write(work(part)) for part in self.parts(reads)])

    def hstack(self, columns: pl.DataFrame | Sequence[pl.Series]) -> StoredRows:
        """Return the rows with further columns."""
        frame = columns if isinstance(columns, pl.DataFrame) else pl.DataFrame(columns)
        begins = accumulate(self.heights, initial=0)
        slices = (frame.slice(begin, height) for begin, height in zip(begins, self.heights, strict=False))
        return self._with_blocks([self._disks[0].write(own) for own in slices])

    def with_row_index(self, name: str) -> StoredRows:
        """Return the rows with their numbers."""
        return self.hstack([pl.int_range(self.height, dtype=pl.UInt32, eager=True).alias(name)])

    def in_parts(self, heights: Sequence[int]) -> StoredRows:
        """Return the rows in parts of other heights, which are those of whole entries."""
        if list(heights) == list(self.heights):
            return self
        builder = RowsBuilder(self._disks[0])
        for begin, height in zip(accumulate(heights, initial=0), heights, strict=False):
            builder.add(self.slice(begin, height))
        return builder.rows(has_whole_entries=self.has_whole_entries)

    def drop(self, *names: str | Iterable[str]) -> StoredRows:
        """Return the rows without some columns."""
        gone = {each for name in names for each in ([name] if isinstance(name, str) else name)}
        return self.named({name: name for name in self.columns if name not in gone})

    def named(self, columns: Mapping[str, str]) -> StoredRows:
        """Return some columns, given by their new names."""
        places = {new: self._places[old] for new, old in columns.items()}
        return self._other(places, {new: self.schema[old] for new, old in columns.items()})

    def beside(self, others: StoredRows) -> StoredRows:
        """Return the rows with the columns of others, which have the same parts."""
        both = self._other({**self._places, **others._places}, {**self.schema, **others.schema})
        both._disks = [*self._disks, *others._disks]
        return both

    def _other(self, places: Mapping[str, _Place], schema: Mapping[str, Any]) -> StoredRows:
        return StoredRows(self._disks, self.heights, places, schema, has_whole_entries=self.has_whole_entries)

    def _with_blocks(self, blocks: Sequence[_Block]) -> StoredRows:
        schema = blocks[0].schema
        places = {name: _Place(name, blocks) for name in schema}
        return self._other({**self._places, **places}, {**self.schema, **schema})

    def _with(self, found: pl.Series) -> StoredRows:
        if len(found) != 1 or self.height == 1:
            return self.hstack([found])
        places, schema = {found.name: _Place(found.name, constant=found)}, {found.name: found.dtype}
        return self._other({**self._places, **places}, {**self.schema, **schema})

    def _computed(self, column: pl.Expr) -> pl.Series:
        """Return a column, or its only cell if it names no others."""
        if not roots_of(column) and (found := pl.select(column).to_series()).len() == 1:
            return found
        return self._frame_for([column]).with_columns(column)[column.meta.output_name()]

    def _frame_for(self, wanted: Sequence[pl.Expr | pl.Series]) -> pl.DataFrame:
        """Return the columns that expressions name; if they name none, one with another name."""
        roots = roots_of(*wanted)
        return self.frame(roots) if roots else pl.DataFrame({"": pl.Series(np.zeros(self.height, dtype=np.bool_))})


Rows: TypeAlias = "pl.DataFrame | StoredRows"
"""Rows in memory or in files."""

_Column: TypeAlias = "pl.Expr | pl.Series | str"
_Columns: TypeAlias = "_Column | Iterable[_Column]"


class RowsBuilder:
    """Writes rows part by part."""

    def __init__(self, disk: _Disk | None = None) -> None:
        """Begin without rows."""
        self._disk = disk or _Disk()
        self._blocks: list[_Block] = []

    def add(self, part: pl.DataFrame) -> None:
        """Append a part.

        Raises:
            StoreError: it cannot be written.
        """
        self._blocks.append(self._disk.write(part))

    def rows(self, *, has_whole_entries: bool) -> StoredRows:
        """Return the rows, of which there is at least one part."""
        schema = self._blocks[0].schema
        return StoredRows(
            [self._disk],
            [block.height for block in self._blocks],
            {name: _Place(name, self._blocks) for name in schema},
            schema,
            has_whole_entries=has_whole_entries,
        )


def stored(frame: Rows, most: int | None = None) -> Rows:
    """Return rows that are in files if there are many of them, in parts of whole entries if there can be.

    Args:
        frame: Has ``entry``.
        most: Up to how many rows stay in memory; ``None`` for `LONG_ROWS`.
    """
    if isinstance(frame, StoredRows) or frame.height <= (LONG_ROWS if most is None else most):
        return frame
    return built(frame["entry"], frame.slice)


def built(entries: pl.Series, part_of: Callable[[int, int], pl.DataFrame]) -> StoredRows:
    """Return rows in files, in parts of whole entries if there can be.

    Args:
        entries: For each row, its entry or a hash of it.
        part_of: Returns the rows from a number on, as many as asked for.
    """
    runs = entries.rle_id()
    builder = RowsBuilder()
    begin = 0
    while begin < len(runs):
        # To the end of the entry with the last of as many rows.
        last = runs[min(begin + PART_ROWS, len(runs)) - 1]
        end = int(cast("Any", runs).search_sorted(last, side="right"))
        builder.add(part_of(begin, end - begin))
        begin = end
    return builder.rows(has_whole_entries=runs.n_unique() == entries.n_unique())


def stored_as(rows: Rows, frame: pl.DataFrame) -> Rows:
    """Return a frame that was made of rows; its rows are in files if theirs were and there are many."""
    return stored(frame) if isinstance(rows, StoredRows) else frame


def frame_of(rows: Rows, names: Iterable[str] | None = None) -> pl.DataFrame:
    """Return some columns, or all, in memory."""
    if isinstance(rows, StoredRows):
        return rows.frame(names)
    return rows if names is None else rows.select(list(names))


def _repeated(name: str, cell: pl.Series, number: int) -> pl.Series:
    return cast("pl.Series", cast("Any", cell).new_from_index(0, number)).alias(name)


def narrowed(rows: Rows, names: Iterable[str]) -> Rows:
    """Return those of some columns that the rows have."""
    own = [name for name in dict.fromkeys(names) if name in rows.columns]
    return rows.named({name: name for name in own}) if isinstance(rows, StoredRows) else rows.select(own)


def has_any(rows: Rows, name: str) -> bool:
    """Whether a column has a value."""
    if isinstance(rows, StoredRows):
        return any(part[name].null_count() < part.height for part in rows.parts([name]))
    return rows[name].null_count() < rows.height


def roots_of(*wanted: pl.Expr | pl.Series) -> list[str]:
    """Return the columns that expressions name, each once. `polars.col` of several columns hides their names."""
    roots = (each.meta.root_names() for each in wanted if isinstance(each, pl.Expr))
    return list(dict.fromkeys(chain.from_iterable(roots)))


def _expressions(columns: Iterable[_Columns], named: Mapping[str, _Column]) -> list[pl.Expr | pl.Series]:
    single = (pl.Expr, pl.Series, str)
    flat = [each for column in columns for each in ([column] if isinstance(column, single) else column)]
    plain = [pl.col(each) if isinstance(each, str) else each for each in flat]
    return [*plain, *[(pl.col(c) if isinstance(c, str) else c).alias(name) for name, c in named.items()]]
