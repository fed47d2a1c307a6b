"""The tables of mstt 8.x and ``mindstudio-probe`` 26.x, for scripts that read them.

Headers, their order and the texts of special cells are those of the original, and so are verdicts and messages, see
`msprobe_core.compat.verdicts`. Every cell has a text. Spreadsheets get numbers as numbers, but relative errors of
statistics as text with a percent sign. Rows that only the golden side has are shown; the original omits them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import polars as pl

from msprobe_core.compare import custom_metrics
from msprobe_core.compare.result import Mode, UnitResult
from msprobe_core.compare.tensor_pass import NOT_A_NUMBER, NOT_AVAILABLE, UNSUPPORTED
from msprobe_core.compat.advice import advice_file
from msprobe_core.compat.highlight import COLOUR, FILLS
from msprobe_core.compat.spellings import METRICS, RELATIVE_STATISTICS, SIDES, STATISTIC_TITLES
from msprobe_core.compat.verdicts import COMPAT_MESSAGES, COMPAT_RESULT, Generation, add_verdicts, crc32_of
from msprobe_core.judge.columns import Match
from msprobe_core.judge.formatting import formatted
from msprobe_core.judge.row_conditions import DEVICE_TEXT
from msprobe_core.judge.statistics_columns import STATISTICS
from msprobe_core.protocols.presentation import Colours, Column, Table, TableChoices, Width
from msprobe_core.report.table import STACK_COLUMN, with_stacks
from msprobe_core.store.frame import RowKind

NO_FILE = "-1"


def table_of_a(result: UnitResult, choices: TableChoices) -> Table:
    """Return the table of generation A, with call stacks and the advisor file only on request."""
    table = _table_of(result, Generation.A, has_stacks=bool(choices.has_stacks), has_highlights=choices.has_highlights)
    return replace(table, companions=[advice_file(result)]) if choices.has_advice else table


def table_of_c(result: UnitResult, choices: TableChoices | None = None) -> Table:
    """Return the table of generation C, which has call stacks unless they are excluded."""
    return _table_of(result, Generation.C, has_stacks=choices is None or choices.has_stacks is not False)


def titles() -> Collection[str]:
    """Return the headers of tables of whole tensors in either generation, metrics of plugins excepted."""
    tables = [_columns(Mode.TENSOR, generation, pl.Schema()) for generation in Generation]
    return {column.header for columns in (*tables, [_STACKS]) for column in columns}


_STACKS = Column("NPU_Stack_Info", pl.col(STACK_COLUMN).cast(pl.String), width=Width.NAME)


def _table_of(result: UnitResult, generation: Generation, *, has_stacks: bool, has_highlights: bool = False) -> Table:
    rows = result.judged
    columns = _columns(result.mode, generation, rows.schema)
    if has_stacks and result.stacks:
        rows = with_stacks(result, rows, lambda frames: str(list(frames)))
        columns.insert(len(columns) - (result.mode is Mode.TENSOR), _STACKS)  # the names of files come last
    rows = add_verdicts(rows, result.mode, generation, has_highlights=has_highlights)
    colours = Colours(COLOUR, FILLS) if COLOUR in rows.columns else None
    return Table([_filled(column) for column in columns], rows, colours)


def _filled(column: Column) -> Column:
    return replace(column, value=column.value.cast(pl.String).fill_null(NOT_AVAILABLE))


def _columns(mode: Mode, generation: Generation, schema: pl.Schema) -> list[Column]:
    basics = [
        *name_columns(),
        *_both_sides("Dtype", "dtype"),
        *_both_sides("Tensor Shape", "shape"),
        *_requires_grad(),
    ]
    tail = [_consistent_grad(), *_verdicts(mode, generation)]
    if mode is Mode.STRUCTURE:
        return [*basics, *tail]
    if mode is Mode.CHECKSUM:
        return [*basics, *_checksums(), *tail]
    if mode is Mode.TENSOR:
        metrics = [*_tensor_metrics(generation), *_custom_metrics(schema)]
        return [*basics, *metrics, *_statistics(), *tail, Column("Data_name", _filename_columns())]
    return [*basics, *_differences(), *_relative_errors(), *_statistics(), *tail]


def _verdicts(mode: Mode, generation: Generation) -> list[Column]:
    result, messages = pl.col(COMPAT_RESULT), pl.col(COMPAT_MESSAGES)
    if generation is Generation.C:
        return [Column("Result", result), Column("Err_message", _message_list(messages), width=Width.SENTENCE)]
    free_text = Column("Err_message", messages.list.join("\n"), width=Width.SENTENCE)
    if mode is Mode.CHECKSUM:
        return [Column("Result", result)]
    if mode is Mode.TENSOR:
        return [Column("Accuracy Reached or Not", result), free_text]
    return [Column("Result", result), free_text]


def name_columns() -> list[Column]:
    """Return the columns of the names of both sides."""
    return [Column(f"{title} Name", pl.col(f"name_{side}"), width=Width.NAME) for side, title in SIDES]


def _both_sides(what: str, column: str) -> list[Column]:
    return [Column(f"{title} {what}", pl.col(f"{column}_{side}")) for side, title in SIDES]


def _requires_grad() -> list[Column]:
    return [Column(f"{title} Requires_grad", _bool_text(pl.col(f"requires_grad_{side}"))) for side, title in SIDES]


def _bool_text(value: pl.Expr) -> pl.Expr:
    return pl.when(value).then(pl.lit("True")).when(~value).then(pl.lit("False"))


def _consistent_grad() -> Column:
    same = pl.col("requires_grad_target").eq_missing(pl.col("requires_grad_golden"))
    return Column("Requires_grad Consistent", _bool_text(same))


def _message_list(messages: pl.Expr) -> pl.Expr:
    """Return the messages as the text of a JSON list; they are constants that need no escapes."""
    listed = formatted('["{}"]', messages.list.join('", "'))
    return pl.when(messages.list.len() > 0).then(listed).otherwise(pl.lit("[]"))


def _checksums() -> list[Column]:
    titles = {"target": "NPU MD5", "golden": "BENCH MD5"}
    return [Column(titles[side], _checksum(side)) for side, _ in SIDES]


def _checksum(side: str) -> pl.Expr:
    """Return the checksum of a tensor, zeros if it has none; for other values, the CRC-32 of their text."""
    kind = pl.col(f"kind_{side}")
    return (
        pl.when(kind == RowKind.TENSOR.value)
        .then(pl.col(f"checksum_{side}").fill_null("00000000"))
        .when(kind == RowKind.SCALAR.value)
        .then(pl.coalesce(pl.col(f"checksum_{side}"), crc32_of(pl.col(f"text_{side}"))))
    )


def _statistics() -> list[Column]:
    columns: list[Column] = []
    for side, title in SIDES:
        for name in STATISTICS:
            number = pl.col(f"{name}_{side}")
            is_text = (pl.col(f"kind_{side}") == RowKind.SCALAR.value) | (pl.col(f"kind_{side}") == RowKind.NONE.value)
            text = (
                pl.when(pl.col(f"kind_{side}").is_null())
                .then(pl.lit(NOT_AVAILABLE))
                .when(is_text)
                .then(pl.col(f"text_{side}").fill_null("None"))
                .otherwise(_value_text(number, pl.col(f"dtype_{side}")).fill_null("None"))
            )
            columns.append(Column(f"{title} {STATISTIC_TITLES[name].lower()}", text, number))
    return columns


def _value_text(number: pl.Expr, dtype: pl.Expr) -> pl.Expr:
    is_whole = dtype.str.to_lowercase().str.contains("int") & (number == number.round())
    as_bool = pl.when(number == 1).then(pl.lit("True")).otherwise(pl.lit("False"))
    return (
        pl.when(number.is_nan())
        .then(pl.lit(NOT_A_NUMBER))
        .when(number.is_infinite())
        .then(pl.when(number > 0).then(pl.lit("inf")).otherwise(pl.lit("-inf")))
        .when(is_whole)
        .then(pl.coalesce(number.cast(pl.Int64, strict=False).cast(pl.String), number.cast(pl.String)))
        .when(dtype.str.to_lowercase().str.contains("bool") & number.is_in([0.0, 1.0]))
        .then(as_bool)
        .otherwise(number.cast(pl.String))
    )


def _differences() -> list[Column]:
    return [
        Column(
            f"{STATISTIC_TITLES[name]} diff", _difference_text(name, pl.col(f"{name}_diff"), ""), pl.col(f"{name}_diff")
        )
        for name in STATISTICS
    ]


def _relative_errors() -> list[Column]:
    columns: list[Column] = []
    for name in STATISTICS:
        ratio = pl.col(f"{name}_rel")
        columns.append(
            Column(
                f"{RELATIVE_STATISTICS[name]}RelativeErr",
                _difference_text(name, ratio * 100, "%"),
            )
        )
    return columns


def _difference_text(name: str, number: pl.Expr, unit: str) -> pl.Expr:
    """Return the text of a difference: ``0`` if both sides are equal, including two None and two equal texts."""
    same_text = pl.col("text_target") == pl.col("text_golden")
    both_none = (pl.col("kind_target") == RowKind.NONE.value) & (pl.col("kind_golden") == RowKind.NONE.value)
    both_missing = pl.col(f"{name}_target").is_null() & pl.col(f"{name}_golden").is_null()
    is_tensor_pair = (pl.col("kind_target") == RowKind.TENSOR.value) & (pl.col("kind_golden") == RowKind.TENSOR.value)
    is_pair = pl.col("match") == Match.BOTH.value
    sides = ("target", "golden")
    both_devices = pl.all_horizontal(*[pl.col(f"text_{side}").str.contains(DEVICE_TEXT) for side in sides])
    is_bool = pl.any_horizontal(*[pl.col(f"type_{side}") == "bool" for side in sides])
    return (
        pl.when(~is_pair)
        .then(pl.lit(NOT_AVAILABLE))
        .when(same_text | both_none | (is_tensor_pair & both_missing))
        .then(pl.lit("0"))
        .when(both_devices)
        .then(pl.lit(NOT_AVAILABLE))
        .when(number.is_null() | is_bool)
        .then(pl.lit("Diff"))
        .when(number.is_nan())
        .then(pl.lit(NOT_A_NUMBER))
        .when(number.is_infinite())
        .then(pl.when(number > 0).then(pl.lit("inf")).otherwise(pl.lit("-inf")))
        .when(number == 0)
        .then(pl.lit("0"))
        .otherwise(number.cast(pl.String) + unit)
    )


def _tensor_metrics(generation: Generation) -> list[Column]:
    nan = NOT_AVAILABLE if generation is Generation.A else NOT_A_NUMBER
    columns: list[Column] = []
    for name, header in METRICS.items():
        number = pl.col(name)
        is_lone = pl.col("match") != Match.BOTH.value
        text = pl.when(is_lone).then(pl.lit(UNSUPPORTED)).otherwise(_number_text(number, pl.col("status"), nan))
        columns.append(Column(header, text, number))
    return columns


def _custom_metrics(schema: pl.Schema) -> list[Column]:
    columns: list[Column] = []
    for name, kind in schema.items():
        if name.startswith(custom_metrics.PREFIX):
            header, cell = name.removeprefix(custom_metrics.PREFIX), pl.col(name)
            text = cell if kind == pl.String else _number_text(cell, pl.lit(UNSUPPORTED), NOT_A_NUMBER)
            columns.append(Column(header, text.fill_null(UNSUPPORTED), None if kind == pl.String else cell))
    return columns


def _number_text(number: pl.Expr, missing: pl.Expr, nan: str) -> pl.Expr:
    return (
        pl.when(number.is_null())
        .then(missing)
        .when(number.is_nan())
        .then(pl.lit(nan))
        .when(number.is_infinite())
        .then(pl.lit("inf"))
        .otherwise(number.cast(pl.String))
    )


def _filename_columns() -> pl.Expr:
    sides = [
        pl.coalesce(
            f"file_name_{side}",
            pl.when(pl.col(f"kind_{side}").is_null()).then(pl.lit(NOT_AVAILABLE)).otherwise(pl.lit(NO_FILE)),
        )
        for side, _ in SIDES
    ]
    return formatted("['{}', '{}']", *sides)
