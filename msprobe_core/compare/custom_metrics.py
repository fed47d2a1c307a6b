"""Columns of the tensor table that plugins compute over whole arrays; the core's own metrics never need these."""

from __future__ import annotations

import logging
import math
import numbers
import threading
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from msprobe_core.compare.pairing_codes import MadeAlikeCode
from msprobe_core.findings import Finding
from msprobe_core.guard import described, kept
from msprobe_core.plugins import registry
from msprobe_core.protocols.comparison import Metric
from msprobe_core.protocols.storage import TensorSource

_logger = logging.getLogger(__name__)

Cell: TypeAlias = "float | int | str | None"

PREFIX = "metric:"
"""Prefix of these columns in the aligned rows; the rest is the column's title."""

MAX_BYTES = 1 << 30
"""Largest tensor, in bytes as passed to metrics, that is read whole."""

_CHUNK = 1 << 20
_SMALL_BYTES = 16 << 20
"""Pairs up to this size are in memory once per thread; of larger ones, only one is."""

_SIDES = ("target_", "golden_")


class CustomMetrics:
    """The metrics of plugins, and their results; may be called by several threads."""

    def __init__(self, metrics: Iterable[Metric], reserved: Iterable[str] = ()) -> None:
        """Take metrics with different names.

        Args:
            metrics: Result of the hook; those that have the name of another column are left out, with a note.
            reserved: Names of columns of the rows.
        """
        offered = list(metrics)
        taken = {*map(str.casefold, reserved), *(_table_titles() if offered else ())}
        self._metrics = [each for each in offered if not _is_taken(each.name, taken)]
        self._left_out = [each for each in offered if each not in self._metrics]
        self._cells: dict[int, list[Cell]] = {}
        self._failures: dict[int, list[tuple[str, str]]] = {}
        self._one_large = threading.Lock()

    def __bool__(self) -> bool:
        """Whether there are any metrics."""
        return bool(self._metrics)

    def compare(self, row: int, target: TensorSource, golden: TensorSource) -> None:
        """Compute every metric for a pair of tensors of the same shape, and store the results for ``row``.

        Raises:
            DumpError: a tensor cannot be read.
        """
        num_bytes = math.prod(target.shape) * 8
        if num_bytes > MAX_BYTES:
            reason = f"the tensor has more than {MAX_BYTES >> 30} GiB, and is not read whole"
            self._keep(row, [None] * len(self._metrics), [(metric.name, reason) for metric in self._metrics])
        elif num_bytes > _SMALL_BYTES:
            with self._one_large:
                self._ask(row, _whole(target), _whole(golden))
        else:
            self._ask(row, _whole(target), _whole(golden))

    def _ask(self, row: int, target: NDArray[Any], golden: NDArray[Any]) -> None:
        cells: list[Cell] = []
        failures: list[tuple[str, str]] = []
        for metric in self._metrics:
            try:
                cells.append(_cell(metric.compare(target, golden)))
            except BaseException as error:  # noqa: BLE001, PERF203  # a plugin's metric must not end the comparison
                reason = kept(error)
                cells.append(None)
                failures.append((metric.name, described(reason.__cause__ or reason)))
        self._keep(row, cells, failures)

    def _keep(self, row: int, cells: list[Cell], failures: list[tuple[str, str]]) -> None:
        self._cells[row] = cells
        if failures:
            self._failures[row] = failures

    def columns(self, num_rows: int) -> list[pl.Series]:
        """Return a column for each metric, of numbers or, if one of its cells is text, of text."""
        nothing: list[Cell] = [None] * len(self._metrics)
        rows = [self._cells.get(row, nothing) for row in range(num_rows)]
        return [_series(PREFIX + metric.name, [cells[i] for cells in rows]) for i, metric in enumerate(self._metrics)]

    def notes(self, names: Sequence[str]) -> list[Finding]:
        """Return a note on the failures of each metric; ``names`` are those of the rows."""
        notes = [
            Finding(MadeAlikeCode.METRIC_LEFT_OUT, fields={"metric": registry().described("metric", each.name)})
            for each in self._left_out
        ]
        for metric in self._metrics:
            found = [
                (row, reason) for row, all_ in self._failures.items() for name, reason in all_ if name == metric.name
            ]
            if found:
                row, reason = min(found)
                fields = {"metric": repr(metric.name), "count": len(found), "first": names[row], "why": reason}
                notes.append(Finding(MadeAlikeCode.METRIC_FAILED, fields=fields))
        return notes


def _is_taken(name: str, taken: Collection[str]) -> bool:
    folded = name.casefold()
    return not folded or folded in taken or folded.startswith(_SIDES)


def _table_titles() -> set[str]:
    """Return the headers of all table formats, casefolded; those of a broken format are not known."""
    found: set[str] = set()
    for offer in registry().tables().values():
        try:
            found.update(title.casefold() for title in offer.titles())
        except BaseException as error:  # noqa: BLE001, PERF203  # of a plugin, which the user may not even use
            _logger.warning("the headers of %s are not known: %s", offer.name, kept(error))
    return found


def _whole(source: TensorSource) -> NDArray[Any]:
    """Return a tensor in float32 if its dtype is no wider, else in float64 or complex128."""
    numel = math.prod(source.shape)
    whole: NDArray[Any] | None = None
    begin = 0
    for values in source.chunks(_CHUNK):
        if whole is None:
            is_narrow = values.dtype.kind == "f" and values.dtype.itemsize <= 4
            kind = np.complex128 if values.dtype.kind == "c" else np.float32 if is_narrow else np.float64
            whole = np.empty(numel, kind)
        whole[begin : begin + values.size] = values
        begin += values.size
    return np.reshape(np.empty(0) if whole is None else whole, source.shape)


def _cell(value: object) -> Cell:
    """Return a result of a metric as a Python object.

    Raises:
        TypeError: it has another type.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real | np.floating):
        return float(cast("Any", value))
    raise TypeError(f"it returned {type(value).__name__}, not a number or text")


def _series(name: str, cells: list[Cell]) -> pl.Series:
    if any(isinstance(cell, str) for cell in cells):
        return pl.Series(name, [None if cell is None else str(cell) for cell in cells], pl.String)
    return pl.Series(name, [None if cell is None else float(cell) for cell in cells], pl.Float64)
