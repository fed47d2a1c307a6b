"""The communication calls in a dump: what each one sends and receives, and through which channel.

Messages keep their order within a *channel*: one kind of collective in one group of ranks, or the messages from one
rank to another under one tag. The data flow depends on the kind of call: the source of a broadcast waits for no other
rank, and only the destination of a reduction receives data.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import polars as pl

from msprobe_core import names
from msprobe_core.model import Role
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import RowKind

_COMMUNICATES = rf"{names.COMMUNICATION}|\.(?:All(?:Reduce|Gather|GatherV)|ReduceScatterV?|Reduce|Broadcast|AlltoAll(?:VC?)?|AllToAll(?:V|VC)?|NeighborExchange(?:V2)?|Collective(?:Scatter|Gather)|Send|Receive|Barrier){names.API_END}"  # noqa: E501
"""Entries that may be communication calls: functions, and MindSpore's primitives under any attribute name of a Cell."""

SENDS = frozenset({"send", "isend"})
RECEIVES = frozenset({"recv", "irecv", "receive"})
FROM_ROOT = frozenset({"broadcast", "scatter", "scatter_tensor", "collective_scatter"})
TO_ROOT = frozenset({"reduce", "gather", "gather_into_tensor", "collective_gather"})
_BATCH = "batch_isend_irecv"
_COLLECTIVE = re.compile(r"reduce|gather|scatter|broadcast|all_?to_?all|neighbor_exchange|barrier")
_ALWAYS_ASYNCHRONOUS = frozenset({"isend", "irecv", _BATCH})

_PEERS = {"src": False, "dst": False, "group_src": True, "group_dst": True}
"""Names of the argument for the peer rank, and whether the number is relative to the group."""

Group = str | None
"""A group as dumps write it, equal on all its ranks; ``None`` for the group of all ranks.

The ranks themselves are not stored: there may be thousands in each of a million calls.
"""


COLLECTIVE, _GRADIENTS, POINT_TO_POINT = "collective", "gradients", "point to point"
"""Possible first elements of a channel."""


class Message(NamedTuple):
    """One part of a communication call: its data in one channel.

    Attributes:
        channel: Equal on all participating ranks.
        sends: Whether this rank's data go into it.
        receives: Whether this rank receives data of others from it.
    """

    channel: tuple[object, ...]
    sends: bool
    receives: bool


class Communication(NamedTuple):
    """A communication call.

    Attributes:
        entry: Entry name.
        stem: Entry name without number and phase.
        number: Number among the calls of that name, in the order in which they began.
        position: Position among all entries of its rank, where its results are available.
        begun: Latest possible position of its start; a later call of the same name did not begin before it.
        is_waited_for: Whether it is asynchronous, so that its start is unknown.
        messages: What it sends and receives; for a backward, the same in the other direction.
        forward: For a backward the entry of its forward, whose number in the channel it has; empty otherwise.
    """

    entry: str
    stem: str
    number: int
    position: int
    begun: int
    is_waited_for: bool
    messages: tuple[Message, ...]
    forward: str = ""


@dataclass(frozen=True, slots=True)
class RankCalls:
    """The data of one rank that the order needs.

    Attributes:
        entries: All entry names, in execution order.
        communication: Its communication calls, in execution order.
        groups: The ranks of each group that it participates in, as far as the dump has them.
        num_unknown: Number of communication calls whose peers are not in the dump.
        unknown: The first of these; empty if there is none.
    """

    entries: pl.Series
    communication: Sequence[Communication]
    groups: Mapping[str, tuple[int, ...]]
    num_unknown: int = 0
    unknown: str = ""


def is_communication(entry: str) -> bool:
    """Whether an entry is a communication call, in either direction."""
    return re.search(_COMMUNICATES, entry) is not None and kind_of(entry) is not None


def kind_of(entry: str) -> str | None:
    """Return the kind of a communication call in PyTorch's spelling, such as ``all_reduce``; ``None`` for others."""
    stem = names.stem_of(entry)
    return None if stem is None else _kind_of_stem(stem)


@cache
def _kind_of_stem(stem: str) -> str | None:
    name = names.split_api(stem)[1].rpartition(".")[2]
    if not name.islower():  # a primitive: AllReduce
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("allto_all", "all_to_all")
    name = name.removesuffix("_")
    if name in SENDS or name in RECEIVES or name == _BATCH or _COLLECTIVE.search(name):
        return name
    return None


def calls_of(dump: Dump, rank: int) -> RankCalls:
    """Return the data of a dump that the order needs.

    Args:
        dump: Dump of one rank; only its frame is read.
        rank: Its number in the job.
    """
    frame = dump.frame
    entries = frame["entry"].unique(maintain_order=True)
    places = pl.DataFrame({"entry": entries}).with_row_index("position")
    entry = pl.col("entry")
    found = places.filter(entry.str.contains(_COMMUNICATES)).select(
        "entry",
        "position",
        stem=entry.str.extract(names.API_CALL, 1),
        number=entry.str.extract(names.API_CALL, 2).cast(pl.Int64, strict=False),
        is_backward=entry.str.contains(names.API_BACKWARD),
    )
    if not found.height:
        return RankCalls(entries, [], {})
    reader = _CallReader(rank, _arguments_in(frame.join(found, on="entry", how="semi")))
    calls: list[Communication] = []
    for entry, position, stem, number, is_backward in found.drop_nulls().rows():
        call = reader.read(entry, position, stem, number, is_backward)
        if call is not None:
            calls.append(call)
    return RankCalls(entries, _as_issued(calls), reader.groups, reader.num_unknown, reader.unknown)


_Given = Sequence[tuple[str, str, str]]
"""Position, type and text of the arguments of a call that are not tensors."""


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The arguments of all calls; most calls have the same as many others, so that each is stored once.

    Attributes:
        distinct: Position, type and text.
        by_entry: The numbers of the arguments of each entry among the distinct ones.
    """

    distinct: _Given
    by_entry: Mapping[str, tuple[int, ...]]


def _arguments_in(rows: pl.DataFrame) -> _Arguments:
    wanted = rows.filter((pl.col("kind") == RowKind.SCALAR.value) & (pl.col("role") == Role.INPUT.value))
    stem = pl.concat_str(pl.col("entry"), pl.lit(f".{Role.INPUT.value}."))
    parts = ["place", "type", "text"]
    arguments = wanted.select(
        "entry", pl.col("key").str.strip_prefix(stem).alias("place"), pl.col("type", "text").fill_null("")
    )
    distinct = arguments.select(parts).unique(maintain_order=True).with_row_index("number")
    numbered = arguments.join(distinct, on=parts, how="left", maintain_order="left")
    grouped = numbered.group_by("entry", maintain_order=True).agg("number")
    by_entry: dict[str, tuple[int, ...]] = {entry: tuple(numbers) for entry, numbers in grouped.rows()}
    return _Arguments(distinct.select(parts).rows(), by_entry)


class _Meaning(NamedTuple):
    """What calls of one function with the same arguments do.

    Attributes:
        messages: What they send and receive; ``None`` if the dump does not have the peer.
        is_waited_for: See `Communication`.
    """

    messages: tuple[Message, ...] | None
    is_waited_for: bool


class _CallReader:
    """Turns arguments into messages."""

    def __init__(self, rank: int, arguments: _Arguments) -> None:
        self._rank = rank
        self._arguments = arguments
        self._known: dict[tuple[str, tuple[int, ...]], _Meaning | None] = {}
        self._forwards: dict[str, Message] = {}
        self.groups: dict[str, tuple[int, ...]] = {}
        self.num_unknown = 0
        self.unknown = ""

    def read(self, entry: str, position: int, stem: str, number: int, is_backward: bool) -> Communication | None:
        """Return the call, or ``None`` if this rank does not take part in it."""
        if is_backward:
            return self._read_backward(entry, stem, number, position)
        key = stem, self._arguments.by_entry.get(entry, ())
        if key in self._known:
            meaning = self._known[key]
        else:
            meaning = self._known[key] = self._meaning(stem, [self._arguments.distinct[each] for each in key[1]])
        if meaning is None:
            return None
        messages, is_waited_for = meaning
        if messages is None:
            self.num_unknown += 1
            self.unknown = self.unknown or entry
            return None
        if messages and messages[0].channel[0] == COLLECTIVE:
            self._forwards[entry] = messages[0]
        return Communication(entry, stem, number, position, position, is_waited_for, messages)

    def _meaning(self, stem: str, given: _Given) -> _Meaning | None:
        """Return what such calls do; ``None`` if they are no communication, or this rank does not take part."""
        kind = _kind_of_stem(stem)
        if kind is None:
            return None
        if kind == _BATCH:
            return _Meaning(self._operations(given), True)
        group = self._group(given)
        members = self._members(group)
        if members and self._rank not in members:
            return None
        message = self._message(kind, given, group)
        is_waited_for = kind in _ALWAYS_ASYNCHRONOUS or ("async_op", "bool", "True") in given
        return _Meaning(None if message is None else (message,), is_waited_for)

    def _read_backward(self, entry: str, stem: str, number: int, position: int) -> Communication | None:
        # Gradients flow in the opposite direction.
        forward = names.forward_of(entry) or ""
        message = self._forwards.get(forward)
        if message is None:
            return None
        turned = Message((_GRADIENTS, *message.channel[1:]), message.receives, message.sends)
        return Communication(entry, stem, number, position, position, False, (turned,), forward)

    def _message(self, kind: str, given: _Given, group: Group) -> Message | None:
        """Return the message of a call; ``None`` if the dump does not have its peer."""
        if kind in SENDS or kind in RECEIVES:
            peer = self._peer(given, group)
            if peer is None:
                return None
            tag = next((text for place, _, text in given if place in {"tag", "3"}), "0")
            return self._point_to_point(kind, peer, tag, group)
        channel = (COLLECTIVE, group, kind)
        if kind not in FROM_ROOT and kind not in TO_ROOT:
            return Message(channel, sends=True, receives=True)
        root = self._peer(given, group)
        members = self._members(group)
        default = members[0] if members and 0 not in members else 0
        is_root = self._rank == (default if root is None else root)
        if kind in FROM_ROOT:
            return Message(channel, sends=is_root, receives=not is_root)
        return Message(channel, sends=True, receives=is_root)

    def _point_to_point(self, kind: str, peer: int, tag: str, group: Group) -> Message:
        if kind in SENDS:
            return Message((POINT_TO_POINT, self._rank, peer, tag, group), sends=True, receives=False)
        return Message((POINT_TO_POINT, peer, self._rank, tag, group), sends=False, receives=True)

    def _operations(self, given: _Given) -> tuple[Message, ...]:
        """Return the messages of a batch, whose arguments list its operations with their fields."""
        fields: dict[str, dict[str, str]] = {}
        for place, _, text in given:
            operation, _, name = place.rpartition(".")
            fields.setdefault(operation, {})[name] = text
        messages: list[Message] = []
        for operation in fields.values():
            kind, peer = operation.get("op", ""), operation.get("peer", "")
            if peer.isdigit() and (kind in SENDS or kind in RECEIVES):
                group = self._group_of(operation.get("group", "")) or operation.get("group_id")
                messages.append(self._point_to_point(kind, int(peer), operation.get("tag", "0"), group))
        return tuple(messages)

    def _peer(self, given: _Given, group: Group) -> int | None:
        """Return the peer rank or the root, which can be given in several ways."""
        members = self._members(group)
        for place, kind, text in given:
            is_named = place in _PEERS
            if kind != "int" or not (is_named or place in {"1", "2"}) or not text.isdigit():
                continue
            number = int(text)
            counts_within = _PEERS.get(place, False) or (members and number not in members)
            return members[number] if counts_within and number < len(members) else number
        return None

    def _members(self, group: Group) -> tuple[int, ...]:
        return self.groups.get(group, ()) if group is not None else ()

    def _group(self, given: _Given) -> Group:
        for place, kind, text in given:
            if kind.endswith("ProcessGroup") or place == "group":
                return self._group_of(text)
        return None

    def _group_of(self, text: str) -> Group:
        text = sys.intern(text)
        if text not in self.groups:
            numbers = text.strip("[]").replace(" ", "").split(",")
            is_list = text.startswith("[") and all(number.isdigit() for number in numbers)
            self.groups[text] = tuple(map(int, numbers)) if is_list else ()
        return text or None


def _as_issued(calls: list[Communication]) -> list[Communication]:
    """Return the calls with those of one name in the order in which they began, which is that of their numbers.

    An asynchronous call is recorded where the program waited for it; channels count calls by their start.
    """
    waiting: dict[str, list[int]] = {}
    for place, call in enumerate(calls):
        if call.is_waited_for:
            waiting.setdefault(call.stem, []).append(place)
    order = list(range(len(calls)))
    for places in waiting.values():
        numbered = sorted(places, key=lambda place: calls[place].number)
        for place, other in zip(places, numbered, strict=True):
            order[place] = other
        latest = len(calls) and calls[-1].position
        for place in reversed(numbered):
            latest = min(latest, calls[place].position)
            calls[place] = calls[place]._replace(begun=latest)
    return [calls[place] for place in order]
