"""The rows of several ranks' dumps side by side: one line per value, with its row in each dump."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from msprobe_core.compare.shards.assembly import STATISTICS, Array, Numbers
from msprobe_core.model import Phase
from msprobe_core.names import api_call
from msprobe_core.protocols.storage import Dump

_RANK = re.compile(r"rank(\d+)", re.ASCII)
_KEY = ["key", "occurrence"]


@dataclass(frozen=True)
class Part:
    """One rank's dump.

    Attributes:
        dump: The dump.
        rank: Its rank.
        frame: Its rows, with their names in the whole.
        names: Name of an entry in the whole by its own, if they differ.
    """

    dump: Dump
    rank: int
    frame: pl.DataFrame
    names: Mapping[str, str] = field(default_factory=dict[str, str])

    @cached_property
    def numbers(self) -> Mapping[str, Numbers]:
        """Its statistics, as columns."""
        return {name: _numbers(self.frame[name]) for name in STATISTICS}

    @cached_property
    def marks(self) -> Mapping[str, tuple[Array, Array]]:
        """For checksum and sketch: a hash of each value, and whether it exists."""
        columns: Any = self.frame
        return {
            name: (columns[name].hash(1).to_numpy(), columns[name].is_not_null().to_numpy())
            for name in ("checksum", "sketch")
        }


def part_of(dump: Dump, position: int) -> Part:
    """Return a dump as a part."""
    return Part(dump, rank_of(dump, position), dump.frame)


def rank_of(dump: Dump, position: int) -> int:
    """Return the rank of a dump, which is in its path, or else its position among the others."""
    for name in (dump.path.name, dump.path.parent.name):
        if found := _RANK.fullmatch(name):
            return int(found.group(1))
    return position


def _numbers(column: Any) -> Numbers:
    values = column.cast(pl.Float64)
    return Numbers(values.fill_null(float("nan")).to_numpy(), values.is_not_null().to_numpy())


@dataclass(frozen=True)
class Union:
    """All values that any part has.

    Attributes:
        parts: The parts.
        rows: For each value the row of the first part that has it, in execution order.
        index: int64 ``[values, parts]``: the row in each part's frame, -1 if there is none.
    """

    parts: Sequence[Part]
    rows: pl.DataFrame
    index: Array

    @cached_property
    def is_there(self) -> Array:
        """Whether a part has a value, bool ``[values, parts]``."""
        return self.index >= 0

    def holders(self, value: int) -> list[int]:
        """Return the parts that have a value."""
        return [int(part) for part in np.flatnonzero(self.index[value] >= 0)]

    def cells(self, column: str, part: int, values: Array) -> list[Any]:
        """Return a part's cells of a column for some of the values, all of which it has."""
        return self.parts[part].frame[column].gather(self.index[values, part]).to_list()

    def numbers(self, part: int, values: Array) -> dict[str, Numbers]:
        """Return a part's statistics of some of the values, all of which it has."""
        rows = self.index[values, part]
        return {name: column.at(rows) for name, column in self.parts[part].numbers.items()}

    def at(self, values: Array) -> Union:
        """Return the values in another order."""
        return Union(self.parts, self.rows[values], self.index[values])


def unite(parts: Sequence[Part]) -> Union:
    """Return the values of all parts.

    They are in the order of the first part; a value that it lacks follows its predecessor in another part.
    """
    index = index_of([part.frame["key"].hash() for part in parts])
    return Union(parts, rows_of_first(parts, index), index)


def index_of(keys: Sequence[pl.Series]) -> Array:
    """Return the row of each value in each part, int64 ``[values, parts]``, in the order of `unite`.

    Args:
        keys: Hashes of the keys of each part's rows, of 64 bits; equal ones of a part are counted.
    """
    if all(own.equals(keys[0]) for own in keys[1:]):
        return np.repeat(np.arange(len(keys[0]))[:, None], len(keys), axis=1)
    keyed = [
        own.alias("key")
        .to_frame()
        .with_columns(occurrence=pl.int_range(pl.len()).over("key"), row=pl.int_range(pl.len()))
        for own in keys
    ]
    order = keyed[0].select(*_KEY, place=pl.col("row").cast(pl.Float64), part=pl.lit(0), row="row")
    for number, own in enumerate(keyed[1:], start=1):
        placed = own.join(order.select(*_KEY, "place"), on=_KEY, how="left", maintain_order="left")
        # After the preceding value; a later part's value after that of an earlier one.
        anchor = pl.col("place").forward_fill().fill_null(-1.0)
        lone = placed.with_columns(anchor=anchor).filter(pl.col("place").is_null())
        lone = lone.select(*_KEY, place="anchor", part=pl.lit(number), row="row")
        order = pl.concat([order, lone]).sort("place", "part", "row", maintain_order=True)
        if lone.height:
            order = order.with_columns(place=pl.int_range(pl.len()).cast(pl.Float64))
    columns: list[Array] = []
    for own in keyed:
        found = order.select(_KEY).join(own, on=_KEY, how="left", maintain_order="left")
        columns.append(found["row"].fill_null(-1).to_numpy())
    return np.stack(columns, axis=1)


def rows_of_first(parts: Sequence[Part], index: Array) -> pl.DataFrame:
    """Return for each value the row of the first part that has it."""
    if (index[:, 0] >= 0).all() and len(index) == parts[0].frame.height:
        return parts[0].frame[index[:, 0]]
    first = (index >= 0).argmax(axis=1)
    starts = np.cumsum([0, *[part.frame.height for part in parts[:-1]]])
    whole = pl.concat([part.frame for part in parts], how="vertical")
    return whole[index[np.arange(len(first)), first] + starts[first]]


# --- names ----------------------------------------------------------------------------------------------------------


def renamed(frame: pl.DataFrame, names: Mapping[str, str]) -> pl.DataFrame:
    """Return rows with renamed entries; names and keys of rows begin with that of the entry.

    Args:
        frame: Columns of a dump.
        names: New name by old; other entries keep theirs.
    """
    names = {old: new for old, new in names.items() if old != new}
    if not names:
        return frame
    new = pl.col("entry").replace(names)
    own = [
        pl.when(pl.col(column).str.starts_with(pl.col("entry")))
        .then(pl.concat_str(new, pl.col(column).str.slice(pl.col("entry").str.len_chars())))
        .otherwise(pl.col(column))
        .alias(column)
        for column in ("name", "key")
    ]
    return frame.with_columns(*own, new.alias("entry"))


def recount(entries: Sequence[str], families: Collection[str] | None = None) -> dict[str, str]:
    """Return new names for calls of APIs, renumbered from 0, for calls with gaps or from several programs.

    Args:
        entries: Names in execution order, without duplicates. A backward gets the number of its forward.
        families: The APIs, such as ``Distributed.all_reduce``; ``None`` for all.
    """
    found = [(entry, api) for entry in entries if (api := api_call(entry)) is not None]
    numbers: dict[str, dict[str, int]] = {}
    for phase in (Phase.FORWARD.value, Phase.BACKWARD.value):
        for _, api in found:
            if api.phase == phase and (families is None or api.family in families):
                counted = numbers.setdefault(api.family, {})
                counted.setdefault(api.index, len(counted))
    return {
        entry: f"{api.family}.{numbers[api.family][api.index]}.{api.phase}"
        for entry, api in found
        if api.family in numbers
    }


def family_of(entry: str) -> str | None:
    """Return the API of a call, such as ``Distributed.all_reduce``; ``None`` for other entries."""
    api = api_call(entry)
    return None if api is None else api.family
