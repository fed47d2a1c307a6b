"""Read a monitor's values from an Arrow table: all complete batches, even if the rest is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import polars as pl

from msprobe_core.errors import DumpError, PluginError
from msprobe_core.findings import Finding
from msprobe_core.monitoring.history import SCHEMA
from msprobe_core.monitoring.monitoring_codes import MonitoringCode

_NEEDED = ("step", "quantity", "name")
_NOT_READ = ("rank", "shape", "dtype", "id")
"""Columns that a history does not have: the directory says the rank."""


def read_table(path: Path, notes: list[Finding]) -> pl.DataFrame:
    """Return the rows of a table: the columns of `SCHEMA` except the rank, and statistics.

    Args:
        path: A ``values_0.arrow``.
        notes: Receives what was lost.

    Raises:
        DumpError: it cannot be read, or is not a table of a monitor.
    """
    from msprobe_core.store.arrow_columns import Cell
    from msprobe_core.store.arrow_reader import read_stream
    from msprobe_core.store.monitor_columns import KEY_COLUMNS

    try:
        stream = read_stream(path, KEY_COLUMNS, needed=(), others=Cell.NUMBER)
    except PluginError as error:
        raise DumpError(f"{path}: {error}") from error
    if stream.damage:
        notes.append(Finding.of(MonitoringCode.CUT_TABLE, file=path.name, directory=path.parent.name))
    try:
        frame = cast("pl.DataFrame", cast("Any", pl).from_arrow(stream.table))
        return _typed(frame)
    except Exception as error:  # untrusted content may fail in any way
        raise DumpError(f"{path}: is not a table of a monitor ({error or type(error).__name__})") from error


def _typed(frame: pl.DataFrame) -> pl.DataFrame:
    if missing := sorted(set(_NEEDED) - set(frame.columns)):
        raise ValueError(f"it lacks the columns {', '.join(missing)}")
    statistics = [name for name in frame.columns if name not in SCHEMA and name not in _NOT_READ]
    keys = {name: kind for name, kind in SCHEMA.items() if name not in ("rank", "place")}
    typed = frame.select(
        **{name: (pl.col(name) if name in frame.columns else pl.lit(None)).cast(kind) for name, kind in keys.items()},
        place=pl.int_range(pl.len(), dtype=pl.Int64),
        **{name: pl.col(name).cast(pl.Float64) for name in statistics},
    )
    typed = typed.with_columns(stage=pl.when(pl.col("stage") >= 0).then("stage"))  # -1: no virtual pipeline
    known = (pl.col("step") >= 0) & pl.col("name").is_not_null() & pl.col("quantity").is_not_null()
    return typed.filter(known)
