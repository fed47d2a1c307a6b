"""Write tables to files for programs: csv, JSON lines and Parquet."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import msgspec
import polars as pl
from polars.io.plugins import register_io_source

from msprobe_core.protocols.presentation import Table, TableRows
from msprobe_core.report.escape import guarded
from msprobe_core.store.json_writer import finite_number


def write_csv(table: Table, file: BinaryIO) -> None:
    """Write a table as csv: comma, UTF-8, quotes where they are needed (RFC 4180, with line feeds).

    Texts that a spreadsheet would execute are escaped, see `msprobe_core.report.escape`.

    Raises:
        OSError: it cannot be written.
    """
    for i, cells in enumerate(table.cells()):
        buffer = io.BytesIO()
        guarded(cells).write_csv(buffer, include_header=i == 0)
        file.write(buffer.getbuffer())


_SLICE = 10_000
"""Number of rows converted to Python objects at a time."""


def write_jsonl(table: Table, file: BinaryIO) -> None:
    """Write a table as JSON lines: one object for each row, with all columns and ``null`` for an empty cell.

    JSON has no non-finite numbers; they become the texts ``NaN``, ``Infinity`` and ``-Infinity``.

    Raises:
        OSError: it cannot be written.
    """
    columns = [column.value.alias(column.header) for column in table.columns]
    encoder = msgspec.json.Encoder()
    for rows in table.rows.iter_slices(_SLICE):
        lines = ({name: finite_number(cell) for name, cell in row.items()} for row in rows.select(columns).to_dicts())
        file.writelines(encoder.encode(line) + b"\n" for line in lines)


def write_parquet(table: Table, file: BinaryIO) -> None:
    """Write a table as Parquet, with the types of its columns; texts are unchanged.

    Raises:
        OSError: it cannot be written.
    """
    columns = [column.value.alias(column.header) for column in table.columns]
    try:
        _lazy(table.rows, columns).sink_parquet(file)
    except pl.exceptions.ComputeError as error:  # polars reports a full disk this way
        raise OSError(str(error)) from error


_GROUP = 100_000
"""Number of rows in a group of a Parquet file."""


def _lazy(rows: TableRows, columns: Sequence[pl.Expr]) -> pl.LazyFrame:
    """Return columns that are computed while they are written."""
    if isinstance(rows, pl.DataFrame):
        return rows.lazy().select(columns)
    schema = rows.slice(0, 0).select(columns).schema

    def parts(*_: object) -> Iterator[pl.DataFrame]:
        return (part.select(columns) for part in rows.iter_slices(_GROUP))

    return register_io_source(parts, schema=schema)
