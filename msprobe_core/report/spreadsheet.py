"""Put a table on a sheet: rows are coloured by their verdict; if there are too many, only the worst are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO

import numpy as np
import polars as pl

from msprobe_core.judge.verdict import Verdict
from msprobe_core.protocols.presentation import Colours, Table, TableRows
from msprobe_core.report.sheet import PERCENT, Sheet, SheetColumn, SheetPart, write_book
from msprobe_core.report.table import BY_VERDICT

_SEVERITY = (Verdict.ERROR.value, Verdict.UNMATCHED.value, Verdict.WARNING.value, Verdict.PASS.value)
"""Verdicts, most severe first."""


def shortened(table: Table, max_sheet_rows: int, rest: str) -> tuple[Table, str]:
    """Return the worst rows of a table that is longer than a sheet, and a note about the others.

    Args:
        table: All rows.
        max_sheet_rows: Maximum number of rows in a sheet, including the header.
        rest: Name of the file that has all rows.
    """
    shown = replace(table, is_shown=_are_worst(table.rows, max_sheet_rows - 1))
    note = (
        f"Of {table.rows.height:,} rows, the sheet 'compare' has the {shown.num_rows:,} worst, in the order in "
        f"which they were executed: errors before all others, by how far they are over their limits. All rows are in "
        f"{rest}."
    )
    return shown, note


def write_spreadsheet(table: Table, file: BinaryIO, note: str | None = None) -> None:
    """Write a table as a spreadsheet.

    Args:
        table: The table to write.
        file: File to write to.
        note: Text for a second sheet.

    Raises:
        OSError: it cannot be written.
    """
    columns = [SheetColumn(c.header, c.width.value, PERCENT if c.is_percent else "") for c in table.columns]
    colours = table.colours or BY_VERDICT
    sheets = [Sheet("compare", columns, table.num_rows, _parts(table, colours), list(colours.fills.values()))]
    if note is not None:
        sheets.append(Sheet("note", [SheetColumn("note", 120)], 1, [SheetPart(pl.DataFrame({"note": [note]}))]))
    write_book(file, sheets)


def _are_worst(rows: TableRows, number: int) -> pl.Series:
    """Return for each row whether it is one of the ``number`` worst."""
    severity = pl.col("verdict").replace_strict(_SEVERITY, range(len(_SEVERITY)), return_dtype=pl.Int8)
    # Rows that fail for another reason than their error, such as NaN, have no error, and sort before those that do.
    excess = pl.col("judged_error") / pl.col("limit")
    if "score" in rows.columns:
        excess = pl.coalesce(pl.col("score") / pl.col("score_limit"), excess)
    places = rows.select(severity=severity, excess=excess).with_row_index("place")
    worst = places.sort("severity", "excess", "place", descending=[False, True, False], nulls_last=False).head(number)
    is_worst = np.zeros(rows.height, dtype=np.bool_)
    is_worst[worst["place"].to_numpy()] = True
    return pl.Series(is_worst)


def _parts(table: Table, colours: Colours) -> Iterator[SheetPart]:
    fill = pl.col(colours.column).replace_strict(colours.fills, default=None, return_dtype=pl.String)
    for rows, cells in zip(table.slices(), table.cells(), strict=True):
        numbers = rows.select(c.number.alias(c.header) for c in table.columns if c.number is not None)
        yield SheetPart(
            cells, {column.name: column for column in numbers.iter_columns()}, rows.select(fill).to_series()
        )
