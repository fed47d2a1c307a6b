"""Columns for the statistics of quantisation to FP8 that dumps contain."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import polars as pl

from msprobe_core.model import Fp8Stats
from msprobe_core.store.stored_rows import Rows, has_any

FP8_NAMES = tuple(f"fp8_{field.name}" for field in msgspec.structs.fields(Fp8Stats))
"""Columns of the statistics, before ``_target`` or ``_golden``."""


def with_fp8_columns(rows: Rows, sides: Sequence[str]) -> Rows:
    """Return ``rows`` with ``fp8_{side}``, which is JSON, replaced by a column for each statistic that all sides have.

    Args:
        rows: Rows with ``fp8_{side}``.
        sides: ``target``, ``golden`` or both.
    """
    others = rows.drop([f"fp8_{side}" for side in sides])
    if not all(has_any(rows, f"fp8_{side}") for side in sides):
        return others
    columns = {side: _numbers(rows[f"fp8_{side}"]) for side in sides}
    shown = [name for name in FP8_NAMES if all(own[name].count() for own in columns.values())]
    return others.with_columns(columns[side][name].alias(f"{name}_{side}") for name in shown for side in sides)


def _numbers(texts: pl.Series) -> pl.DataFrame:
    """Return a column for each statistic; null if it is missing or malformed."""
    cells = [_NONE if text is None else _read(text) for text in texts]
    by_name = zip(FP8_NAMES, zip(*(msgspec.structs.astuple(cell) for cell in cells), strict=True), strict=True)
    return pl.DataFrame([pl.Series(name, column, pl.Float64) for name, column in by_name])


def _read(text: str) -> Fp8Stats:
    try:
        return _decode(text)
    except msgspec.MsgspecError:
        return _NONE


_NONE = Fp8Stats()
_decode = msgspec.json.Decoder(Fp8Stats).decode
