"""Two runs of which one divides a step's samples into more micro-batches than the other."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from msprobe_core import names
from msprobe_core.judge.joining import filtered
from msprobe_core.model import Role
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import RowKind
from msprobe_core.store.stored_dump import rows_of


@dataclass(frozen=True)
class MicroBatches:
    """Numbers of micro-batches into which both sides divide the same number of samples."""

    target: int
    golden: int


def micro_batches_of(target: Dump, golden: Dump) -> MicroBatches | None:
    """Return the numbers of micro-batches of both sides; ``None`` if they do not differ in these alone.

    Whole models are then called another number of times, and are given as many elements in all. What they compute in
    between cannot be compared call by call; gradients that were added up over the step can.
    """
    own, other = (_given(dump) for dump in (target, golden))
    both = own.join(other, on="stem", suffix="_golden")
    if both.is_empty() or not (own.height == other.height == both.height):
        return None
    if not both.select((pl.col("numel") == pl.col("numel_golden")).all()).item():
        return None
    most = both.filter(pl.col("calls") != pl.col("calls_golden")).select("calls", "calls_golden")
    return MicroBatches(*most.row(0)) if most.height else None


def _given(dump: Dump) -> pl.DataFrame:
    """Return the number of calls of each whole model, and of elements in the first tensors that it was given."""
    is_given = pl.col("entry").str.contains(names.OUTERMOST_FORWARD) & (pl.col("role") == Role.INPUT.value)
    rows = filtered(rows_of(dump), ["entry", "numel"], is_given & (pl.col("kind") == RowKind.TENSOR.value))
    first = rows.unique("entry", keep="first", maintain_order=True)
    return (
        first.with_columns(stem=pl.col("entry").str.extract(names.CALLED_MODULE))
        .group_by("stem", maintain_order=True)
        .agg(calls=pl.len(), numel=pl.col("numel").sum())
    )
