"""Whether the values that ranks of one run should have in common are equal, without merging the ranks.

The ranks are united by hashes of their keys, and compared some entries at a time, so that long dumps stay in files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from msprobe_core.compare.compare_codes import CompareCode
from msprobe_core.compare.shards.assembly import Array, CannotMerge
from msprobe_core.compare.shards.declaration import Undeclared, is_data_parallel
from msprobe_core.compare.shards.distributed_calls import has_sums, results_for_all, sums_in, terms_in
from msprobe_core.compare.shards.findings import ReplicaFinding
from msprobe_core.compare.shards.groups import Groups
from msprobe_core.compare.shards.rank_rows import Part, Union, index_of, rank_of, rows_of_first
from msprobe_core.compare.shards.replicas import copies_that_differ, differing
from msprobe_core.judge.joining import hashed, parts_of
from msprobe_core.protocols.storage import Dump
from msprobe_core.store import stored_rows
from msprobe_core.store.stored_dump import StoredDump, rows_of
from msprobe_core.store.stored_rows import Rows, StoredRows, stored


def replicas_that_differ(dumps: Sequence[Dump]) -> list[ReplicaFinding]:
    """Return the values that should be equal on several ranks and are not, in execution order.

    Args:
        dumps: Dumps of different ranks in one step, about whose layout nothing is declared.
    """
    for dump in dumps:
        if isinstance(dump, StoredDump):
            dump.rows = stored(dump.rows, stored_rows.LONG_ROWS // len(dumps))
    sides = [rows_of(dump) for dump in dumps]
    index = index_of([hashed(rows, "key") for rows in sides])
    ranks = [rank_of(dump, i) for i, dump in enumerate(dumps)]
    declaration = Undeclared(ranks, is_data_parallel(pl.concat(map(_entries_of, sides))))
    unions = _Unions(dumps, ranks, index)
    sums: dict[Any, int] = {}
    for begin, union in unions.where(has_sums()):
        for mark, value in sums_in(union).items():
            sums.setdefault(mark, begin + value)
    found: list[ReplicaFinding] = []
    for begin, union in unions:
        known = _differing_in(union, declaration, frozenset(terms_in(union, sums)))
        found += [replace(each, position=begin + value) for value, each in sorted(known.items())]
    return found


def _entries_of(rows: Rows) -> pl.Series:
    return pl.concat(part["entry"].unique() for part in parts_of(rows, ["entry"])).unique()


def _differing_in(union: Union, declaration: Undeclared, reduced: frozenset[int]) -> dict[int, ReplicaFinding]:
    """Return findings by value.

    Args:
        union: All values of some entries.
        declaration: What is known of the ranks.
        reduced: Values that are terms of a recorded sum.
    """
    found: dict[int, ReplicaFinding] = {}
    for values, assembly in Groups(union, declaration, (), reduced).all():
        if isinstance(assembly, CannotMerge):
            continue
        if assembly.reduction is not None:
            values = values[[value not in reduced for value in values.tolist()]]  # noqa: PLW2901  # the rest of them
        if len(values):
            copies_that_differ(union, values, assembly, found)
    for values, parts in results_for_all(union):
        differing(union, values, parts, CompareCode.ALIKE_BY_COMMUNICATION, found)
    return found


class _Unions:
    """The values of all ranks, as unions of some entries, with the number of their first value."""

    def __init__(self, dumps: Sequence[Dump], ranks: Sequence[int], index: Array) -> None:
        self._dumps = list(zip(dumps, ranks, strict=True))
        self._sides = [rows_of(dump) for dump in dumps]
        self._index = index
        self._ends = _ends_of([hashed(rows, "entry") for rows in self._sides], index)

    def __iter__(self) -> Iterator[tuple[int, Union]]:
        begin = 0
        for end in self._ends:
            yield begin, self._between(begin, end)
            begin = end

    def where(self, condition: pl.Expr) -> Iterator[tuple[int, Union]]:
        """Yield those in which an entry meets a condition."""
        meets = [
            pl.concat([part.select(condition).to_series() for part in parts_of(rows, ["entry"])]).to_numpy()
            for rows in self._sides
        ]
        begin = 0
        for end in self._ends:
            rows = [self._index[begin:end, number] for number in range(len(self._sides))]
            if any(own[row[row >= 0]].any() for own, row in zip(meets, rows, strict=True)):
                yield begin, self._between(begin, end)
            begin = end

    def _between(self, begin: int, end: int) -> Union:
        index = self._index[begin:end]
        parts: list[Part] = []
        for number, (dump, rank) in enumerate(self._dumps):
            own = index[:, number]
            parts.append(Part(dump, rank, _taken(self._sides[number], own[own >= 0])))
        is_there = index >= 0
        own_index = np.where(is_there, np.cumsum(is_there, axis=0) - 1, -1)
        return Union(parts, rows_of_first(parts, own_index), own_index)


def _taken(rows: Rows, numbers: Array) -> pl.DataFrame:
    wanted = pl.Series(numbers, dtype=pl.Int64)
    return rows.taken(wanted) if isinstance(rows, StoredRows) else rows.select(pl.all().gather(wanted))


def _ends_of(entries: Sequence[pl.Series], index: Array) -> list[int]:
    """Return where values can be divided into parts of whole entries.

    Args:
        entries: Hashes of the entries of each part's rows.
        index: The row of each value in each part.
    """
    own = np.zeros(len(index), np.uint64)
    for number, hashes in enumerate(entries):
        is_there = index[:, number] >= 0
        own[is_there] = hashes.to_numpy()[index[is_there, number]]
    # Values that one part has alone may be between those of an entry.
    frame = pl.DataFrame({"entry": own}).with_row_index("value")
    last = frame.select(pl.col("value").max().over("entry").cum_max()).to_series().to_numpy()
    places = np.flatnonzero(last == np.arange(len(own))) + 1
    ends: list[int] = []
    while not ends or ends[-1] < len(own):
        wanted = min((ends[-1] if ends else 0) + stored_rows.PART_ROWS, len(own))
        ends.append(int(places[np.searchsorted(places, wanted)]) if len(own) else 0)
        if not len(own):
            break
    return ends
