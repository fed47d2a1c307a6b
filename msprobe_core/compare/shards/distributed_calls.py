"""Calls that exist only because a program is distributed: communication, and operators that compute nothing."""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import polars as pl

from msprobe_core import names
from msprobe_core.compare.shards.assembly import Array
from msprobe_core.compare.shards.rank_rows import Part, Union, family_of, recount, renamed
from msprobe_core.model import Role
from msprobe_core.store.frame import RowKind

_FOR_ALL = ("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_single", "broadcast")
"""Communication whose first result is equal on all ranks of the group."""

_POINT_TO_POINT = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
_SUMS = frozenset({"sum", "redoptype.sum", "reduceop.sum", "<redoptype.sum: 0>"})


def unwrapped(part: Part, known: Collection[str]) -> Part:
    """Return a part whose modules have the names of the other side, if only wrappers make the difference.

    Args:
        part: One rank's dump.
        known: Entries of the other side.
    """
    entries = set(part.frame["entry"].unique()) - set(known)
    found = {
        entry: inner for entry in entries if (inner := names.entry_without_wrappers(entry)) != entry and inner in known
    }
    if not found:
        return part
    return replace(part, frame=renamed(part.frame, found), names={**part.names, **found})


def framework_calls(union: Union, known: Collection[str]) -> Array:
    """Return which values belong to calls that a single process would not make, bool ``[values]``.

    These are communication among the merged ranks, its preparation by FSDP, and wrappers of the whole model.

    Args:
        union: All values.
        known: Entries of the other side, which are excluded.
    """
    entries = union.rows["entry"]
    is_own = entries.str.contains(_OWN) & ~entries.is_in(list(known))
    return communication(union) | is_own.to_numpy()


_OWN = rf"^fsdp\.|{names.MODULE}(DistributedDataParallel|FullyShardedDataParallel|OptimizedModule)\."


def communication(union: Union) -> Array:
    """Return which values belong to communication among the merged ranks, bool ``[values]``."""
    calls = _calls(union)
    ranks = {part.rank for part in union.parts}
    inner = {
        entry
        for entry, groups in _groups(union, calls).items()
        if all(set(group) <= ranks for group in groups.values())
    }
    # The peer of a message is not always recorded; without a group, assume that it was merged too.
    inner |= {entry for entry in calls if names.function_of(entry) in _POINT_TO_POINT and not _has_group(union, entry)}
    return union.rows["entry"].is_in(list(inner)).to_numpy()


def fake_tensor_calls(union: Union) -> Array:
    """Return which values belong to calls with fake tensors, made to infer shapes; bool ``[values]``."""
    is_fake = pl.col("type").str.ends_with("FakeTensor").fill_null(False)
    entries = union.rows.filter(is_fake)["entry"].unique()
    return union.rows["entry"].is_in(entries.to_list()).to_numpy()


def without(rows: pl.DataFrame, dropped: Array) -> tuple[pl.DataFrame, dict[str, str]]:
    """Return rows without some calls, and the new names of the remaining calls of these APIs, which are renumbered."""
    if not dropped.any():
        return rows, {}
    gone = rows.filter(pl.Series(dropped))["entry"].unique().to_list()
    kept = rows.filter(pl.Series(~dropped))
    families = {family for entry in gone if (family := family_of(entry)) is not None}
    names = recount(kept["entry"].unique(maintain_order=True).to_list(), families)
    return renamed(kept, names), names


def results_for_all(union: Union) -> Iterator[tuple[Array, Sequence[int]]]:
    """Yield results of communication with the parts that have equal ones: those of one group."""
    calls = [entry for entry in _calls(union) if names.function_of(entry) in _FOR_ALL]
    groups = _groups(union, calls)
    for value in _first_tensors(union, calls, Role.OUTPUT, all_of="all_gather"):
        members: dict[tuple[int, ...], list[int]] = {}
        for part in union.holders(value):
            group = groups.get(union.rows["entry"][value], {}).get(part)
            if group is not None:
                members.setdefault(group, []).append(part)
        for parts in members.values():
            if len(parts) > 1:
                yield np.array([value]), parts


Mark: TypeAlias = "tuple[tuple[int, bytes], ...]"
"""The statistics of a value in several parts, by which it is recognised."""


def reduced_values(union: Union) -> dict[int, int]:
    """Return, for values that are terms of a sum, the value that is the sum.

    A value counts as such a term if every rank that has it passed a tensor with identical statistics and number of
    elements to a summing ``all_reduce`` among exactly these ranks.
    """
    return terms_in(union, sums_in(union))


def sums_in(union: Union) -> dict[Mark, int]:
    """Return the values that are sums, by the statistics of their terms."""
    calls = _sums_of(union)
    groups = _groups(union, calls)
    results = {union.rows["entry"][v]: v for v in _first_tensors(union, calls, Role.OUTPUT)}
    sums: dict[Mark, int] = {}
    texts = _texts_of(union, calls)
    for value in _first_tensors(union, calls, Role.INPUT):
        entry = union.rows["entry"][value]
        parts = union.holders(value)
        group = {groups.get(entry, {}).get(part) for part in parts}
        ranks = tuple(sorted(union.parts[part].rank for part in parts))
        is_sum = any(text.lower() in _SUMS for text in texts.get(entry, [])) or not _has_operation(texts.get(entry, []))
        if entry in results and is_sum and group == {ranks} and len(parts) > 1:
            mark = _mark(union, value, parts)
            if mark is not None:
                sums.setdefault(mark, results[entry])
    return sums


def terms_in(union: Union, sums: Mapping[Mark, int]) -> dict[int, int]:
    """Return the values that are terms of sums, each with the sum; values of the summing calls are none."""
    if not sums:
        return {}
    found: dict[int, int] = {}
    results = _first_tensors(union, _sums_of(union), Role.OUTPUT)
    is_own = union.rows["entry"].is_in(union.rows["entry"].gather(results).unique().to_list()).to_list()
    candidates = _with_norms(union, {mark[0][1] for mark in sums})
    for value in candidates:
        parts = union.holders(value)
        mark = _mark(union, value, parts)
        if not is_own[value] and mark is not None and mark in sums and _differs(mark):
            found[value] = sums[mark]
    return found


def has_sums() -> pl.Expr:
    """Whether an entry may be a sum."""
    return pl.col("entry").str.contains(names.COMMUNICATION) & pl.col("entry").str.contains("all_reduce", literal=True)


def _sums_of(union: Union) -> list[str]:
    return [e for e in _calls(union) if names.function_of(e) == "all_reduce" and e.endswith(".forward")]


def _differs(mark: Sequence[tuple[int, bytes]]) -> bool:
    return len({own for _, own in mark}) > 1


def _with_norms(union: Union, marks: set[bytes]) -> list[int]:
    """Return values whose statistics in the first part are in ``marks``."""
    part = union.parts[0]
    rows = union.index[:, 0]
    columns = [part.numbers[name].values for name in ("max", "min", "mean", "norm")]
    packed = [struct.pack("<4d", *(column[row] for column in columns)) if row >= 0 else b"" for row in rows.tolist()]
    return [value for value, one in enumerate(packed) if one in marks]


def _mark(union: Union, value: int, parts: Sequence[int]) -> Mark | None:
    """Return the statistics of a value in several parts; ``None`` if one is missing."""
    marks: list[tuple[int, bytes]] = []
    for part in parts:
        row = int(union.index[value, part])
        columns = [union.parts[part].numbers[name] for name in ("max", "min", "mean", "norm")]
        if not all(column.is_known[row] for column in columns):
            return None
        marks.append((part, struct.pack("<4d", *(column.values[row] for column in columns))))
    return tuple(marks)


def _calls(union: Union) -> list[str]:
    rows = union.rows.filter(pl.col("entry").str.contains(names.COMMUNICATION))
    return rows["entry"].unique(maintain_order=True).to_list()


def _groups(union: Union, calls: Sequence[str]) -> Mapping[str, Mapping[int, tuple[int, ...]]]:
    """Return the group of each call by part; calls without a recorded group are omitted."""
    is_group = pl.col("type").str.ends_with("ProcessGroup").fill_null(False)
    found: dict[str, dict[int, tuple[int, ...]]] = {}
    for number, part in enumerate(union.parts):
        rows = part.frame.filter(is_group & pl.col("entry").is_in(list(calls))).select("entry", "text")
        for entry, text in rows.iter_rows():
            found.setdefault(entry, {})[number] = _ranks(text)
    return found


def _has_group(union: Union, entry: str) -> bool:
    return bool(_groups(union, [entry]))


def _texts_of(union: Union, calls: Sequence[str]) -> Mapping[str, Sequence[str]]:
    is_text = (pl.col("kind") == RowKind.SCALAR.value) & pl.col("text").is_not_null()
    rows = union.rows.filter(is_text & pl.col("entry").is_in(list(calls))).select("entry", "text")
    found: dict[str, list[str]] = {}
    for entry, text in rows.iter_rows():
        found.setdefault(entry, []).append(text)
    return found


def _has_operation(texts: Sequence[str]) -> bool:
    """Whether an operation is named; without one, ``all_reduce`` computes a sum."""
    known = ("max", "min", "avg", "prod", "band", "bor", "bxor", "premul")
    return any(word in text.lower() for text in texts for word in known)


def _first_tensors(union: Union, calls: Sequence[str], role: Role, all_of: str = "") -> list[int]:
    """Return the first tensor of each call, in its inputs or outputs; for ``all_of``, all of its first argument."""
    rows = union.rows.with_row_index("value").filter(
        pl.col("entry").is_in(list(calls)) & (pl.col("role") == role.value) & (pl.col("kind") == RowKind.TENSOR.value)
    )
    found: dict[str, list[int]] = {}
    for value, entry, key in rows.select("value", "entry", "key").iter_rows():
        place = str(key).removeprefix(f"{entry}.{role.value}.")
        is_list = names.function_of(entry) == all_of and place.startswith("0.")
        if place == "0" or is_list or (entry not in found and place in ("tensor", "input")):
            found.setdefault(entry, []).append(int(value))
    return [value for values in found.values() for value in values]


def _ranks(text: str | None) -> tuple[int, ...]:
    return tuple(sorted(int(rank) for rank in re.findall(r"\d+", text or "")))
