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

import numpy as np
import polars as pl
from numpy.typing import NDArray

from msprobe_core import names
from msprobe_core.model import Role
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import RowKind

COMMUNICATES = rf"{names.COMMUNICATION}|\.(?:All(?:Reduce|Gather|GatherV)|ReduceScatterV?|Reduce|Broadcast|AlltoAll(?:VC?)?|AllToAll(?:V|VC)?|NeighborExchange(?:V2)?|Collective(?:Scatter|Gather)|Send|Receive|Barrier){names.API_END}"  # noqa: E501
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


Integers = NDArray[np.int64]
"""A column of a table of calls."""


@dataclass(frozen=True, slots=True)
class Communication:
    """The communication calls of a rank in columns [calls], those of one name in the order in which they began.

    Columns, as there may be millions of calls, most of which do the same as many others.

    Attributes:
        positions: Position among all entries of the rank, where the results of a call are available.
        begun: Latest possible position of its start; a later call of the same name did not begin before it.
        is_waited_for: Whether it is asynchronous, so that its start is unknown.
        meanings: What it does, as an index of ``messages``.
        forwards: For a backward the place of its forward among these calls, whose number in the channel it has; -1
            for other calls.
        messages: What calls send and receive; for a backward, the same in the other direction.
    """

    positions: Integers
    begun: Integers
    is_waited_for: NDArray[np.bool_]
    meanings: Integers
    forwards: Integers
    messages: Sequence[tuple[Message, ...]]


@dataclass(frozen=True, slots=True)
class RankCalls:
    """The data of one rank that the order needs.

    Attributes:
        entries: All entry names, in execution order.
        communication: Its communication calls.
        groups: The ranks of each group that it participates in, as far as the dump has them.
        num_unknown: Number of communication calls whose peers are not in the dump.
        unknown: The first of these; empty if there is none.
    """

    entries: pl.Series
    communication: Communication
    groups: Mapping[str, tuple[int, ...]]
    num_unknown: int = 0
    unknown: str = ""

    def communicating(self) -> list[str]:
        """Return the names of its communication calls."""
        return self.entries.gather(self.communication.positions).to_list()


def is_communication(entry: str) -> bool:
    """Whether an entry is a communication call, in either direction."""
    return re.search(COMMUNICATES, entry) is not None and kind_of(entry) is not None


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
    found = _communicating(entries)
    if not found.height:
        none = np.empty(0, np.int64)
        return RankCalls(entries, Communication(none, none, none.astype(bool), none, none, []), {})
    reader = _CallReader(rank)
    stems = _codes(found["stem"])
    known, signatures = _alike(found, stems, _arguments_in(frame, found))
    meanings = [reader.meaning(stem, given) for stem, given in known]
    has_peers = np.array([meaning is not None and meaning.messages is not None for meaning in meanings])
    takes_part = np.array([meaning is not None for meaning in meanings])
    is_forward = ~found["is_backward"].to_numpy()
    unknown = np.flatnonzero(is_forward & (takes_part & ~has_peers)[signatures])
    return RankCalls(
        entries,
        _kept(found, stems, meanings, signatures, is_forward),
        reader.groups,
        len(unknown),
        str(found["entry"][int(unknown[0])]) if len(unknown) else "",
    )


def _communicating(entries: pl.Series) -> pl.DataFrame:
    """Return the calls that communicate by their names: entry, position, stem with a dot, number and direction."""
    entry = pl.col("entry")
    places = pl.DataFrame({"entry": entries}).with_row_index("position")
    found = places.filter(entry.str.contains(COMMUNICATES) & entry.str.contains(names.API_CALL))
    # Stripped from its end, as groups of a regular expression are several times as slow.
    numbered = entry.str.replace(names.IN_LATER_PASS, "").str.strip_suffix(".forward").str.strip_suffix(".backward")
    split = found.select("entry", "position", numbered=numbered, is_backward=entry.str.contains(names.API_BACKWARD))
    stem = pl.col("numbered").str.strip_chars_end("0123456789")
    number = pl.col("numbered").str.slice(stem.str.len_chars()).cast(pl.Int64, strict=False)
    return (
        split.select("entry", "position", "is_backward", stem=stem, number=number)
        .drop_nulls("number")
        .with_row_index("call")
    )


_Given = Sequence[tuple[str, str, str]]
"""Position, type and text of the arguments of a call that are not tensors."""


def _arguments_in(frame: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """Return the arguments of calls that are not tensors: call, position, type and text, by call."""
    is_wanted = (frame["kind"] == RowKind.SCALAR.value) & (frame["role"] == Role.INPUT.value)
    rows = frame.select("entry", "key", pl.col("type", "text")).filter(is_wanted)
    own = rows.join(found.select("entry", "call"), on="entry", maintain_order="left").sort("call", maintain_order=True)
    place = pl.col("key").str.slice(pl.col("entry").str.len_chars() + len(f".{Role.INPUT.value}."))
    return own.select("call", place.alias("place"), pl.col("type", "text").fill_null(""))


def _alike(
    found: pl.DataFrame, stems: Integers, arguments: pl.DataFrame
) -> tuple[Sequence[tuple[str, _Given]], Integers]:
    """Return the different calls, as stem and arguments, and by call which of them it is."""
    known = stems
    parts = _codes(arguments.select(pl.concat_str("place", "type", "text", separator="\0")).to_series())
    sizes = np.bincount(arguments["call"].to_numpy(), minlength=found.height)
    starts = np.cumsum(sizes) - sizes
    for number in range(int(sizes.max(initial=0))):
        have = np.flatnonzero(sizes > number)
        more = np.full(found.height, -1, np.int64)
        more[have] = parts[starts[have] + number]
        known = np.unique(known * (len(parts) + 1) + more + 1, return_inverse=True)[1]
    _, first, which = np.unique(known, return_index=True, return_inverse=True)
    calls = [
        (str(found["stem"][call])[:-1], arguments.select("place", "type", "text")[starts[call] : ends].rows())
        for call, ends in zip(first.tolist(), (starts + sizes)[first].tolist(), strict=True)
    ]
    return calls, which


def _codes(texts: pl.Series) -> Integers:
    """Return a number for each text, equal for equal texts, from 0; sorting hashes is faster than sorting texts."""
    return np.unique(texts.hash().to_numpy(), return_inverse=True)[1].astype(np.int64, copy=False)


class _Meaning(NamedTuple):
    """What calls of one function with the same arguments do.

    Attributes:
        messages: What they send and receive; ``None`` if the dump does not have the peer.
        is_waited_for: See `Communication`.
    """

    messages: tuple[Message, ...] | None
    is_waited_for: bool

    @property
    def backward(self) -> tuple[Message, ...] | None:
        """What gradients do, which flow in the opposite direction; ``None`` if the call is no collective."""
        first = self.messages[0] if self.messages else None
        if first is None or first.channel[0] != COLLECTIVE:
            return None
        return (Message((_GRADIENTS, *first.channel[1:]), first.receives, first.sends),)


def _kept(
    found: pl.DataFrame,
    stems: Integers,
    meanings: Sequence[_Meaning | None],
    signatures: Integers,
    is_forward: NDArray[np.bool_],
) -> Communication:
    """Return the calls that this rank takes part in, with their messages."""
    num_meanings = len(meanings)
    messages = [meaning and meaning.messages for meaning in meanings]
    messages += [meaning and meaning.backward for meaning in meanings]
    numbers = found["number"].to_numpy()
    forwards = np.where(is_forward, -1, _forwards_of(stems, numbers, is_forward))
    has_place = is_forward | (forwards >= 0)
    wanted = np.where(is_forward, signatures, num_meanings + signatures[forwards])
    kept = np.flatnonzero(has_place & np.array([each is not None for each in messages])[wanted])
    place_of = np.full(found.height, -1, np.int64)
    place_of[kept] = np.arange(len(kept))
    positions = found["position"].to_numpy().astype(np.int64)[kept]
    waits = np.array([meaning is not None and meaning.is_waited_for for meaning in meanings])[signatures] & is_forward
    begun, order = _as_issued(positions, waits[kept], stems[kept], numbers[kept])
    new_place = np.empty_like(order)
    new_place[order] = np.arange(len(order))
    own_forwards = np.where(forwards[kept] < 0, -1, new_place[place_of[forwards[kept]]])
    return Communication(
        positions[order],
        begun[order],
        waits[kept][order],
        wanted[kept][order],
        own_forwards[order],
        [each or () for each in messages],
    )


def _forwards_of(stems: Integers, numbers: Integers, is_forward: NDArray[np.bool_]) -> Integers:
    """Return the place of the forward of each call; -1 where there is none."""
    names_ = stems * (int(numbers.max()) + 1) + numbers
    places = np.flatnonzero(is_forward)
    if not len(places):
        return np.full(len(stems), -1, np.int64)
    places = places[np.argsort(names_[places], kind="stable")]
    at = np.minimum(np.searchsorted(names_[places], names_), len(places) - 1)
    return np.where(names_[places[at]] == names_, places[at], -1)


def _as_issued(
    positions: Integers, waits: NDArray[np.bool_], stems: Integers, numbers: Integers
) -> tuple[Integers, Integers]:
    """Return where calls had begun at the latest, and their order with those of one name by their start.

    An asynchronous call is recorded where the program waited for it; channels count calls by their start, which is the
    order of their numbers.
    """
    begun, order = np.array(positions), np.arange(len(positions))
    for stem in np.unique(stems[waits]):
        places = np.flatnonzero(waits & (stems == stem))
        numbered = places[np.argsort(numbers[places], kind="stable")]
        order[places] = numbered
        begun[numbered] = np.minimum.accumulate(positions[numbered][::-1])[::-1]
    return begun, order


class _CallReader:
    """Turns arguments into messages."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.groups: dict[str, tuple[int, ...]] = {}

    def meaning(self, stem: str, given: _Given) -> _Meaning | None:
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
