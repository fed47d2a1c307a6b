"""Match the communication calls of all ranks: find the calls that form one exchange.

The n-th message of a rank in a channel is matched with the n-th message of the others in it. Counters of different
channels, or of all calls of a rank, are never compared.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from msprobe_core.findings import Finding
from msprobe_core.order.communication_calls import (
    COLLECTIVE,
    POINT_TO_POINT,
    Communication,
    Integers,
    Message,
    RankCalls,
)
from msprobe_core.order.order_codes import OrderCode

_UNKNOWN = -1

_MAX_NOTES = 8
_MAX_RANKS_NAMED = 8


@dataclass(slots=True)
class Trace:
    """The communication of one rank, in order of completion; in flat arrays, as there may be millions of calls.

    Attributes:
        positions: Position of each call among all entries of its rank.
        issued: Number of entries that were complete when it began; -1 if unknown.
        early: Calls that began before another call at a position was complete: that position, and the call.
        all_sent: The exchanges that the calls send into, one call after the other.
        sent_ends: Where those of a call begin, and at the next place where they end.
        all_received: The exchanges that the calls receive from.
        received_ends: As ``sent_ends``.
    """

    positions: array[int]
    issued: array[int]
    early: list[tuple[int, int]]
    all_sent: array[int]
    sent_ends: array[int]
    all_received: array[int]
    received_ends: array[int]

    def sent(self, call: int) -> array[int]:
        """Return the exchanges that a call sends into."""
        return self.all_sent[self.sent_ends[call] : self.sent_ends[call + 1]]

    def received(self, call: int) -> array[int]:
        """Return the exchanges that a call receives from."""
        return self.all_received[self.received_ends[call] : self.received_ends[call + 1]]


class _Channel:
    """The exchanges of one channel, and how many messages each rank has had in it."""

    __slots__ = ("counts", "exchanges")

    def __init__(self) -> None:
        self.exchanges = np.empty(0, np.int64)
        self.counts: dict[tuple[int, bool], int] = {}


class Exchanges:
    """The exchanges between ranks; ranks are added one by one.

    Attributes:
        ranks: Ranks that have been added.
        traces: One for each of them.
    """

    def __init__(self, world: Sequence[int]) -> None:
        """Begin without ranks.

        Args:
            world: All ranks of the job, the group of a call that names none.
        """
        self._world = tuple(world)
        self._all_ranks = str(list(world))
        self._groups: dict[str, tuple[int, ...]] = {}
        self._channels: dict[tuple[object, ...], _Channel] = {}
        self.ranks: list[int] = []
        self.traces: list[Trace] = []
        self._num_exchanges = 0
        self._sent: list[Integers] = []
        self._num_unknown = 0
        self._first_unknown: dict[str, str | int] = {}

    def add(self, rank: int, calls: RankCalls) -> None:
        """Add the calls of a rank."""
        self.ranks.append(rank)
        self._groups.update(calls.groups)
        if calls.num_unknown and not self._num_unknown:
            self._first_unknown = {"first": calls.unknown, "rank": rank}
        self._num_unknown += calls.num_unknown
        self.traces.append(self._trace(rank, calls.communication))

    def num_senders(self) -> Integers:
        """Return the number of calls that send into each exchange [exchanges]."""
        sent = np.concatenate(self._sent) if self._sent else np.empty(0, np.int64)
        return np.bincount(sent, minlength=self._num_exchanges).astype(np.int64)

    def _trace(self, rank: int, calls: Communication) -> Trace:
        messages = [message for each in calls.messages for message in each]
        sizes = np.array([len(each) for each in calls.messages], np.int64)
        counts = sizes[calls.meanings]
        # A link is one message of one call.
        call = np.repeat(np.arange(len(counts)), counts)
        nth = np.arange(len(call)) - (np.cumsum(counts) - counts)[call]
        message = (np.cumsum(sizes) - sizes)[calls.meanings][call] + nth
        exchange = self._exchanges_of(rank, messages, message, call, calls.forwards)
        sends = np.array([each.sends for each in messages], bool)[message]
        receives = np.array([each.receives for each in messages], bool)[message]
        self._sent.append(exchange[sends])
        return _trace_of(calls, call, exchange, sends, receives)

    def _exchanges_of(
        self, rank: int, messages: Sequence[Message], message: Integers, call: Integers, forwards: Integers
    ) -> Integers:
        """Return the exchange of each link, by the number of its message in its channel.

        Args:
            rank: The rank.
            messages: Its different messages.
            message: The message of each link [links], as an index of ``messages``.
            call: Its call [links].
            forwards: The forward of each call [calls], -1 where it is none of a backward.
        """
        ends: dict[tuple[_Channel, bool], int] = {}
        end_of = np.empty(len(messages), np.int64)
        for i, each in enumerate(messages):
            # A rank that sends to itself has both ends; a collective is one call, whatever its direction.
            side = each.sends or each.channel[0] != POINT_TO_POINT
            end_of[i] = ends.setdefault((self._channel(each.channel), side), len(ends))
        sides, end = list(ends), end_of[message]
        is_backward = forwards[call] >= 0
        exchange, numbers = np.empty(len(call), np.int64), np.empty(len(forwards), np.int64)
        for number, links in _grouped(end, ~is_backward):
            channel, side = sides[number]
            channel.counts[rank, side] = len(links)
            numbers[call[links]] = order = np.arange(len(links))
            exchange[links] = self._numbered(channel, order)
        for number, links in _grouped(end, is_backward):  # a backward has the number of its forward
            exchange[links] = self._numbered(sides[number][0], numbers[forwards[call[links]]])
        return exchange

    def _numbered(self, channel: _Channel, numbers: Integers) -> Integers:
        """Return the exchanges of the messages with some numbers in a channel."""
        more = int(numbers.max()) + 1 - len(channel.exchanges)
        if more > 0:
            new = np.arange(self._num_exchanges, self._num_exchanges + more)
            channel.exchanges = np.concatenate([channel.exchanges, new])
            self._num_exchanges += more
        return channel.exchanges[numbers]

    def _channel(self, key: tuple[object, ...]) -> _Channel:
        channel = self._channels.get(key)
        if channel is None:
            full = tuple(self._all_ranks if part is None else part for part in key)
            if full != key:
                self._groups[self._all_ranks] = self._world
            channel = self._channels[key] = self._channels.setdefault(full, _Channel())
        return channel

    def absent(self) -> list[int]:
        """Return the ranks that participated and have not been added."""
        return sorted({rank for group in self._groups.values() for rank in group} - set(self.ranks))

    def notes(self) -> Iterator[Finding]:
        """Yield a note for each kind of call without counterpart."""
        if missing := self.absent():
            code = OrderCode.ABSENT_RANK if len(missing) == 1 else OrderCode.ABSENT_RANKS
            yield Finding(code, fields={"ranks": _shown(missing)})
        if self._num_unknown:
            yield Finding(OrderCode.UNKNOWN_PEER, fields={"count": self._num_unknown, **self._first_unknown})
        if found := list(self._unmatched()):
            left_out = len(found) - _MAX_NOTES
            more = [Finding(OrderCode.MORE, fields={"count": left_out})] if left_out > 0 else []
            yield Finding(OrderCode.UNMATCHED, fields={"channels": [*found[:_MAX_NOTES], *more]})

    def _unmatched(self) -> Iterator[Finding]:
        known = set(self.ranks)
        # They are in the order of hashes, which differs between releases of polars.
        in_order = sorted(self._channels.items(), key=lambda item: [f"{part!s:>12}" for part in item[0]])
        for (kind, *where), channel in in_order:
            if None in where:
                continue  # stands there with its ranks too
            if kind == POINT_TO_POINT:
                source, destination = int(str(where[0])), int(str(where[1]))
                sent, received = channel.counts.get((source, True), 0), channel.counts.get((destination, False), 0)
                if sent != received and {source, destination} <= known:
                    ends = {"source": source, "sent": sent, "destination": destination, "received": received}
                    yield Finding(OrderCode.MESSAGES, fields=ends)
            elif kind == COLLECTIVE:
                members = self._groups.get(str(where[0]), ())
                counts = {rank: 0 for rank in members if rank in known}
                for (rank, _), count in channel.counts.items():
                    counts[rank] = max(count, counts.get(rank, 0))
                few, many = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
                if counts[few] != counts[many]:
                    calls = {"few": few, "fewest": counts[few], "many": many, "most": counts[many]}
                    fields = {"call": str(where[1]), "ranks": _shown(members), **calls}
                    yield Finding(OrderCode.COLLECTIVES, fields=fields)


def _grouped(keys: Integers, wanted: NDArray[np.bool_]) -> Iterator[tuple[int, Integers]]:
    """Yield each key with the places of the wanted elements that have it, ascending."""
    places = np.flatnonzero(wanted)
    places = places[np.argsort(keys[places], kind="stable")]
    found, starts = np.unique(keys[places], return_index=True)
    for key, begin, end in zip(found.tolist(), starts, [*starts[1:], len(places)], strict=False):
        yield key, places[begin:end]


def _trace_of(
    calls: Communication, call: Integers, exchange: Integers, sends: NDArray[np.bool_], receives: NDArray[np.bool_]
) -> Trace:
    """Return the trace of calls with links [links]: their call, their exchange and its direction."""
    order = np.argsort(calls.positions, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    positions, begun = calls.positions[order], calls.begun[order]
    early = np.flatnonzero(begun < positions)
    return Trace(
        _flat(positions),
        _flat(np.where(calls.is_waited_for[order], _UNKNOWN, positions)),
        sorted(zip(begun[early].tolist(), early.tolist(), strict=True), reverse=True),
        *_by_call(place[call[sends]], exchange[sends], len(order)),
        *_by_call(place[call[receives]], exchange[receives], len(order)),
    )


def _by_call(call: Integers, exchange: Integers, num_calls: int) -> tuple[array[int], array[int]]:
    """Return exchanges ordered by call, and where those of each call begin and end."""
    ends = np.concatenate([[0], np.cumsum(np.bincount(call, minlength=num_calls))])
    return _flat(exchange[np.argsort(call, kind="stable")]), _flat(ends)


def _flat(numbers: Integers) -> array[int]:
    return array("q", numbers.astype(np.int64, copy=False).tobytes())  # faster than NumPy where one is read at a time


def _shown(ranks: Sequence[int]) -> list[int | str]:
    return [*ranks[:_MAX_RANKS_NAMED], *(["…"] if len(ranks) > _MAX_RANKS_NAMED else [])]
