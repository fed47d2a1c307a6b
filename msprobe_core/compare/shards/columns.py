"""The recomputed columns of a merged dump."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import polars as pl

from msprobe_core.compare.shards.assembly import STATISTICS, Array, Numbers
from msprobe_core.store.frame import COLUMNS, RowKind

TEXTS = ("checksum", "sketch", "fp8", "extra", "exact")
"""Columns of a value that are no numbers, besides its shape and its file."""


@dataclass
class Columns:
    """Recomputed columns of the frame, for all values."""

    size: int
    is_new: Array = field(init=False)
    numbers: dict[str, Numbers] = field(init=False)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    texts: dict[str, dict[int, Any]] = field(init=False)
    refused: dict[int, str] = field(default_factory=dict[int, str])

    def __post_init__(self) -> None:
        self.is_new = np.zeros(self.size, np.bool_)
        self.numbers = {name: Numbers.unknown(self.size) for name in STATISTICS}
        self.texts = {name: {} for name in (*TEXTS, "file_name")}

    def put(self, values: Array, numbers: Mapping[str, Numbers]) -> None:
        """Set the statistics of some values."""
        self.is_new[values] = True
        for name, column in numbers.items():
            self.numbers[name].values[values] = column.values
            self.numbers[name].is_known[values] = column.is_known

    def over(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows with the recomputed values."""
        if not self.is_new.any() and not self.refused:
            return rows
        is_new = pl.Series(self.is_new)
        made: list[Any] = []
        unknown = pl.Series([None] * self.size, dtype=pl.Float64)
        for name, column in self.numbers.items():
            values: Any = cast("Any", pl.Series(name, column.values)).zip_with(pl.Series(column.is_known), unknown)
            made.append(values.cast(COLUMNS[name], strict=False))
        for name, cells in self.texts.items():
            made.append(pl.Series(name, _spread_out(cells, self.size), dtype=COLUMNS[name]))
        shapes = {value: str(list(shape)) for value, shape in self.shapes.items()}
        sizes = {value: math.prod(shape) for value, shape in self.shapes.items()}
        made.append(pl.Series("shape", _spread_out(shapes, self.size), dtype=pl.String))
        made.append(pl.Series("numel", _spread_out(sizes, self.size), dtype=pl.Int64))
        made.append(pl.Series("distribution", [None] * self.size, dtype=pl.String))
        rows = rows.with_columns(
            pl.when(is_new).then(column).otherwise(pl.col(column.name)).alias(column.name) for column in made
        )
        refused = pl.Series("refused", _spread_out(self.refused, self.size), dtype=pl.String)
        blank = [name for name in list(COLUMNS)[list(COLUMNS).index("type") :] if name != "failure"]
        is_refused = refused.is_not_null()
        return rows.with_columns(
            *[pl.when(is_refused).then(None).otherwise(pl.col(name)).alias(name) for name in blank],
            kind=pl.when(is_refused).then(pl.lit(RowKind.NONE.value, COLUMNS["kind"])).otherwise("kind"),
            failure=pl.coalesce(refused, pl.col("failure")),
        )


def _spread_out(cells: Mapping[int, Any], size: int) -> list[Any]:
    column: list[Any] = [None] * size
    for value, cell in cells.items():
        column[value] = cell
    return column
