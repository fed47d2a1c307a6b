"""Write tables to files for programs: csv and Parquet."""

from __future__ import annotations

import io
from typing import BinaryIO

import polars as pl

from msprobe_core.report.guard import guarded
from msprobe_core.report.table import Table


def write_csv(table: Table, file: BinaryIO) -> None:
    """Write a table as csv: comma, UTF-8, quotes where they are needed (RFC 4180, with line feeds).

    Texts that a spreadsheet would run are quoted, see `msprobe_core.report.guard`.

    Raises:
        OSError: it cannot be written.
    """
    for i, cells in enumerate(table.cells()):
        buffer = io.BytesIO()
        guarded(cells).write_csv(buffer, include_header=i == 0)
        file.write(buffer.getbuffer())


def write_parquet(table: Table, file: BinaryIO) -> None:
    """Write a table as Parquet, with the types that its columns have; texts are as they are.

    Raises:
        OSError: it cannot be written.
    """
    shown = table.rows.lazy().select(column.value.alias(column.header) for column in table.columns)
    try:
        shown.sink_parquet(file)
    except pl.exceptions.ComputeError as error:  # what polars makes of a disk that is full
        raise OSError(str(error)) from error
