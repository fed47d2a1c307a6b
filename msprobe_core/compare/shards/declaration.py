"""Declarations about the ranks to merge, and the defaults without them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import polars as pl

from msprobe_core import names
from msprobe_core.compare.shards.assembly import Array
from msprobe_core.compare.shards.placement import AxisPlacement, MeshCoordinate
from msprobe_core.compare.shards.rank_rows import Part, Union
from msprobe_core.model import Role


class Declaration(Protocol):
    """Declarations about the ranks of one side."""

    @property
    def axes(self) -> Sequence[str]:
        """Names of the axes along which there is more than one rank."""
        ...

    @property
    def divides_calls(self) -> bool:
        """Whether ranks make different calls: stages of a pipeline, or experts."""
        ...

    def place_of(self, rank: int) -> MeshCoordinate:
        """Return the mesh coordinate of a rank."""
        ...

    def named(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Return the parts with the names of rows in the whole, in execution order."""
        ...

    def order(self, union: Union) -> Array | None:
        """Return the execution order of all values, int64 ``[values]``; ``None`` for the present order."""
        ...

    def placements(
        self, rows: pl.DataFrame, parents: Callable[[], Mapping[str, str | None]]
    ) -> Sequence[Sequence[AxisPlacement] | None]:
        """Return the placement of each value over the axes; ``None`` if nothing is declared.

        Args:
            rows: Columns of a dump.
            parents: Returns the enclosing call by entry, which takes long.
        """
        ...


class Undeclared:
    """Ranks without a declaration: all of them are on one axis."""

    axes = ("rank",)
    divides_calls = False

    def __init__(self, ranks: Sequence[int], is_parallel: bool | None = None) -> None:
        """Take the ranks.

        Args:
            ranks: The ranks.
            is_parallel: Result of `is_data_parallel` for all entries; ``None`` if rows are always given as a whole.
        """
        self._places = {rank: MeshCoordinate((("rank", i),)) for i, rank in enumerate(ranks)}
        self._is_parallel = is_parallel

    def place_of(self, rank: int) -> MeshCoordinate:
        """Return the mesh coordinate of a rank."""
        return self._places[rank]

    def named(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Return the parts unchanged."""
        return parts

    def order(self, union: Union) -> Array | None:  # noqa: ARG002
        """Return ``None``."""
        return None

    def placements(
        self,
        rows: pl.DataFrame,
        parents: Callable[[], Mapping[str, str | None]],  # noqa: ARG002
    ) -> Sequence[Sequence[AxisPlacement] | None]:
        """Return replicated placements for parameters of data parallel models, and ``None`` for all other values."""
        is_parallel = is_data_parallel(rows["entry"]) if self._is_parallel is None else self._is_parallel
        if not is_parallel:
            return [None] * rows.height
        is_parameter = rows["role"] == Role.PARAMETERS.value
        return [() if yes else None for yes in is_parameter.to_list()]


def is_data_parallel(entries: pl.Series) -> bool:
    """Whether all ranks have the same parameters: it is wrapped for data parallelism, and no layer is sharded."""
    is_wrapped = entries.str.contains(names.DATA_PARALLEL).any()
    return bool(is_wrapped) and not entries.str.contains(r"ParallelLinear|VocabParallel").any()
