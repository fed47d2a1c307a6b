"""Write the result files of a comparison: tables as csv, xlsx or Parquet, and the summary; private to their owner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from pathlib import Path

from msprobe_core.compare.advice import advise
from msprobe_core.compare.compat import RESULT, compat_a
from msprobe_core.compare.result import ComparisonResult, Mode, UnitFiles, UnitResult, UnitSummary
from msprobe_core.compare.suggest import NameKind, as_yaml
from msprobe_core.errors import printable
from msprobe_core.model import Phase
from msprobe_core.report.atomic_file import unused_paths, whole_file
from msprobe_core.report.difference import (
    forget_differences,
    keep_differences,
    write_calls,
    write_first_differences,
)
from msprobe_core.report.layouts import is_of_kernels, table_of
from msprobe_core.report.sheet import MAX_SHEET_ROWS
from msprobe_core.report.spreadsheet import shortened, write_spreadsheet
from msprobe_core.report.summary import check_summary_file, write_summary_file
from msprobe_core.report.table import Table, TableLayout
from msprobe_core.report.text_table import write_csv, write_jsonl, write_parquet
from msprobe_core.store.layout import make_directory

_MANY_PAIRS = 64
"""With more pairs than this, tables are written as Parquet unless another form is requested: a thousand csv files of
10,000 rows are several gigabytes that no one opens."""


class TableForm(str, Enum):
    """Kind of file for tables; the values are the suffixes."""

    CSV = "csv"
    XLSX = "xlsx"
    PARQUET = "parquet"
    JSONL = "jsonl"


@dataclass(frozen=True)
class ReportFiles:
    """Paths of the results: the tables of each unit, in the order of the units, the summary, and files of names."""

    tables: Sequence[Sequence[Path]]
    summary: Path
    suggestions: Sequence[Path] = ()


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How tables are written; the same for all units, and sent to the processes that write them.

    Attributes:
        stamp: Suffix of file names: the time, see `time_stamp`.
        form: Kind of file; ``None`` for csv, or Parquet if there are very many pairs.
        layout: The columns, and the format of their cells.
        has_stacks: Whether there is a column of recorded call stacks; ``None`` for the default of the layout.
        has_highlights: Whether spreadsheets of layout ``A`` are coloured by its rules instead of our verdict, with the
            reasons among its messages.
        has_advice: Whether a text file of advice is written next to the table, as 8.x does.
        has_calls: Whether a file of all calls is written next to it, for `msprobe_core.report.difference`.
        max_sheet_rows: Maximum number of rows in a sheet, including the header; of a longer table the worst are shown.
    """

    stamp: str
    form: TableForm | None = None
    layout: TableLayout = TableLayout.OURS
    has_stacks: bool | None = None
    has_highlights: bool = False
    has_advice: bool = False
    has_calls: bool = False
    max_sheet_rows: int = MAX_SHEET_ROWS


def time_stamp() -> str:
    """Return the time for file names: 14 digits, in local time, which users expect."""
    return datetime.now().strftime("%Y%m%d%H%M%S")


def write_report(
    result: ComparisonResult[UnitResult], directory: Path, options: TableOptions | None = None
) -> ReportFiles:
    """Write a table for each unit, and the summary.

    Args:
        result: The result to write.
        directory: Created if it is missing.
        options: How to write tables; by default csv in our layout.

    Raises:
        StoreError: a file cannot be written.
    """
    options = options or TableOptions(stamp=time_stamp())
    return write_summary(result, [write_tables(unit, directory, options).tables for unit in result.units], directory)


def write_tables(unit: UnitResult, directory: Path, options: TableOptions) -> UnitFiles:
    """Write the tables of one unit; return their paths.

    If a table is longer than a sheet, the spreadsheet has the worst rows, and a csv file next to it has all rows.

    Args:
        unit: The result to write.
        directory: Directory of the whole result; created if it is missing. With several steps, each has a subdirectory.
        options: How to write tables.

    Raises:
        StoreError: a file cannot be written.
    """
    step, _, name = unit.label.rpartition("/")
    make_directory(directory / step, below=directory)
    directory = directory / step
    table = table_of(unit, options.layout, has_stacks=options.has_stacks, has_highlights=options.has_highlights)
    wanted = options.form or TableForm.CSV
    is_too_long = wanted is TableForm.XLSX and table.rows.height >= options.max_sheet_rows
    forms = (TableForm.XLSX, TableForm.CSV) if is_too_long else (wanted,)
    kind = "debug_compare_result" if _holds_saved_values(unit) else "compare_result"
    marks = [*([name] if unit.rank is not None else []), options.stamp]
    if options.layout is TableLayout.C and is_of_kernels(unit):
        marks = [str(unit.rank), str(unit.step or 0), options.stamp]  # the naming of 26.x
    paths = unused_paths(directory, "_".join([kind, *marks]), [form.value for form in forms])
    for form, path in zip(forms, paths, strict=True):
        is_shortened = is_too_long and form is TableForm.XLSX
        shown, note = shortened(table, options.max_sheet_rows, paths[1].name) if is_shortened else (table, None)
        write_table(shown, path, form, note)
    if options.has_advice:
        _write_advice(unit, directory, "_".join(["advisor", *marks]))
    calls = write_calls(unit, directory, marks) if options.has_calls else None
    return UnitFiles(tuple(paths), calls)


def write_table(table: Table, path: Path, form: TableForm, note: str | None = None) -> None:
    """Write one table completely, or not at all.

    Args:
        table: The table to write.
        path: Path of the file.
        form: Kind of file.
        note: Text that a spreadsheet shows below the table.

    Raises:
        StoreError: it cannot be written.
    """
    with whole_file(path) as file:
        if form is TableForm.XLSX:
            write_spreadsheet(table, file, note)
        elif form is TableForm.PARQUET:
            write_parquet(table, file)
        elif form is TableForm.JSONL:
            write_jsonl(table, file)
        else:
            write_csv(table, file)


def _write_advice(unit: UnitResult, directory: Path, stem: str) -> None:
    results = compat_a(unit.rows, by_checksum=unit.mode is Mode.CHECKSUM)[RESULT]
    (path,) = unused_paths(directory, stem, ["txt"])
    with whole_file(path) as file:
        file.write(
            "".join(f"{printable(line)}\n" for line in advise(unit.rows, results, unit.first_fault).lines()).encode()
        )


@dataclass(frozen=True)
class ResultFiles:
    """Writes the findings of a comparison of runs to files; a `msprobe_core.compare.run.ResultWriter`.

    Attributes:
        directory: Directory of the results; created if it is missing.
        tables: How tables are written.
        overwrites: Whether a result file may replace one of the same name that msprobe has not written.
    """

    directory: Path
    tables: TableOptions
    overwrites: bool = False

    @property
    def settings(self) -> object:
        """How tables are written, independent of the time."""
        return replace(self.tables, stamp="")

    def check(self) -> None:
        """Check that the summary will not replace another file; raises `StoreError` if it would."""
        if not self.overwrites:
            check_summary_file(self.directory)

    def for_pairs(self, number: int) -> ResultFiles:
        """Create the directory, and return a writer for the results of ``number`` pairs."""
        make_directory(self.directory)
        is_parquet = self.tables.form is None and number > _MANY_PAIRS
        return replace(self, tables=replace(self.tables, form=TableForm.PARQUET)) if is_parquet else self

    def write_unit(self, unit: UnitResult) -> UnitFiles:
        """Write the tables of one pair, see `write_tables`."""
        return write_tables(unit, self.directory, self.tables)

    def write_run(
        self,
        result: ComparisonResult[UnitSummary],
        files: Sequence[UnitFiles],
        first: Iterable[Sequence[UnitSummary]],
        *,
        resumes: bool,
    ) -> ReportFiles:
        """Write the summary and, if there are files of calls, where units diverge first; return all paths."""
        if resumes:
            forget_differences(self.directory)
        calls = {unit.label: own.calls for unit, own in zip(result.units, files, strict=True) if own.calls is not None}
        if calls:
            keep_differences(self.directory, write_first_differences(list(first), calls, self.directory))
        return write_summary(result, [own.tables for own in files], self.directory)


def write_summary(
    result: ComparisonResult[UnitSummary], tables: Sequence[Sequence[Path]], directory: Path
) -> ReportFiles:
    """Write ``summary.json`` and, if names have no partner, files with suggestions for them.

    Args:
        result: The result to summarise.
        tables: The tables of each unit.
        directory: Created if it is missing.

    Raises:
        StoreError: it cannot be written.
    """
    make_directory(directory)
    return ReportFiles(tables, write_summary_file(result, tables, directory), _write_suggestions(result, directory))


def _write_suggestions(result: ComparisonResult[UnitSummary], directory: Path) -> Sequence[Path]:
    """Write a file of names for each option that takes one, without replacing earlier ones, which may be edited."""
    suggestions = {(each.kind, each.target): each for unit in result.units for each in unit.suggestions}
    written: list[Path] = []
    for kind in NameKind:
        own = [each for (own_kind, _), each in suggestions.items() if own_kind is kind]
        if any(not each.is_partly_paired for each in own):
            (path,) = unused_paths(directory, f"suggested_{kind.value}s", ["yaml"])
            with whole_file(path) as file:
                file.write(as_yaml(kind, own).encode())
            written.append(path)
    return written


def _holds_saved_values(unit: UnitResult) -> bool:
    return unit.rows.height > 0 and bool((unit.rows["phase"] == Phase.DEBUG.value).all())
