"""The history of a monitored training, independent of the tool that wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from msprobe_core.findings import Finding
from msprobe_core.monitoring.quantities import Quantity

SERIES = ("rank", "quantity", "stage", "name", "micro_step")
"""Columns that identify a value over steps."""

ID = "_series"
"""Column of `with_ids`."""

SCHEMA = {
    "rank": pl.Int64,
    "quantity": pl.String,
    "stage": pl.Int64,
    "name": pl.String,
    "micro_step": pl.Int64,
    "step": pl.Int64,
    "place": pl.Int64,
}
"""Columns of a history that identify a row and its position in the file; all other columns are statistics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One monitored value: a quantity of a module or parameter.

    Attributes:
        quantity: A `Quantity`, or another name in the files.
        stage: Stage of a virtual pipeline; ``None`` without one.
        name: Name of the module, with ``.input`` or ``.output``, or of the parameter.
        micro_step: Micro-batch; ``None`` if the value belongs to the whole step.
    """

    quantity: str
    stage: int | None
    name: str
    micro_step: int | None

    @property
    def shown(self) -> str:
        """Display name: the outermost module has no name, and the first stage is usually the only one."""
        name = f"(model){self.name}" if self.name.startswith((".", "#")) else self.name
        return f"{self.stage}:{name}" if self.stage else name


@dataclass(frozen=True, kw_only=True)
class Monitored:
    """The history of one training.

    Attributes:
        frame: A row for each rank, `Place` and step: the columns of `SCHEMA`, then statistics (float64, null if a file
            lacks it). Rows of values that were absent in a step, such as the gradient of an input that requires none,
            are left out, so NaN means a value that is NaN.
        statistics: Names of the statistics, most frequent first.
        resolution: Smallest difference that the files can represent: monitors round to a number of decimals.
        notes: What was left out, and why.
    """

    frame: pl.DataFrame
    statistics: Sequence[str]
    resolution: float = 0.0
    notes: Sequence[Finding] = ()

    @property
    def ranks(self) -> list[int]:
        """The ranks, ascending."""
        return sorted(set(self.frame["rank"].to_list()))

    @property
    def steps(self) -> list[int]:
        """The steps, ascending."""
        return sorted(set(self.frame["step"].to_list()))


def with_ids(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a history with a number for each value over steps, the same on all ranks, by that number and step.

    What is computed of the steps of each value takes half as long in this order as in that of steps alone.
    """
    of_series = frame.select(SERIES[1:]).hash_rows()
    frame = frame.with_columns(of_series.alias(ID)).sort(ID, maintain_order=True)
    falls = (pl.col("step") < pl.col("step").shift(1)) & (pl.col(ID) == pl.col(ID).shift(1))
    # Files are nearly always read in the order of steps.
    return frame.sort(ID, "step", maintain_order=True) if frame.select(falls.any()).item() else frame


def in_order(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a history in the order of computation: by step, micro step, quantity, position in the file."""
    order = {each.value: i for i, each in enumerate(Quantity)}
    # Values of the whole step, such as reduced gradients, follow all micro steps; parameters precede them.
    whole = pl.when(pl.col("quantity") == Quantity.PARAM_ORIGIN.value).then(-1).otherwise(1 << 30)
    ordered = frame.with_columns(
        _micro=pl.coalesce("micro_step", whole),
        _quantity=pl.col("quantity").replace_strict(order, default=len(order), return_dtype=pl.Int64),
    )
    ordered = ordered.sort("step", "_micro", "_quantity", "place", "rank", maintain_order=True)
    return ordered.drop("_micro", "_quantity")


def place_of(row: dict[str, object]) -> Place:
    """Return the place of a row of a history."""
    stage, micro_step = row["stage"], row["micro_step"]
    return Place(
        quantity=str(row["quantity"]),
        stage=stage if isinstance(stage, int) else None,
        name=str(row["name"]),
        micro_step=micro_step if isinstance(micro_step, int) else None,
    )
