"""``api_precision_compare``: compare two tables of ``acc_check``, of an accelerator and of a golden one.

Both tables have the errors of their device against the same float64 or float32 reference. The target need only be as
good as the golden device: a metric passes if its ratio to the golden one is within the limit of the API's class, where
the golden metric counts as the minimum error at least. Thresholds and classes are those of
`msprobe_core.api_check.standards`; columns, words and rules are those of `mindstudio-probe` 26.x, with whose tables the
tests compare ours cell by cell. Where its result is misleading, ours differs on purpose:

* A row that lacks a value of its standard is skipped with a message; theirs counts it as 0, which passes.
* The status of an API is the worst of all of its rows; theirs is SKIP if the last row is of a dtype that is skipped,
  whatever the others are.
* An API whose rows cannot be read is in the table of results under its own name; theirs has a line for each row.
* A row of float64 or complex numbers says why it is skipped; theirs says ``nan``.
* A name that occurs twice in either table is an error; theirs accepts it in the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msprobe_core.api_check.published import ERROR, PASS, SKIP, api_name, ratio_to
from msprobe_core.api_check.standards import Algorithm, ApiClass, Standards, standards
from msprobe_core.compat.published_tables import (
    ABSOLUTE_RATE,
    BALANCE,
    BINARY_RATE,
    BLANK,
    DECIMALS,
    DETAIL_COLUMNS,
    DTYPE,
    MAX_RELATIVE,
    MEAN_RELATIVE,
    MESSAGE,
    NAME,
    NON_FINITE_RATE,
    RELATIVE_RATE,
    RMSE,
    SMALL_SHARE,
    ULP_SHARE,
    TableFormatError,
    csv_lines,
    read_rows,
    split_row_name,
    worst_status,
)
from msprobe_core.errors import clip
from msprobe_core.model import Phase
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.layout import make_directory

RATIO_RESULT_COLUMNS = ("API Name", "Forward Test Success", "Backward Test Success", "Message")
RATIO_DETAIL_COLUMNS = (
    "API Name", "小值域错误比值", "小值域判定结果", "均方根误差比值", "均方根误差判定结果", "相对误差最大值比值",
    "相对误差最大值判定结果", "相对误差平均值比值", "相对误差平均值判定结果", "误差均衡性比值", "误差均衡性判定结果",
    "inf/nan错误率", "inf/nan判定结果", "相对误差错误率", "相对误差判定结果", "绝对误差错误率", "绝对误差判定结果",
    "二进制一致错误率", "二进制一致错误率判定结果", "ULP误差平均值", "ULP误差大于阈值占比", "ULP误差大于阈值占比比值",
    "ULP误差判定结果", "双千指标", "双千指标判定结果", "比对结果", "比对算法", "Message",
)  # fmt: skip

RESULT_STEM, DETAIL_STEM = "api_precision_compare_result_", "api_precision_compare_details_"

_SKIPPED_DTYPE = "This data type does not support benchmark compare."
_EMPTY = "ERROR: Input data is an empty string"
_NO_NUMBER = "ERROR: Input data cannot be converted to float"


@dataclass(frozen=True)
class RatioRow:
    """One result that both tables have.

    Attributes:
        name: Its name in both tables.
        api: The API with its number; the name if it has another form.
        phase: ``None`` if the name has another form.
        status: pass, error or SKIP.
        cells: Text by column of `RATIO_DETAIL_COLUMNS`; the others are blank.
        message: Why.
        algorithm: The standard that applied; ``None`` if the row is skipped.
        excess: The largest ratio of a metric to its limit, among those that count; ``None`` without ratios.
    """

    name: str
    api: str
    phase: Phase | None
    status: str
    cells: Mapping[str, str]
    message: str
    algorithm: Algorithm | None
    excess: float | None = None


@dataclass(frozen=True)
class RatioApi:
    """All results of one API."""

    name: str
    forward: str
    backward: str
    message: str


@dataclass(frozen=True)
class RatioResult:
    """The comparison of two tables.

    Attributes:
        rows: In the order of the target's table.
        missing: Names that only the target's table has.
        unused: Names that only the golden table has.
    """

    rows: Sequence[RatioRow]
    missing: Sequence[str] = ()
    unused: Sequence[str] = ()
    apis: Sequence[RatioApi] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "apis", _apis(self.rows))

    def count(self, status: str) -> int:
        """Return the number of rows with a status."""
        return sum(row.status == status for row in self.rows)

    @property
    def is_judged(self) -> bool:
        """Whether any row was compared."""
        return any(row.status != SKIP for row in self.rows)


def compare_published_tables(target: Path, golden: Path) -> RatioResult:
    """Compare two tables of ``acc_check``, ``accuracy_checking_details_….csv``.

    Raises:
        TableFormatError: one of them is missing, a symbolic link, or of another form, or has a name twice.
    """
    rows, golden_rows = _named(target), _named(golden)
    table = standards()
    found = [_compared(name, row, golden_rows[name], table) for name, row in rows.items() if name in golden_rows]
    return RatioResult(
        found,
        missing=[name for name in rows if name not in golden_rows],
        unused=[name for name in golden_rows if name not in rows],
    )


def write_ratio_tables(result: RatioResult, directory: Path, stamp: str) -> tuple[Path, Path]:
    """Write the table of APIs and the table of rows; return their paths.

    Raises:
        StoreError: they cannot be written.
    """
    make_directory(directory)
    paths = directory / f"{RESULT_STEM}{stamp}.csv", directory / f"{DETAIL_STEM}{stamp}.csv"
    apis = [[api.name, api.forward, api.backward, api.message] for api in result.apis]
    for path, header, rows in (
        (paths[0], RATIO_RESULT_COLUMNS, apis),
        (paths[1], RATIO_DETAIL_COLUMNS, [detail_cells(row) for row in result.rows]),
    ):
        with whole_file(path) as file:
            file.write(csv_lines([header, *rows], with_mark=True))
    return paths


def detail_cells(row: RatioRow) -> list[str]:
    """Return the 28 cells of a row."""
    label = BLANK if row.algorithm is None else standards().algorithms[row.algorithm].label
    cells = {**row.cells, "API Name": row.name, "比对结果": row.status, "比对算法": label, "Message": row.message}
    return [cells.get(column, BLANK) for column in RATIO_DETAIL_COLUMNS]


def _named(path: Path) -> dict[str, dict[str, str]]:
    named: dict[str, dict[str, str]] = {}
    for row in read_rows(path, DETAIL_COLUMNS):
        if row[NAME] in named:
            raise TableFormatError(f"{path}: has several rows with the name {clip(row[NAME])!r}; keep one of them")
        named[row[NAME]] = row
    return named


# --- one row --------------------------------------------------------------------------------------------------------


class _UnusableError(Exception):
    """A row lacks a value, or has something else in its place."""


def _compared(name: str, target: Mapping[str, str], golden: Mapping[str, str], table: Standards) -> RatioRow:
    own = split_row_name(name)
    if own is None:
        return RatioRow(name, name, None, SKIP, {}, f"The API name {clip(name)} is invalid.", None)
    api, phase = own
    dtype = target[DTYPE].rpartition(".")[2]
    if dtype in table.skipped_dtypes:
        return RatioRow(name, api, phase, SKIP, {}, target[MESSAGE].strip() or _SKIPPED_DTYPE, None)
    try:
        algorithm, cells, counted, messages, excess = _judged(dtype, api, target, golden, table)
    except _UnusableError as error:
        return RatioRow(name, api, phase, SKIP, {}, str(error), None)
    return RatioRow(name, api, phase, worst_status(counted), cells, "".join(messages), algorithm, excess)


_Judged = tuple[Algorithm, dict[str, str], list[str], list[str], "float | None"]


def _judged(dtype: str, api: str, target: Mapping[str, str], golden: Mapping[str, str], table: Standards) -> _Judged:
    """Return the standard, cells, statuses that count, messages and excess of a row.

    The published tool chooses by what the row has: the absolute threshold standard fills a column of its own.
    """
    if dtype in table.ulp_limits and dtype in table.float8_dtypes:
        return _by_ulp(dtype, target, table)
    if target[RELATIVE_RATE].strip():
        return _by_absolute_threshold(target)
    if dtype in table.float_dtypes:
        return _by_benchmark(dtype, table.class_of(api_name(api))[1], target, golden, table)
    rate = _value(target[BINARY_RATE])
    status = PASS if rate == 0 else ERROR
    cells = {"二进制一致错误率": target[BINARY_RATE].strip(), "二进制一致错误率判定结果": status}
    messages = [] if status == PASS else ["ERROR: 二进制一致错误率超过阈值\n"]
    return Algorithm.BINARY, cells, [status], messages, None


def _by_ulp(dtype: str, target: Mapping[str, str], table: Standards) -> _Judged:
    share = _value(target[ULP_SHARE])
    status = PASS if share < table.ulp_limits[dtype].share else ERROR
    cells = {"ULP误差大于阈值占比": _text(share), "ULP误差判定结果": status}
    return Algorithm.ULP, cells, [status], [] if status == PASS else ["ERROR: ULP误差不满足标准\n"], None


_RATES = (
    (NON_FINITE_RATE, "inf/nan判定结果"),
    (RELATIVE_RATE, "相对误差判定结果"),
    (ABSOLUTE_RATE, "绝对误差判定结果"),
)


def _by_absolute_threshold(target: Mapping[str, str]) -> _Judged:
    cells: dict[str, str] = {}
    messages: list[str] = []
    statuses: list[str] = []
    for column, verdict in _RATES:
        rate = _value(target[column])
        status = PASS if rate == 0 else ERROR
        cells |= {column: _text(rate), verdict: status}
        statuses.append(status)
        messages += [] if status == PASS else [f"ERROR: {column}超过阈值"]
    return Algorithm.ABSOLUTE_THRESHOLD, cells, statuses, messages, None


def _by_benchmark(
    dtype: str, limits: ApiClass, target: Mapping[str, str], golden: Mapping[str, str], table: Standards
) -> _Judged:
    least = table.constants(dtype).minimum_error
    metrics = (
        (SMALL_SHARE, "小值域错误比值", "小值域判定结果", table.small_value_ratio),
        (RMSE, "均方根误差比值", "均方根误差判定结果", limits.rmse),
        (MAX_RELATIVE, "相对误差最大值比值", "相对误差最大值判定结果", limits.max_relative),
        (MEAN_RELATIVE, "相对误差平均值比值", "相对误差平均值判定结果", limits.mean_relative),
        (BALANCE, "误差均衡性比值", "误差均衡性判定结果", table.error_balance_ratio),
    )
    cells: dict[str, str] = {}
    notes: list[str] = []
    errors: list[str] = []
    counted: list[str] = []
    excess = 0.0
    for column, ratio_column, verdict, limit in metrics:
        mine, other = _value(target[column]), _value(golden[column])
        ratio = ratio_to(mine, other, least)
        status = PASS if ratio <= limit or _is_same_non_finite(mine, other) else ERROR
        cells |= {ratio_column: _text(ratio), verdict: status}
        if math.isnan(ratio):
            notes.append(f"{column}{'同为同号inf或nan' if status == PASS else 'inf或nan不一致'}\n")
        if column == BALANCE:  # reported, and not counted
            continue
        counted.append(status)
        errors += [] if status == PASS else [f"ERROR: {ratio_column}超过阈值\n"]
        excess = max(excess, math.inf if status == ERROR and math.isnan(ratio) else ratio / limit)
    return Algorithm.BENCHMARK, cells, counted, notes + errors, excess


def _is_same_non_finite(mine: float, other: float) -> bool:
    return (math.isnan(mine) and math.isnan(other)) or (math.isinf(mine) and mine == other)


def _value(cell: str) -> float:
    text = cell.strip()
    if not text:
        raise _UnusableError(_EMPTY)
    try:
        return float(text)
    except ValueError:
        raise _UnusableError(_NO_NUMBER) from None


def _text(value: float) -> str:
    return f"{value:.{DECIMALS}f}" if math.isfinite(value) else str(value)


# --- APIs -----------------------------------------------------------------------------------------------------------


def _apis(rows: Iterable[RatioRow]) -> list[RatioApi]:
    """Return one entry per API, in the order of their first rows."""
    grouped: dict[str, list[RatioRow]] = {}
    for row in rows:
        grouped.setdefault(row.api, []).append(row)
    return [_api(name, own) for name, own in grouped.items()]


def _api(name: str, rows: Sequence[RatioRow]) -> RatioApi:
    statuses = {
        phase: worst_status(row.status for row in rows if row.phase in (phase, None))
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    }
    skipped = next((row.message for row in rows if row.status == SKIP), "")
    return RatioApi(name, statuses[Phase.FORWARD], statuses[Phase.BACKWARD], skipped)
