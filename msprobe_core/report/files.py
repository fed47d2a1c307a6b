"""Write the result files: csv, xlsx and ``summary.json``, for their owner only."""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from msprobe_core.compare.fault import Fault
from msprobe_core.compare.result import ComparisonResult, UnitResult, UnitSummary
from msprobe_core.errors import StoreError
from msprobe_core.report.table import VERDICT_COLOURS, Column, columns_of, texts_of, with_stacks
from msprobe_core.store.layout import create_file, make_directory

SUMMARY_FILE = "summary.json"

_MAX_SHEET_ROWS = 1_048_576
_MAX_CELL_CHARACTERS = 32_767
_NO_CELL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""What the format of spreadsheets, XML, has no place for."""
_FORMULA_STARTS = "=+-@\t\r"
_SIGNED_NUMBER = r"^[+-](\d+(\.\d*)?(e[+-]?\d+)?%?|inf)$"


@dataclass(frozen=True)
class ReportFiles:
    """Where the results are: the tables of each unit, in the order of the units, and the summary."""

    tables: Sequence[Sequence[Path]]
    summary: Path


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How tables are written; the same for all units, and sent to the processes that write them.

    Attributes:
        stamp: What file names end in: the time, see `time_stamp`.
        xlsx: Write spreadsheets instead of csv.
    """

    stamp: str
    xlsx: bool = False


def time_stamp() -> str:
    """Return the time as file names have it: 14 digits, local time, as people look for it."""
    return datetime.now().strftime("%Y%m%d%H%M%S")


def write_report(result: ComparisonResult[UnitResult], directory: Path, *, xlsx: bool = False) -> ReportFiles:
    """Write a table for each unit, and the summary.

    Args:
        result: What to write.
        directory: Created if it is missing.
        xlsx: Write spreadsheets instead of csv.

    Raises:
        StoreError: a file cannot be written.
    """
    options = TableOptions(stamp=time_stamp(), xlsx=xlsx)
    return write_summary(result, [write_tables(unit, directory, options) for unit in result.units], directory)


def write_tables(unit: UnitResult, directory: Path, options: TableOptions) -> Sequence[Path]:
    """Write the tables of one unit; return their paths.

    Args:
        unit: What to write.
        directory: Of the whole result; created if it is missing. Units of several steps get a directory for each step.
        options: How.

    Raises:
        StoreError: a file cannot be written.
    """
    step, _, name = unit.label.rpartition("/")
    directory = directory / step
    make_directory(directory)
    stem = "_".join(["compare_result", *([name] if unit.rank is not None else []), options.stamp])
    path = _unused(directory, stem, ".xlsx" if options.xlsx else ".csv")
    with _whole_or_gone(path):
        if options.xlsx:
            _write_xlsx(unit, path)
        else:
            _write_csv(unit, path)
    return [path]


def write_summary(
    result: ComparisonResult[UnitSummary], tables: Sequence[Sequence[Path]], directory: Path
) -> ReportFiles:
    """Write ``summary.json``.

    Args:
        result: What it sums up.
        tables: The tables of each unit.
        directory: Created if it is missing.

    Raises:
        StoreError: it cannot be written.
    """
    make_directory(directory)
    summary = directory / SUMMARY_FILE
    with _whole_or_gone(summary), create_file(summary) as file:
        file.write(msgspec.json.format(msgspec.json.encode(_summary(result, tables)), indent=2) + b"\n")
    return ReportFiles(tables, summary)


def _unused(directory: Path, stem: str, suffix: str) -> Path:
    """Return a path that is not taken: two comparisons may end within one second."""
    path, number = directory / f"{stem}{suffix}", 1
    while path.exists():
        number += 1
        path = directory / f"{stem}_{number}{suffix}"
    return path


@contextmanager
def _whole_or_gone(path: Path) -> Generator[None, None, None]:
    """Turn a failure to write ``path`` into a `StoreError`, and leave no part of it behind."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        path.unlink(missing_ok=True)
        reason = error.strerror or error
        raise StoreError(f"{path}: cannot be written ({reason}); free space or choose another directory") from error


def _write_csv(unit: UnitResult, path: Path) -> None:
    texts = texts_of(unit)
    # A text that a spreadsheet would run as a formula is quoted; a number with a sign is no such text.
    would_run = pl.all().str.contains(f"^[{re.escape(_FORMULA_STARTS)}]") & ~pl.all().str.contains(_SIGNED_NUMBER)
    with create_file(path) as file:
        texts.with_columns(pl.when(would_run).then("'" + pl.all()).otherwise(pl.all()).name.keep()).write_csv(file)


def _write_xlsx(unit: UnitResult, path: Path) -> None:
    # Imported here: openpyxl takes longer to import than a small comparison takes.
    from openpyxl import Workbook
    from openpyxl.utils import get_column_letter

    columns = columns_of(unit)
    rows, texts = with_stacks(unit), texts_of(unit)
    num_rows = _MAX_SHEET_ROWS - 1
    book = Workbook(write_only=True)
    for start in range(0, rows.height, num_rows):
        part = rows.slice(start, num_rows)
        sheet = book.create_sheet(f"compare {start // num_rows + 1}" if start else "compare")
        sheet.freeze_panes = "B2"
        sheet.auto_filter.ref = f"A1:{get_column_letter(len(columns))}{part.height + 1}"
        for i, column in enumerate(columns, start=1):
            width = {"Name": 48, "message": 60, "Info": 40}.get(column.header.replace("_", " ").rpartition(" ")[2], 16)
            sheet.column_dimensions[get_column_letter(i)].width = width
        for row in _sheet_rows(sheet, part, texts.slice(start, num_rows), columns):
            sheet.append(row)
    with create_file(path) as file:
        book.save(file)


def _sheet_rows(sheet: Any, rows: pl.DataFrame, texts: pl.DataFrame, columns: Sequence[Column]) -> Iterator[list[Any]]:
    """Yield the rows of one sheet: the header, then ``rows``, the cells styled by their row's verdict."""
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.styles import Font, PatternFill

    def cell(value: Any, *, fill: Any = None, bold: bool = False, number_format: str = "") -> Any:
        made = WriteOnlyCell(sheet, value=value)
        if isinstance(value, str):
            made.data_type = "s"  # openpyxl takes "#N/A" for an error
        if fill is not None:
            made.fill = fill
        if bold:
            made.font = Font(bold=True)
        if number_format:
            made.number_format = number_format
        return made

    yield [cell(column.header, bold=True) for column in columns]
    no_number = pl.lit(None, dtype=pl.Float64)
    numbers = rows.select(
        (no_number if column.number is None else column.number).alias(column.header) for column in columns
    )
    fills = {
        verdict: PatternFill("solid", start_color=colour, end_color=colour)
        for verdict, colour in VERDICT_COLOURS.items()
    }
    formats = ["0.0000%" if column.is_percent else "" for column in columns]
    for verdict, row_texts, row_numbers in zip(rows["verdict"], texts.iter_rows(), numbers.iter_rows(), strict=True):
        fill = fills.get(verdict)
        yield [
            _sheet_value(text, number)
            if fill is None and not number_format and not text.startswith("#")
            else cell(_sheet_value(text, number), fill=fill, number_format=number_format)
            for text, number, number_format in zip(row_texts, row_numbers, formats, strict=True)
        ]


def _sheet_value(text: str, number: float | None) -> str | float:
    if number is not None and math.isfinite(number):
        return number
    text = _NO_CELL_CHARACTERS.sub("\ufffd", text)[:_MAX_CELL_CHARACTERS]
    return "'" + text if text.startswith(tuple(_FORMULA_STARTS)) and number is None else text


def _summary(result: ComparisonResult[UnitSummary], tables: Sequence[Sequence[Path]]) -> dict[str, Any]:
    return {
        "agrees": result.agrees,
        "target": str(result.target),
        "golden": str(result.golden),
        "missing": list(result.missing),
        "limits": result.limits.summary(),
        "units": [_unit_summary(unit, paths) for unit, paths in zip(result.units, tables, strict=True)],
    }


def _unit_summary(unit: UnitSummary, tables: Sequence[Path]) -> dict[str, Any]:
    return {
        "label": unit.label,
        "target": str(unit.target),
        "golden": str(unit.golden),
        "mode": unit.mode.value,
        "agrees": unit.agrees,
        "rows": {"total": unit.num_rows, **unit.counts},
        "nodes": dict(unit.nodes),
        "first_difference": unit.first_difference,
        "first_fault": None if unit.first_fault is None else _fault_summary(unit.first_fault),
        "first_disagreement": None if unit.fault is None else _fault_summary(unit.fault),
        "first_lone_call": None if unit.lone_call is None else _fault_summary(unit.lone_call),
        "notes": list(unit.notes),
        "tables": [str(path) for path in tables],
    }


def _fault_summary(fault: Fault) -> dict[str, Any]:
    return {
        "entry": fault.entry,
        "parent": fault.parent,
        "is_culprit": fault.is_culprit,
        "only_on": fault.only_on,
        "parts": list(fault.parts),
        "input_error": _json_number(fault.input_error),
        "output_error": _json_number(fault.output_error),
        "findings": [{"row": row, "message": message} for row, message in fault.findings],
        "stack": list(fault.stack),
    }


def _json_number(number: float | None) -> float | str | None:
    return number if number is None or math.isfinite(number) else str(number)
