"""The tables of ``acc_check`` in the published form: one with a row for each API, one with a row for each result.

``accuracy_checking_result_{time}.csv`` has four columns, ``accuracy_checking_details_{time}.csv`` has 23 for PyTorch
and nine for MindSpore, with the names, the byte order mark and the formats of numbers that `mindstudio-probe` 26.x
writes. Which cells of the 23 apply follows from the published standard of the row; `Status` and `Message` are our
verdict.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import polars as pl

from msprobe_core import names
from msprobe_core.api_check.published import ERROR, PASS, SKIP, WARNING
from msprobe_core.api_check.standards import Algorithm, standards
from msprobe_core.api_check.verdict import CallVerdict, OutputVerdict, PublishedColumns, Verdict
from msprobe_core.errors import CompareError, StoreError, clip
from msprobe_core.model import Phase, Role
from msprobe_core.report.escape import guarded
from msprobe_core.report.sheet import Sheet, SheetColumn, SheetPart, write_book
from msprobe_core.store.atomic_file import csv_text, whole_file
from msprobe_core.store.layout import create_file, make_directory
from msprobe_core.untrusted.files import TooLargeError, read_plain

BLANK = " "
"""Content of a cell that does not apply."""

NAME = "API Name"
BENCH_DTYPE = "Bench Dtype"
DTYPE = "DEVICE Dtype"
SHAPE = "Shape"
MEAN_ULP = "ULP误差平均值"
MAX_ULP = "ULP误差最大值"
WITHIN_TEN_THOUSANDTH = "双万指标"
WITHIN_THOUSANDTH = "双千指标"
WITHIN_PERCENT = "双百指标"
MAX_ABSOLUTE = "最大绝对误差"
COSINE = "余弦相似度"
BINARY_RATE = "二进制一致错误率"
BALANCE = "误差均衡性"
RMSE = "均方根误差"
SMALL_SHARE = "小值域错误占比"
MAX_RELATIVE = "相对误差最大值"
MEAN_RELATIVE = "相对误差平均值"
NON_FINITE_RATE = "inf/nan错误率"
RELATIVE_RATE = "相对误差错误率"
ABSOLUTE_RATE = "绝对误差错误率"
ULP_SHARE = "ULP误差大于阈值占比"
MESSAGE = "Message"

DETAIL_COLUMNS = (
    NAME, BENCH_DTYPE, DTYPE, SHAPE, COSINE, MAX_ABSOLUTE, WITHIN_PERCENT, WITHIN_THOUSANDTH, WITHIN_TEN_THOUSANDTH,
    BINARY_RATE, BALANCE, RMSE, SMALL_SHARE, MAX_RELATIVE, MEAN_RELATIVE, NON_FINITE_RATE, RELATIVE_RATE, ABSOLUTE_RATE,
    MAX_ULP, MEAN_ULP, ULP_SHARE, "Status", MESSAGE,
)  # fmt: skip
RESULT_COLUMNS = ("API name", "Forward Test Success", "Backward Test Success", MESSAGE)

RESULT_STEM, DETAIL_STEM = "accuracy_checking_result_", "accuracy_checking_details_"

DECIMALS = 14

MAX_BYTES = 1 << 30
"""Largest table that is read, in bytes."""

_BOM = "\ufeff"

_ROWS_OF_STATUS = (ERROR, WARNING, PASS, SKIP)
"""Statuses, the worst first; one that was not judged hides none that was."""


class TableFormatError(CompareError):
    """A table is not of the published form: give another file."""


@dataclass(frozen=True, kw_only=True)
class TableForm:
    """How the tables for one framework are published.

    Attributes:
        columns: Of the table of details.
        cells: Returns the cells of one result by column, from the name of its row, its verdict, and the number of
            decimals; those that it leaves out are blank.
        blank: Content of a cell that does not apply.
        has_mark: Whether the tables begin with a byte order mark, by which spreadsheets recognise UTF-8.
    """

    columns: Sequence[str]
    cells: Callable[[str, OutputVerdict, int], Mapping[str, str]]
    blank: str
    has_mark: bool

    def header(self, columns: Sequence[str]) -> bytes:
        """Return the first line of a table."""
        return csv_lines([columns], with_mark=self.has_mark)


@dataclass(frozen=True)
class PublishedFiles:
    """Paths of the two tables."""

    results: Path
    details: Path

    @classmethod
    def of(cls, directory: Path, stamp: str) -> PublishedFiles:
        """Return the paths for a time of 14 digits."""
        return cls(directory / f"{RESULT_STEM}{stamp}.csv", directory / f"{DETAIL_STEM}{stamp}.csv")

    @classmethod
    def beside(cls, results: Path) -> PublishedFiles:
        """Return the paths for a given table of results.

        Raises:
            TableFormatError: its name does not begin as that of such a table.
        """
        if not results.name.startswith(RESULT_STEM):
            raise TableFormatError(f"{results}: its name must begin with {RESULT_STEM}; give a table of an earlier run")
        return cls(results, results.with_name(DETAIL_STEM + results.name.removeprefix(RESULT_STEM)))


class PublishedTables:
    """Appends the rows of one API after the other to both tables, which are complete after each.

    Attributes:
        files: The two tables.
        finished: APIs that were in the tables when they were opened.
    """

    def __init__(
        self,
        files: PublishedFiles,
        *,
        form: TableForm | None = None,
        decimals: int = DECIMALS,
        resumes: bool = False,
    ) -> None:
        """Create the tables, for their owner only, or open those of an earlier run.

        Args:
            files: The two tables; existing ones are replaced unless ``resumes``.
            form: Of the tables; ``None`` for that of PyTorch.
            decimals: Number of decimals; 0 to 20.
            resumes: Whether existing tables are continued. Rows of an API that is not in the table of results, and
                lines without an end, are of a process that was killed, and are removed.

        Raises:
            StoreError: a table cannot be written.
            TableFormatError: a table to be continued is missing, a symbolic link, or of another form.
        """
        self.files = files
        self.finished: frozenset[str] = frozenset()
        self._form, self._decimals = form or PYTORCH, decimals
        make_directory(files.results.parent)
        if resumes:
            self.finished = _restore(files, self._form)
            self._streams = [_reopened(path) for path in (files.details, files.results)]
        else:
            self._streams = [create_file(path) for path in (files.details, files.results)]
            self._write(self._form.header(self._form.columns), self._form.header(RESULT_COLUMNS))

    def append(self, verdicts: Sequence[CallVerdict]) -> None:
        """Append the rows of one API.

        Args:
            verdicts: Of its forward call, its backward call, or both.

        Raises:
            StoreError: they cannot be written.
        """
        rows = [row for verdict in verdicts for row in detail_rows(verdict, self._form, self._decimals)]
        self._write(csv_lines(rows), csv_lines([result_row(verdicts, self._form)]))

    def close(self) -> None:
        """Close both tables.

        Raises:
            StoreError: what could not be written before still cannot.
        """
        try:
            for stream in self._streams:
                stream.close()
        except OSError as error:
            raise self._not_written(error) from error

    def _write(self, details: bytes, results: bytes) -> None:
        try:
            for stream, content in zip(self._streams, (details, results), strict=True):
                stream.write(content)
                stream.flush()
        except OSError as error:
            raise self._not_written(error) from error

    def _not_written(self, error: OSError) -> StoreError:
        return StoreError(f"{self.files.results}: cannot be written ({error.strerror or error}); free space")


def write_published_tables(
    verdicts: Iterable[CallVerdict],
    files: PublishedFiles,
    *,
    form: TableForm | None = None,
    decimals: int = DECIMALS,
) -> PublishedFiles:
    """Write both tables at once, the APIs in the order of their first verdicts; return their paths.

    Raises:
        StoreError: a table cannot be written.
    """
    form = form or PYTORCH
    apis: dict[str, list[CallVerdict]] = {}
    for verdict in verdicts:
        apis.setdefault(verdict.api, []).append(verdict)
    ordered = [sorted(own, key=lambda verdict: verdict.phase is Phase.BACKWARD) for own in apis.values()]
    details = [row for own in ordered for verdict in own for row in detail_rows(verdict, form, decimals)]
    make_directory(files.results.parent)
    for path, header, rows in (
        (files.details, form.columns, details),
        (files.results, RESULT_COLUMNS, [result_row(own, form) for own in ordered]),
    ):
        with whole_file(path) as file:
            file.write(form.header(header) + csv_lines(rows))
    return files


def write_spreadsheets(files: PublishedFiles, form: TableForm | None = None) -> PublishedFiles:
    """Write both tables as spreadsheets beside the csv files; return their paths.

    Raises:
        TableFormatError: a csv file is not of the published form.
        StoreError: a spreadsheet cannot be written.
    """
    columns = (form or PYTORCH).columns
    return PublishedFiles(
        _spreadsheet(files.results, RESULT_COLUMNS, read_rows(files.results, RESULT_COLUMNS)),
        _spreadsheet(files.details, columns, read_rows(files.details, columns)),
    )


def _spreadsheet(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> Path:
    texts = dict.fromkeys(columns, pl.String)
    cells = pl.DataFrame([[row[name] for name in columns] for row in rows], schema=texts, orient="row")
    headers = [SheetColumn(name, 40 if name == columns[0] else 16) for name in columns]
    target = path.with_suffix(".xlsx")
    with whole_file(target) as file:
        write_book(file, [Sheet("acc_check", headers, cells.height, [SheetPart(cells)])])
    return target


# --- rows -----------------------------------------------------------------------------------------------------------

_OF_BENCHMARK = (BALANCE, RMSE, SMALL_SHARE, MAX_RELATIVE, MEAN_RELATIVE)
_FILLED = {
    Algorithm.BENCHMARK: _OF_BENCHMARK,
    Algorithm.ABSOLUTE_THRESHOLD: (NON_FINITE_RATE, RELATIVE_RATE, ABSOLUTE_RATE),
    Algorithm.BINARY: (BINARY_RATE,),
    Algorithm.ULP: (MAX_ULP, MEAN_ULP, ULP_SHARE),
    Algorithm.THOUSANDTH: (WITHIN_THOUSANDTH,),
    Algorithm.ACCUMULATIVE: (BALANCE, NON_FINITE_RATE, RELATIVE_RATE, ABSOLUTE_RATE),
}
"""Columns of each standard, next to those of the rules for one side."""

_STATUS = {
    Verdict.WRONG: ERROR, Verdict.SUSPECT: WARNING, Verdict.ILL_CONDITIONED: WARNING, Verdict.RIGHT: PASS,
    Verdict.CANNOT_TELL: SKIP,
}  # fmt: skip


def status_of(verdict: Verdict, *, is_weak: bool = False) -> str:
    """Return the published word for a verdict; a right one that most wrong results would have got too is a warning."""
    return WARNING if verdict is Verdict.RIGHT and is_weak else _STATUS[verdict]


def worst_status(statuses: Iterable[str]) -> str:
    """Return the worst of several statuses; blank of none."""
    found = set(statuses)
    return next((status for status in _ROWS_OF_STATUS if status in found), BLANK)


def detail_rows(verdict: CallVerdict, form: TableForm | None = None, decimals: int = DECIMALS) -> list[list[str]]:
    """Return the rows of a call's results, one for each path: of the worst side, and the first of equal ones."""
    word = "backward.output" if verdict.phase is Phase.BACKWARD else "forward.output"
    worst: dict[str, OutputVerdict] = {}
    for output in verdict.outputs:
        known = worst.get(output.path)
        if known is None or ORDER[output.verdict] < ORDER[known.verdict]:
            worst[output.path] = output
    form = form or PYTORCH
    rows = (form.cells(f"{verdict.api}.{word}.{index}", each, decimals) for index, each in enumerate(worst.values()))
    return [[_one_line(cells.get(column, form.blank)) for column in form.columns] for cells in rows]


ORDER = {verdict: order for order, verdict in enumerate(Verdict)}
"""Verdicts, the worst first."""


def result_row(verdicts: Sequence[CallVerdict], form: TableForm | None = None) -> list[str]:
    """Return the row of an API: the worst status of its forward and of its backward results, and why."""
    messages: list[str] = []
    blank = (form or PYTORCH).blank
    cells = {Phase.FORWARD: blank, Phase.BACKWARD: blank}
    for verdict in verdicts:
        outputs = [status_of(each.verdict, is_weak=each.is_weak) for each in verdict.outputs]
        status = worst_status(outputs) if outputs else status_of(verdict.verdict)
        cells[verdict.phase] = status
        if status != PASS:
            reason = verdict.reason if verdict.worst is None else verdict.worst.reason
            messages += [] if reason is None else [f"{verdict.phase.value}: {reason.text}"]
    name = verdicts[0].api if verdicts else ""
    return [_one_line(cell) for cell in (name, cells[Phase.FORWARD], cells[Phase.BACKWARD], "; ".join(messages))]


def status_cells(output: OutputVerdict) -> dict[str, str]:
    """Return the status of a result and its reason, by column."""
    status = status_of(output.verdict, is_weak=output.is_weak)
    reason = "" if status == PASS else output.reason.text
    return {
        "Status": status,
        MESSAGE: reason if output.side == "recorded" or not reason else f"{output.side}: {reason}",
    }


def _pytorch_cells(name: str, output: OutputVerdict, decimals: int) -> dict[str, str]:
    metrics = output.published
    standard = Algorithm(metrics.standard) if metrics.standard else Algorithm.BENCHMARK
    filled = _general_columns(metrics, output) if standard is not Algorithm.BINARY else set[str]()
    if output.dtype not in standards().skipped_dtypes:
        filled |= {*_FILLED[standard]}
    values = {name: number(value, decimals) for name, value in _values(metrics).items() if name in filled}
    if metrics.small_value_error_share == 0 and SMALL_SHARE in filled:
        values[SMALL_SHARE] = "0"  # as without any small value, which is the usual reason
    dtypes = {BENCH_DTYPE: f"torch.{golden_dtype(output.dtype)}", DTYPE: f"torch.{output.dtype}"}
    return {NAME: name, **dtypes, SHAPE: str(output.shape), **status_cells(output), **values}


PYTORCH = TableForm(columns=DETAIL_COLUMNS, cells=_pytorch_cells, blank=BLANK, has_mark=True)


def _one_line(cell: str) -> str:
    """Return a cell without line breaks, so that a part of a row can be told from a whole one."""
    return " ".join(cell.split()) if "\n" in cell or "\r" in cell else cell


def _general_columns(metrics: PublishedColumns, output: OutputVerdict) -> set[str]:
    """Return the columns of the rules for one side, without those of checks that they do not come to."""
    rules, error = standards().plain, metrics.max_absolute
    if error is None:
        return set()
    is_one_zero = metrics.cosine is None and math.prod(output.shape) > 1 and not error <= rules.zero
    if is_one_zero or (metrics.cosine is not None and metrics.cosine <= rules.cosine):
        return {COSINE}
    if error < rules.max_absolute:
        return {COSINE, MAX_ABSOLUTE}
    if output.dtype not in ("float16", "bfloat16"):
        return {COSINE, MAX_ABSOLUTE, WITHIN_THOUSANDTH, WITHIN_TEN_THOUSANDTH}
    percent = metrics.within_percent
    if percent is not None and percent <= rules.half_within_percent:
        return {COSINE, MAX_ABSOLUTE, WITHIN_PERCENT}
    return {COSINE, MAX_ABSOLUTE, WITHIN_PERCENT, WITHIN_THOUSANDTH}


def golden_dtype(dtype: str) -> str:
    """Return the dtype of the oracle: float64 for floats, complex128 for complex numbers."""
    if dtype.startswith("complex"):
        return "complex128"
    return "float64" if "float" in dtype else dtype


def _values(metrics: PublishedColumns) -> Mapping[str, float | None]:
    return {
        COSINE: metrics.cosine, MAX_ABSOLUTE: metrics.max_absolute, WITHIN_PERCENT: metrics.within_percent,
        WITHIN_THOUSANDTH: metrics.within_thousandth, WITHIN_TEN_THOUSANDTH: metrics.within_ten_thousandth,
        BINARY_RATE: metrics.binary_error_rate, BALANCE: metrics.error_balance, RMSE: metrics.rmse,
        SMALL_SHARE: metrics.small_value_error_share, MAX_RELATIVE: metrics.max_relative,
        MEAN_RELATIVE: metrics.mean_relative, NON_FINITE_RATE: metrics.non_finite_error_rate,
        RELATIVE_RATE: metrics.relative_error_rate, ABSOLUTE_RATE: metrics.absolute_error_rate,
        MAX_ULP: metrics.max_ulp, MEAN_ULP: metrics.mean_ulp, ULP_SHARE: metrics.ulp_share,
    }  # fmt: skip


def number(value: float | None, decimals: int = DECIMALS) -> str:
    """Return a number as published tables have it: with fixed decimals, and a blank for none."""
    if value is None:
        return BLANK
    return f"{value:.{decimals}f}" if math.isfinite(value) else str(value)


def csv_lines(rows: Iterable[Sequence[str]], *, with_mark: bool = False) -> bytes:
    """Return rows as csv in UTF-8, safe to open in a spreadsheet.

    Args:
        rows: All of the same length.
        with_mark: Whether a byte order mark comes first, by which spreadsheets recognise UTF-8.
    """
    lines = [list(row) for row in rows]
    # One column, because each column costs a search of its own.
    texts = pl.DataFrame({"text": [cell for line in lines for cell in line]}, schema={"text": pl.String})
    cells = iter(guarded(texts)["text"].to_list())
    text = csv_text([next(cells) for _ in line] for line in lines)
    return (_BOM + text if with_mark else text).encode("utf-8", "backslashreplace")


# --- reading --------------------------------------------------------------------------------------------------------


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Read a table of the published form; columns that are not asked for are left out.

    Raises:
        TableFormatError: the file is missing, a symbolic link, no table, or lacks a column.
    """
    lines = _parsed(path)
    if not lines:
        raise TableFormatError(f"{path}: is empty; give a table of acc_check")
    header = lines[0]
    for name in columns:
        if header.count(name) != 1:
            problem = "has no column" if name not in header else "has several columns"
            raise TableFormatError(f"{path}: {problem} '{name}'; give a table of acc_check as it was written")
    places = [(name, header.index(name)) for name in columns]
    rows: list[dict[str, str]] = []
    for line, row in enumerate(lines[1:], start=2):
        if len(row) > len(header):
            raise TableFormatError(f"{path}: row {line} has {len(row)} cells, and the header has {len(header)}")
        cells = row + [""] * (len(header) - len(row))  # the published tool leaves empty cells at the end out
        rows.append({name: cells[place] for name, place in places})
    return rows


def split_row_name(name: str) -> tuple[str, Phase] | None:
    """Return the API and the phase in ``Torch.mm.0.forward.output.1``; ``None`` if it has another form."""
    api, *rest = name.rsplit(".", 3)
    owner, _, number = api.rpartition(".")
    if len(rest) < 3 or "." not in owner or not names.is_index(number):
        return None
    phase, role, index = rest
    if phase not in _PHASES or role != Role.OUTPUT.value or not names.is_index(index):
        return None
    return api, Phase(phase)


_PHASES = (Phase.FORWARD.value, Phase.BACKWARD.value)


def _plain(name: str) -> str:
    """Return a name without the apostrophe that keeps a spreadsheet from executing it."""
    return name.removeprefix("'")


def _parsed(path: Path, *, is_whole: bool = True) -> list[list[str]]:
    """Return the lines of a csv file as cells; without the last one if the file may not be whole and it has no end.

    Raises:
        TableFormatError: it is missing, a symbolic link, too large, or no csv.
    """
    if path.is_symlink():
        raise TableFormatError(f"{path}: is a symbolic link; give the file itself")
    try:
        content = read_plain(path, MAX_BYTES)
        text = (content if is_whole else content[: content.rfind(b"\n") + 1]).decode("utf-8-sig")
        return list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except TooLargeError as error:
        raise TableFormatError(f"{path}: {error.strerror}") from error
    except OSError as error:
        raise TableFormatError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TableFormatError(f"{path}: is no csv table in UTF-8 ({clip(str(error))})") from error


# --- resuming -------------------------------------------------------------------------------------------------------


def _restore(files: PublishedFiles, form: TableForm) -> frozenset[str]:
    """Remove what a killed process left in part; return the APIs that are finished.

    Rows of an API are written to the details first, so an API is finished if the results have it.
    """
    results = _complete(files.results, RESULT_COLUMNS)
    details = _complete(files.details, form.columns)
    finished = frozenset(_plain(row[0]) for row in results)
    kept = [row for row in details if (own := split_row_name(_plain(row[0]))) is not None and own[0] in finished]
    for path, header, rows in ((files.results, RESULT_COLUMNS, results), (files.details, form.columns, kept)):
        with whole_file(path) as file:
            file.write(form.header(header) + csv_lines(rows))
    return finished


def _complete(path: Path, columns: Sequence[str]) -> list[list[str]]:
    lines = _parsed(path, is_whole=False)
    header = lines[0] if lines else []
    for name in columns:
        if name not in header:
            raise TableFormatError(f"{path}: has no column '{name}'; give a table of acc_check as it was written")
    if tuple(header) != tuple(columns):
        raise TableFormatError(f"{path}: has other columns than {', '.join(columns)}; it cannot be continued")
    for line, row in enumerate(lines[1:], start=2):
        if len(row) != len(columns):
            raise TableFormatError(f"{path}: row {line} has {len(row)} cells, and the header has {len(columns)}")
    return lines[1:]


def _reopened(path: Path) -> BinaryIO:
    try:
        flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        return os.fdopen(os.open(path, flags), "ab")
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror}); check its permissions") from error
