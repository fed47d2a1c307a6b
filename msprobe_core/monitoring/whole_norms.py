"""Norms of whole parameters and gradients, put together from the files of ranks that have parts of them.

Ranks with the same part of a parameter are replicas, of which one counts. Squares of the norms of disjoint parts add
up. Nothing is communicated for this in the training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from msprobe_core.monitoring.history import Monitored
from msprobe_core.monitoring.layout_file import FILE, OF_UPDATES, OF_VALUES, Layouts, read_layout
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.protocols.monitoring import Part

_MAX_DIGITS = 9
"""Of the position of a model in a list."""

_KEYS = ["quantity", "pp", "stage", "name", "step"]
_PARTS = {
    "rank": pl.Int64, "stage": pl.Int64, "name": pl.String, "is_update": pl.Boolean,
    "part": pl.String, "share": pl.Float64, "is_tp": pl.Boolean,
}  # fmt: skip
_RANKS = {"rank": pl.Int64, "pp": pl.Int64, "tp": pl.Int64, "tp_size": pl.Int64}


@dataclass(frozen=True)
class WholeNorms:
    """Norms over all ranks.

    Attributes:
        names: Columns ``quantity``, ``pp``, ``stage``, ``name``, ``step`` and ``norm``, which is null where parts of a
            parameter are missing.
        gradient: Columns ``step`` and ``norm``: of all reduced gradients; null where any is missing.
    """

    names: pl.DataFrame
    gradient: pl.DataFrame


def layouts_of(path: Path) -> Mapping[int, Layouts]:
    """Return the layouts of the ranks of a run, by rank; of a rank that was started again, the latest.

    Args:
        path: A directory with one directory per rank, or the directory of one rank.

    Raises:
        DumpError: a file cannot be read, or is not one of a monitor.
    """
    files = [file for file in (path / FILE, *path.glob(f"*/{FILE}")) if file.is_file()]
    found: dict[int, Layouts] = {}
    for file in sorted(files, key=lambda each: each.stat().st_mtime):
        layout = read_layout(file.parent)
        if layout is not None:
            found[layout.rank] = layout
    return found


def whole_norms(run: Monitored, layouts: Mapping[int, Layouts]) -> WholeNorms:
    """Put the norms of all ranks together.

    Args:
        run: Of all ranks, with the statistic ``norm``.
        layouts: By rank; a rank without one has its parameters whole.
    """
    parts = pl.DataFrame(list(_part_rows(layouts)), schema=_PARTS, orient="row")
    ranks = pl.DataFrame(
        [(rank, each.index_in("pp"), each.index_in("tp"), _size_of(each, "tp")) for rank, each in layouts.items()],
        schema=_RANKS,
        orient="row",
    )
    rows = run.frame.filter(pl.col("quantity").is_in([*OF_UPDATES, *OF_VALUES])).select(
        "rank", "quantity", "name", "step", "norm", pl.col("stage").fill_null(0),
        is_update=pl.col("quantity").is_in(list(OF_UPDATES)),
    )  # fmt: skip
    rows = rows.join(ranks, on="rank", how="left").join(parts, on=["rank", "stage", "name", "is_update"], how="left")
    is_tp = pl.col("is_tp").fill_null(value=False)
    rows = rows.with_columns(
        pp=pl.col("pp").fill_null(0),
        part=pl.col("part").fill_null(""),
        share=pl.col("share").fill_null(1.0) / pl.when(is_tp).then("tp_size").otherwise(1),
        tp=pl.when(is_tp).then("tp").otherwise(0),
    )
    distinct = rows.filter(pl.col("share") > 0).sort("rank").unique([*_KEYS, "tp", "part"], keep="first")
    names = distinct.group_by(_KEYS).agg(norm=_root_of_squares(), share=pl.col("share").sum()).sort(_KEYS)
    is_whole = (pl.col("share") - 1).abs() < 1e-6  # the rounding of a sum of shares
    names = names.select(*_KEYS, norm=pl.when(is_whole).then("norm"))
    gradients = names.filter(pl.col("quantity") == Quantity.GRADIENT_REDUCED.value)
    total = gradients.group_by("step").agg(norm=_root_of_squares(), is_whole=pl.col("norm").is_not_null().all())
    return WholeNorms(names, total.sort("step").select("step", norm=pl.when("is_whole").then("norm")))


def _root_of_squares() -> pl.Expr:
    return (pl.col("norm") ** 2).sum().sqrt()


def _size_of(layout: Layouts, group: str) -> int:
    found = layout.groups.get(group)
    return 1 if found is None else len(found.ranks)


def _part_rows(layouts: Mapping[int, Layouts]) -> Iterator[tuple[int, int, str, bool, str, float, bool]]:
    for rank, layout in layouts.items():
        for place, parts in layout.parts.items():
            stage, _, name = place.partition(":")
            if not stage.isdecimal() or len(stage) > _MAX_DIGITS:
                continue
            for is_update, part in ((False, parts.value), (True, parts.update)):
                yield rank, int(stage), name, is_update, *_key_of(part, rank), parts.is_tensor_parallel


def _key_of(part: Part | None, rank: int) -> tuple[str, float]:
    """Return what tells disjoint parts apart, and the share of the whole."""
    if part is None:
        return "", 1.0
    share = math.prod(map(float, part.shape)) / max(math.prod(map(float, part.whole)), 1.0)
    # A part that is no block cannot be compared with others: if all of them were added, replicas would count twice.
    return (f"{part.offset}", share) if part.offset is not None else (f"rank {rank}", math.nan)
