"""Write the result files of a comparison: tables as csv, xlsx or Parquet, and the summary; for their owner only."""

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
"""More pairs than these have tables in Parquet if nobody asks for another form: a thousand csv files of 10,000 rows are
several gigabytes that nobody opens."""


class TableForm(str, Enum):
    """What kind of file tables are written to; the values are the suffixes."""

    CSV = "csv"
    XLSX = "xlsx"
    PARQUET = "parquet"
    JSONL = "jsonl"


@dataclass(frozen=True)
class ReportFiles:
    """Where the results are: the tables of each unit, in the order of the units, the summary, and files of names."""

    tables: Sequence[Sequence[Path]]
    summary: Path
    suggestions: Sequence[Path] = ()


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How tables are written; the same for all units, and sent to the processes that write them.

    Attributes:
        stamp: What file names end in: the time, see `time_stamp`.
        form: What kind of file; ``None`` for csv, or Parquet where there are very many pairs.
        layout: Which columns, and what their cells look like.
        has_stacks: Whether there is a column of call stacks, where they are known; ``None`` for what the layout has by
            itself.
        has_highlights: Whether spreadsheets of layout ``A`` are coloured by its rules instead of our verdict, with the
            reasons among its messages.
        has_advice: Whether a text file of advice is written beside the table, as 8.x does.
        has_calls: Whether a file of all calls is written beside it, for `msprobe_core.report.difference`.
        max_sheet_rows: How many rows a sheet may have, the header included; the worst of a longer table are shown.
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
    """Return the time as file names have it: 14 digits, local time, as people look for it."""
    return datetime.now().strftime("%Y%m%d%H%M%S")


def write_report(
    result: ComparisonResult[UnitResult], directory: Path, options: TableOptions | None = None
) -> ReportFiles:
    """Write a table for each unit, and the summary.

    Args:
        result: What to write.
        directory: Created if it is missing.
        options: How; csv in our layout if not given.

    Raises:
        StoreError: a file cannot be written.
    """
    options = options or TableOptions(stamp=time_stamp())
    return write_summary(result, [write_tables(unit, directory, options).tables for unit in result.units], directory)


def write_tables(unit: UnitResult, directory: Path, options: TableOptions) -> UnitFiles:
    """Write the tables of one unit; return where they are.

    Of a table that is longer than a sheet a spreadsheet has the worst rows, and a csv file beside it all.

    Args:
        unit: What to write.
        directory: Of the whole result; created if it is missing. Units of several steps get a directory for each step.
        options: How.

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
        marks = [str(unit.rank), str(unit.step or 0), options.stamp]  # as 26.x names them
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
    """Write one table as a whole, or not at all.

    Args:
        table: What to write.
        path: Of the file.
        form: What kind of file.
        note: What a spreadsheet says below the table.

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
    """Writes what a comparison of runs finds to files; a `msprobe_core.compare.run.ResultWriter`.

    Attributes:
        directory: For the results; created if it is missing.
        tables: How tables are written.
        overwrites: Whether a result file may replace one of the same name that msprobe has not written.
    """

    directory: Path
    tables: TableOptions
    overwrites: bool = False

    @property
    def settings(self) -> object:
        """How tables are written, whenever."""
        return replace(self.tables, stamp="")

    def check(self) -> None:
        """Raise if the summary would replace another file."""
        if not self.overwrites:
            check_summary_file(self.directory)

    def for_pairs(self, number: int) -> ResultFiles:
        """Create the directory, and return what writes the results of so many pairs."""
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
        """Write the summary and, where there are files of calls, where units part first; return where everything is."""
        if resumes:
            forget_differences(self.directory)
        calls = {unit.label: own.calls for unit, own in zip(result.units, files, strict=True) if own.calls is not None}
        if calls:
            keep_differences(self.directory, write_first_differences(list(first), calls, self.directory))
        return write_summary(result, [own.tables for own in files], self.directory)


def write_summary(
    result: ComparisonResult[UnitSummary], tables: Sequence[Sequence[Path]], directory: Path
) -> ReportFiles:
    """Write ``summary.json`` and, where names have no partner, files of what they may be.

    Args:
        result: What it sums up.
        tables: The tables of each unit.
        directory: Created if it is missing.

    Raises:
        StoreError: it cannot be written.
    """
    make_directory(directory)
    return ReportFiles(tables, write_summary_file(result, tables, directory), _write_suggestions(result, directory))


def _write_suggestions(result: ComparisonResult[UnitSummary], directory: Path) -> Sequence[Path]:
    """Write a file of names for each option that takes one; those of an earlier comparison may have been edited."""
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
