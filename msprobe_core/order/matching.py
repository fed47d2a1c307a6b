"""Match the communication calls of all ranks: find the calls that form one exchange.

The n-th message of a rank in a channel is matched with the n-th message of the others in it. Counters of different
channels, or of all calls of a rank, are never compared.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from msprobe_core.order.calls import COLLECTIVE, POINT_TO_POINT, Communication, Message, RankCalls

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
    """

    positions: array[int] = field(default_factory=lambda: array("q"))
    issued: array[int] = field(default_factory=lambda: array("q"))
    early: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _sent: array[int] = field(default_factory=lambda: array("q"))
    _sent_ends: array[int] = field(default_factory=lambda: array("q", [0]))
    _received: array[int] = field(default_factory=lambda: array("q"))
    _received_ends: array[int] = field(default_factory=lambda: array("q", [0]))

    def add(self, position: int, issued: int, links: Iterable[tuple[int, Message]]) -> None:
        """Append a call with its exchanges."""
        self.positions.append(position)
        self.issued.append(issued)
        for exchange, message in links:
            if message.sends:
                self._sent.append(exchange)
            if message.receives:
                self._received.append(exchange)
        self._sent_ends.append(len(self._sent))
        self._received_ends.append(len(self._received))

    def sent(self, call: int) -> array[int]:
        """Return the exchanges that a call sends into."""
        return self._sent[self._sent_ends[call] : self._sent_ends[call + 1]]

    def received(self, call: int) -> array[int]:
        """Return the exchanges that a call receives from."""
        return self._received[self._received_ends[call] : self._received_ends[call + 1]]


class _Channel:
    """The exchanges of one channel, and how many messages each rank has had in it."""

    __slots__ = ("counts", "exchanges")

    def __init__(self) -> None:
        self.exchanges = array("q")
        self.counts: dict[tuple[int, bool], int] = {}


class Exchanges:
    """The exchanges between ranks; ranks are added one by one.

    Attributes:
        ranks: Ranks that have been added.
        traces: One for each of them.
        num_senders: Number of calls that send into each exchange.
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
        self.num_senders = array("q")
        self._num_unknown = 0
        self._first_unknown = ""

    def add(self, rank: int, calls: RankCalls) -> None:
        """Add the calls of a rank."""
        self.ranks.append(rank)
        self._groups.update(calls.groups)
        if calls.num_unknown and not self._num_unknown:
            self._first_unknown = f"{calls.unknown} of rank {rank}"
        self._num_unknown += calls.num_unknown
        numbers: dict[str, int] = {}
        linked: list[tuple[Communication, list[tuple[int, Message]]]] = []
        ends: dict[int, tuple[_Channel, tuple[int, bool]]] = {}  # by identity, as calls share their messages
        # A backward has the number of its forward.
        for call in sorted(calls.communication, key=lambda call: bool(call.forward)):
            links: list[tuple[int, Message]] = []
            for message in call.messages:
                end = ends.get(id(message))
                if end is None:
                    side = rank, message.sends  # a rank that sends to itself has both ends
                    end = ends[id(message)] = self._channel(message.channel), side
                channel, side = end
                number = numbers[call.forward] if call.forward else channel.counts.get(side, 0)
                channel.counts[side] = number + 1
                numbers[call.entry] = number
                exchange = self._exchange(channel, number)
                self.num_senders[exchange] += message.sends
                links.append((exchange, message))
            linked.append((call, links))
        self.traces.append(_trace_of(linked))

    def _channel(self, key: tuple[object, ...]) -> _Channel:
        channel = self._channels.get(key)
        if channel is None:
            full = tuple(self._all_ranks if part is None else part for part in key)
            if full != key:
                self._groups[self._all_ranks] = self._world
            channel = self._channels[key] = self._channels.setdefault(full, _Channel())
        return channel

    def _exchange(self, channel: _Channel, number: int) -> int:
        while len(channel.exchanges) <= number:
            channel.exchanges.append(len(self.num_senders))
            self.num_senders.append(0)
        return channel.exchanges[number]

    def absent(self) -> list[int]:
        """Return the ranks that participated and have not been added."""
        return sorted({rank for group in self._groups.values() for rank in group} - set(self.ranks))

    def notes(self) -> Iterator[str]:
        """Yield a note for each kind of call without counterpart."""
        if missing := self.absent():
            yield (
                f"{_named(missing)} took part in the communication and {'has' if len(missing) == 1 else 'have'} no "
                "dump here: what came from there cannot be followed"
            )
        if self._num_unknown:
            yield (
                f"calls of communication whose peer the dumps do not say: {self._num_unknown:,}, the first is "
                f"{self._first_unknown}"
            )
        if found := list(self._unmatched()):
            more = f"; and {len(found) - _MAX_NOTES:,} more channels" if len(found) > _MAX_NOTES else ""
            first = "; ".join(found[:_MAX_NOTES])
            yield f"communication without counterpart, after which the order across ranks may be wrong: {first}{more}"

    def _unmatched(self) -> Iterator[str]:
        known = set(self.ranks)
        for (kind, *where), channel in self._channels.items():
            if None in where:
                continue  # stands there with its ranks too
            if kind == POINT_TO_POINT:
                source, destination = int(str(where[0])), int(str(where[1]))
                sent, received = channel.counts.get((source, True), 0), channel.counts.get((destination, False), 0)
                if sent != received and {source, destination} <= known:
                    yield f"rank {source} sends {sent:,} times to rank {destination}, which receives {received:,}"
            elif kind == COLLECTIVE:
                members = self._groups.get(str(where[0]), ())
                counts = {rank: 0 for rank in members if rank in known}
                for (rank, _), count in channel.counts.items():
                    counts[rank] = max(count, counts.get(rank, 0))
                few, many = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
                if counts[few] != counts[many]:
                    yield (
                        f"{where[1]} of {_named(members)}: rank {few} calls it {counts[few]:,} times, rank {many} "
                        f"{counts[many]:,}"
                    )


def _trace_of(linked: list[tuple[Communication, list[tuple[int, Message]]]]) -> Trace:
    trace = Trace()
    for number, (call, links) in enumerate(sorted(linked, key=lambda item: item[0].position)):
        if call.begun < call.position:
            trace.early.append((call.begun, number))
        trace.add(call.position, _UNKNOWN if call.is_waited_for else call.position, links)
    trace.early.sort(reverse=True)
    return trace


def _named(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_MAX_RANKS_NAMED])) + (", …" if len(ranks) > _MAX_RANKS_NAMED else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
