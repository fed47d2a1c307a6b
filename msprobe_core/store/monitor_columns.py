"""The columns of a monitor's Arrow table that identify a value; all others are numbers."""

from __future__ import annotations

from collections.abc import Mapping

from msprobe_core.store.arrow_columns import Cell

KEY_COLUMNS: Mapping[str, Cell] = {
    "rank": Cell.COUNT,
    "step": Cell.COUNT,
    "micro_step": Cell.COUNT,
    "stage": Cell.COUNT,
    "quantity": Cell.TEXT,
    "name": Cell.TEXT,
    "shape": Cell.TEXT,
    "dtype": Cell.TEXT,
}
