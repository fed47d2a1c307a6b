"""The default table: numbers as numbers, the verdict and its reason next to the name, and all available metrics.

Missing values are empty cells. The headers are the same in every mode; columns without any value are left out, except
those that belong to the mode.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec
import polars as pl

from msprobe_core.compare import custom_metrics, extra_statistics
from msprobe_core.compare.fp8 import FP8_NAMES
from msprobe_core.compare.result import Mode, UnitResult
from msprobe_core.compare.tensor_pass import PERCENTILES, TensorMetrics
from msprobe_core.judge.columns import EXTRA_PREFIX, SKETCH_ERROR
from msprobe_core.judge.limits import Precision
from msprobe_core.judge.noise.model import SCORES
from msprobe_core.judge.row_findings import codes
from msprobe_core.judge.statistics_columns import STATISTICS
from msprobe_core.protocols.presentation import Column, Table, Width
from msprobe_core.report.table import STACK_COLUMN, with_stacks
from msprobe_core.store.frame import RowKind
from msprobe_core.store.stored_rows import has_any, narrowed, roots_of

_SIDES = ("target", "golden")

PERCENTILE_HEADERS = {
    f"{kind}_{name}": f"{kind}_error_p{percent:g}" for kind in ("abs", "rel") for name, percent in PERCENTILES.items()
}
"""Headers of the percentiles of elementwise errors, in tables and pages."""

TENSOR_HEADERS = {
    "cosine": "cosine_similarity",
    "euclidean": "euclidean_distance",
    "largest_abs": "max_abs_error",
    "largest_rel": "max_rel_error",
    "within_1e3": "share_within_0.001",
    "within_5e3": "share_within_0.005",
    **PERCENTILE_HEADERS,
}
"""Headers of tensor metrics; metrics that are not listed have their own name as header."""

_COUNTS = ("num_nan", "num_inf")

_NO_MEASURES = frozenset({
    *("error", "status", "problem", "unread"), *[f"{name}_{side}" for name in _COUNTS for side in _SIDES]
})  # fmt: skip
"""Fields of the tensor metrics that are shown in other columns."""

_JUDGED = "judged_error"

_FOR_SHEETS = ("entry", "match", "verdict", _JUDGED, "limit", "score", "score_limit")
"""Columns by which spreadsheets colour and choose rows, and stacks are found."""

_OF_MODE: dict[Mode, frozenset[str]] = {
    Mode.TENSOR: frozenset({_JUDGED, *TENSOR_HEADERS}),
    Mode.STATISTICS: frozenset({_JUDGED, *[f"{name}_{what}" for name in STATISTICS for what in ("diff", "rel")]}),
    Mode.CHECKSUM: frozenset({_JUDGED, *[f"checksum_{side}" for side in _SIDES]}),
    Mode.STRUCTURE: frozenset(),
}
"""Columns of the result's rows that tables of a mode always contain."""


def own_table(result: UnitResult, *, has_stacks: bool) -> Table:
    """Return the table of one result.

    Args:
        result: What to show.
        has_stacks: Whether there is a column of call stacks; without recorded stacks there is none in any case.
    """
    always = _OF_MODE[result.mode]
    present = set(result.judged.columns)
    shown = [
        column
        for name, column in _columns(result.judged.columns)
        if name is None or (name in present and (name in always or has_any(result.judged, name)))
    ]
    rows = narrowed(result.judged, [*_FOR_SHEETS, *roots_of(*[column.value for column in shown])])
    if has_stacks and result.stacks:
        rows = with_stacks(result, rows, _stack_text)
        shown.append(_STACKS)
    return Table(shown, rows)


_STACKS = Column("stack", pl.col(STACK_COLUMN).cast(pl.String), width=Width.NAME)


def titles() -> Collection[str]:
    """Return every header that the table may have, metrics of plugins excepted."""
    return {column.header for column in (*[column for _, column in _columns(())], _STACKS)}


def _columns(of_rows: Sequence[str]) -> Iterator[tuple[str | None, Column]]:
    """Yield all possible columns, each with the column of the rows that it needs, if any."""
    yield from _verdicts()
    yield from _pairwise("dtype", "dtype")
    yield from _pairwise("shape", "shape")
    yield from _pairwise("requires_grad", "requires_grad", Width.NARROW)
    yield from _measures(of_rows)
    for side in _SIDES:
        is_tensor = pl.col(f"kind_{side}") == RowKind.TENSOR.value
        for name in (*STATISTICS, *_COUNTS):
            column = f"{name}_{side}"
            yield column, Column(f"{side}_{name}", pl.when(is_tensor).then(pl.col(column)))
    for name in FP8_NAMES:
        yield from _pairwise(name, name)
    for name in extra_statistics.names_of(of_rows):
        yield from _pairwise(name, EXTRA_PREFIX + name)
    yield from _pairwise("value", "text")
    yield from _pairwise("checksum", "checksum")
    yield from _pairwise("file", "file_name")


def _verdicts() -> Iterator[tuple[str | None, Column]]:
    for side in _SIDES:
        yield None, Column(f"{side}_name", pl.col(f"name_{side}"), width=Width.NAME)
    yield None, Column("verdict", pl.col("verdict"), width=Width.NARROW)
    yield _JUDGED, Column("error", pl.col(_JUDGED))
    is_judged = pl.col(_JUDGED).is_not_null()
    yield _JUDGED, Column("limit", pl.when(is_judged).then(pl.col("limit")))
    for name in SCORES:
        yield name, Column(name, pl.col(name), width=Width.NARROW if name == "score_measure" else Width.NUMBER)
    yield "override", Column("limit_given_by", pl.col("override"), width=Width.NAME)
    names = {int(precision): precision.name.lower() for precision in Precision}
    precision = pl.col("precision").replace_strict(names, return_dtype=pl.String)
    yield _JUDGED, Column("precision", pl.when(is_judged).then(precision))
    yield None, Column("reason", pl.col("messages").list.join(" "), width=Width.SENTENCE)
    yield None, Column("codes", codes().list.join(" "), width=Width.NAME)


def _pairwise(header: str, name: str, width: Width = Width.NUMBER) -> Iterator[tuple[str, Column]]:
    for side in _SIDES:
        yield f"{name}_{side}", Column(f"{side}_{header}", pl.col(f"{name}_{side}"), width=width)


def _measures(of_rows: Sequence[str]) -> Iterator[tuple[str, Column]]:
    """Yield the metrics of each pair; a metric added to `TensorMetrics` appears automatically."""
    for field in msgspec.structs.fields(TensorMetrics):
        if field.name not in _NO_MEASURES:
            yield field.name, Column(TENSOR_HEADERS.get(field.name, field.name), pl.col(field.name))
    for name in of_rows:
        if name.startswith(custom_metrics.PREFIX):
            yield name, Column(name.removeprefix(custom_metrics.PREFIX), pl.col(name))
    yield SKETCH_ERROR, Column("estimated_rel_error", pl.col(SKETCH_ERROR))
    for name in extra_statistics.names_of(of_rows):
        yield (column := f"{EXTRA_PREFIX}{name}_diff"), Column(f"{name}_diff", pl.col(column))
    # The four differences of a scalar argument would be equal, and both its values are shown already.
    is_tensor = pl.col("kind_target") == RowKind.TENSOR.value
    for name in STATISTICS:
        yield f"{name}_diff", Column(f"{name}_diff", pl.when(is_tensor).then(pl.col(f"{name}_diff")))
    for name in STATISTICS:
        yield f"{name}_rel", Column(f"{name}_rel_diff", pl.when(is_tensor).then(pl.col(f"{name}_rel")), is_percent=True)


def _stack_text(frames: Sequence[str]) -> str:
    """Return a stack in one line, innermost call first."""
    return " < ".join(" ".join(frame.split()) for frame in frames)
