"""Write the result files of a comparison: tables as csv, xlsx or Parquet, and the summary; private to their owner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from pathlib import Path

from msprobe_core.compare.result import ComparisonResult, UnitFiles, UnitResult, UnitSummary
from msprobe_core.compare.suggest import NameKind, as_yaml
from msprobe_core.errors import ConfigError
from msprobe_core.guard import plugin_call
from msprobe_core.model import Phase
from msprobe_core.plugins import registry
from msprobe_core.protocols.presentation import Table, TableChoices, TableFormat
from msprobe_core.report.own_format import OWN_FORMAT
from msprobe_core.report.sheet import MAX_SHEET_ROWS
from msprobe_core.report.spreadsheet import shortened, write_spreadsheet
from msprobe_core.report.summary import SUMMARY_RESULT, write_summary_file
from msprobe_core.report.text_table import write_csv, write_jsonl, write_parquet
from msprobe_core.store.atomic_file import unused_paths, whole_file
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
class TableOptions(TableChoices):
    """How tables are written; the same for all units, and sent to the processes that write them.

    Attributes:
        stamp: Suffix of file names: the time, see `time_stamp`.
        form: Kind of file; ``None`` for csv, or Parquet if there are very many pairs.
        layout: Name of a `msprobe_core.protocols.presentation.TableFormat`.
        max_sheet_rows: Maximum number of rows in a sheet, including the header; of a longer table the worst are shown.
    """

    stamp: str
    form: TableForm | None = None
    layout: str = OWN_FORMAT
    max_sheet_rows: int = MAX_SHEET_ROWS


def time_stamp() -> str:
    """Return the time for file names: 14 digits, in local time, which users expect."""
    return datetime.now().strftime("%Y%m%d%H%M%S")


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
    offer = format_called(options.layout)
    is_plugins = registry().provider_of("msprobe_register_tables", offer.name) is not None
    doing = f"writing the table of {unit.label or unit.target}"
    # Cells are computed when they are written, so a plugin's mistake may show there only.
    with plugin_call(registry().described("table", offer.name), doing) if is_plugins else nullcontext():
        return UnitFiles(_write_tables(offer.table(unit, options), unit, directory, options))


def format_called(name: str) -> TableFormat:
    """Return the table format of a name.

    Raises:
        ConfigError: no plugin offers it.
    """
    formats = registry().tables()
    if name not in formats:
        registry().refuse_missing("msprobe_register_tables", name)
        raise ConfigError(f"there is no table format {name!r}; known are {', '.join(formats)}")
    return formats[name]


def _write_tables(table: Table, unit: UnitResult, directory: Path, options: TableOptions) -> tuple[Path, ...]:
    step, _, name = unit.label.rpartition("/")
    make_directory(directory / step, below=directory)
    directory = directory / step
    wanted = options.form or TableForm.CSV
    is_too_long = wanted is TableForm.XLSX and table.rows.height >= options.max_sheet_rows
    forms = (TableForm.XLSX, TableForm.CSV) if is_too_long else (wanted,)
    kind = "debug_compare_result" if _holds_saved_values(unit) else "compare_result"
    of_unit = table.marks if table.marks is not None else [name] if unit.rank is not None else []
    marks = [*of_unit, options.stamp]
    paths = unused_paths(directory, "_".join([kind, *marks]), [form.value for form in forms])
    for form, path in zip(forms, paths, strict=True):
        is_shortened = is_too_long and form is TableForm.XLSX
        shown, note = shortened(table, options.max_sheet_rows, paths[1].name) if is_shortened else (table, None)
        write_table(shown, path, form, note)
    for companion in table.companions:
        (path,) = unused_paths(directory, "_".join([companion.name, *marks]), [companion.suffix])
        with whole_file(path) as file:
            file.write(companion.content)
    return tuple(paths)


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
            SUMMARY_RESULT.refuse_foreign(self.directory)

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
        """Write the summary; return all paths."""
        del first, resumes  # the tables and the summary are the same
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
    return unit.judged.height > 0 and bool((unit.judged["phase"] == Phase.DEBUG.value).all())
