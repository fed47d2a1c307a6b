"""The table of kernels that ``mindstudio-probe`` 26.x writes, for scripts that read it: ``--compat c`` for such dumps.

Headers, their order, texts and the rule of ``Accuracy Reached or Not`` are those of tables that 26.2.0 wrote.
Rows are in execution order, and runs of one kernel are numbered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from msprobe_core.compare.result import Mode, UnitResult
from msprobe_core.compare.tensor_pass import NOT_AVAILABLE
from msprobe_core.compat.call_table import name_columns
from msprobe_core.compat.spellings import METRICS, RELATIVE_STATISTICS, SIDES, STATISTIC_TITLES
from msprobe_core.compat.verdicts import with_metrics_of_tables
from msprobe_core.errors import DumpError
from msprobe_core.judge.columns import Match
from msprobe_core.judge.statistics_columns import STATISTICS
from msprobe_core.protocols.presentation import Column, Table, Width
from msprobe_core.store.kernel_files import STATISTIC_FILE, holds_kernels
from msprobe_core.store.tensor_statistics import statistics_of
from msprobe_core.store.tensors import open_tensor

_OTHER_DTYPE = "Dtype of NPU and bench Tensor do not match. Skipped.\n"
_OTHER_SHAPE = "Tensor shapes do not match.\n"

_IS_PAIR = pl.col("match") == Match.BOTH.value
_HAS_OTHER_DTYPE = pl.col("dtype_target").ne_missing(pl.col("dtype_golden"))
_HAS_OTHER_SHAPE = pl.col("shape_target").ne_missing(pl.col("shape_golden"))


def is_of_kernels(result: UnitResult) -> bool:
    """Whether the dumps are of kernels, for which generation C has a table of its own."""
    return result.target.is_dir() and holds_kernels(result.target)


def kernel_table(result: UnitResult) -> Table:
    """Return the table of two runs of a graph."""
    if result.mode is Mode.TENSOR:
        rows = _with_statistics(result)
        columns = [*_of_files(result), *_sides_of(", ", ",]"), *_numbers(), *_verdict_of_files(), *_metrics()]
    else:
        numbers = [f"{name}_{side}" for side, _ in SIDES for name in STATISTICS]
        rows = result.rows.with_columns(_rounded(pl.col(name)) for name in numbers)
        columns = [*name_columns(), *_sides_of(",", "]"), *_numbers(), *_verdict(), *_differences(), *_tables(result)]
    filled = [replace(column, value=column.value.cast(pl.String).fill_null("")) for column in columns]
    return Table(filled, rows, marks=(str(result.rank), str(result.step or 0)))  # the names of files in 26.x


def _directories(result: UnitResult) -> tuple[Path, Path]:
    return result.target.absolute(), result.golden.absolute()


# --- tables of statistics -----------------------------------------------------------------------------------------


def _sides_of(separator: str, end_of_one: str) -> list[Column]:
    """Return the columns of dtypes and shapes, whose texts differ between dumps of statistics and of tensors."""
    dtypes = [Column(f"{title} Dtype", pl.col(f"dtype_{side}")) for side, title in SIDES]
    shapes: list[Column] = []
    for side, title in SIDES:
        text = pl.col(f"shape_{side}").str.replace_all(", ", separator, literal=True)
        shapes.append(Column(f"{title} Tensor Shape", text.str.replace(r"^\[(\d+)\]$", f"[${{1}}{end_of_one}")))
    return [*dtypes, *shapes]


def _numbers() -> list[Column]:
    return [
        Column(f"{title} {STATISTIC_TITLES[name].lower()}", _text(pl.col(f"{name}_{side}")), pl.col(f"{name}_{side}"))
        for side, title in SIDES
        for name in STATISTICS
    ]


def _text(number: pl.Expr) -> pl.Expr:
    return pl.when(~number.is_nan()).then(number.cast(pl.String))


def _rounded(number: pl.Expr) -> pl.Expr:
    """Return a statistic rounded to float32, as the original holds it."""
    return number.cast(pl.Float32).cast(pl.Float64)


def _verdict() -> list[Column]:
    """Return the verdict: only the maxima decide, including two infinities."""
    target, golden = pl.col("max_target"), pl.col("max_golden")
    share = (target - golden).abs() / pl.max_horizontal(target.abs(), golden.abs(), pl.lit(1e-10))
    both_nan = target.is_nan() & golden.is_nan()
    is_near = both_nan | (share.is_finite() & (share <= 0.5))
    accuracy = pl.when(_is_compared()).then(pl.when(is_near).then(pl.lit("Yes")).otherwise(pl.lit("No")))
    messages = pl.concat_str(
        pl.when(_HAS_OTHER_SHAPE).then(pl.lit(_OTHER_SHAPE)).otherwise(pl.lit("")),
        pl.when(_HAS_OTHER_DTYPE).then(pl.lit(_OTHER_DTYPE)).otherwise(pl.lit("")),
    )
    return [Column("Accuracy Reached or Not", accuracy), Column("Err_message", messages, width=Width.SENTENCE)]


def _is_compared() -> pl.Expr:
    return _IS_PAIR & ~_HAS_OTHER_DTYPE & ~_HAS_OTHER_SHAPE


def _differences() -> list[Column]:
    differences: list[Column] = []
    ratios: list[Column] = []
    for name in STATISTICS:
        target, golden = (pl.col(f"{name}_{side}") for side, _ in SIDES)
        difference = pl.when(_is_compared()).then(_rounded(target - golden))
        percent = (difference / golden).abs() * 100
        ratio = (
            pl.when(golden == 0)
            .then(pl.lit("N/A"))
            .when(percent.is_nan())
            .then(pl.lit("Nan"))
            .otherwise(percent.cast(pl.String) + "%")
        )
        differences.append(Column(f"{STATISTIC_TITLES[name]} diff", _text(difference), difference))
        ratios.append(Column(f"{RELATIVE_STATISTICS[name]}RelativeErr", pl.when(_is_compared()).then(ratio)))
    return [*differences, *ratios]


def _tables(result: UnitResult) -> list[Column]:
    return [
        Column(
            f"{title} CSV File", pl.when(pl.col(f"name_{side}").is_not_null()).then(pl.lit(str(path / STATISTIC_FILE)))
        )
        for (side, title), path in zip(SIDES, _directories(result), strict=True)
    ]


# --- files of tensors ---------------------------------------------------------------------------------------------


def _of_files(result: UnitResult) -> list[Column]:
    return [
        Column(f"{title} Name", pl.lit(f"{path}/") + pl.col(f"file_name_{side}"), width=Width.NAME)
        for (side, title), path in zip(SIDES, _directories(result), strict=True)
    ]


def _with_statistics(result: UnitResult) -> pl.DataFrame:
    """Return the rows with statistics of the tensors, which dumps of tensors lack."""
    rows = result.rows
    for (side, _), directory in zip(SIDES, _directories(result), strict=True):
        found = [_statistics_in(directory, name) for name in rows[f"file_name_{side}"].to_list()]
        rows = rows.with_columns(
            pl.Series(f"{name}_{side}", [None if each is None else each[i] for each in found], dtype=pl.Float64)
            for i, name in enumerate(STATISTICS)
        )
    return with_metrics_of_tables(rows)


def _statistics_in(directory: Path, file_name: str | None) -> Sequence[float | None] | None:
    if file_name is None:
        return None
    try:
        found = statistics_of(open_tensor(directory / file_name))
    except DumpError:  # the row says so
        return None
    return [found.get(name) for name in STATISTICS]


def _verdict_of_files() -> list[Column]:
    message = pl.lit(None, dtype=pl.String)
    for condition, text in reversed(_MESSAGES):
        message = pl.when(condition).then(pl.lit(text)).otherwise(message)
    cosine, largest = pl.col("cosine"), pl.col("largest_abs")
    # A NaN cosine, of a side that is all zeros, does not count as a difference.
    is_off = ((cosine < 0.99) & (largest > 0.001)) | (cosine < 0.9) | (largest > 1)
    accuracy = (
        pl.when(~_are_comparable_files())
        .then(None)
        .when(_IS_LONE_ELEMENT | cosine.is_null())
        .then(pl.lit("None"))
        .when(is_off)
        .then(pl.lit("No"))
        .otherwise(pl.lit("Yes"))
    )
    return [Column("Accuracy Reached or Not", accuracy), Column("Err_message", message, width=Width.SENTENCE)]


_IS_NUMBER = pl.col("shape_target") == "[]"
_IS_LONE_ELEMENT = pl.col("shape_target") == "[1]"
_HAS_OTHER_PLACES = pl.col("status") == NOT_AVAILABLE

_MESSAGES = (
    (~_IS_PAIR, "Dump file is not ndarray.\n"),
    (_HAS_OTHER_SHAPE, "Shape of NPU and bench Tensor do not match.\n"),
    (_HAS_OTHER_DTYPE, _OTHER_DTYPE),
    (_IS_NUMBER, "This is type of scalar data, can not compare.\n"),
    (_HAS_OTHER_PLACES, "The position of inf or nan in NPU and bench Tensor do not match.\n"),
    (_IS_LONE_ELEMENT, "This is a 1-d tensor of length 1."),
    *(
        (
            pl.col("cosine").is_nan() & (pl.col(f"norm_{side}") == 0),
            f"Cannot compare by Cosine Similarity, All the data is Zero in {name} dump data.",
        )
        for side, name in (("target", "npu"), ("golden", "bench"))
    ),
)
"""Messages of a row by condition; the first condition that holds decides."""


def _are_comparable_files() -> pl.Expr:
    return _is_compared() & ~_IS_NUMBER & ~_HAS_OTHER_PLACES.fill_null(value=False)


def _metrics() -> list[Column]:
    columns: list[Column] = []
    for name, header in METRICS.items():
        number = pl.col(name)
        text = pl.when(number.is_nan()).then(pl.lit("Nan")).otherwise(number.cast(pl.String))
        columns.append(Column(header, pl.when(_are_comparable_files()).then(text), number))
    return columns
