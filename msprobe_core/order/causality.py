"""Happens-before over the calls of all ranks: which call can have affected which other call.

Within a rank, time is the order of its entries, with a backward after its forward. Between ranks, data travel by
communication only. A call sends the values that exist when it begins. Received values are available when the call is
complete or, for an asynchronous call, when the program has waited for it. Source: Lamport, *Time, clocks, and the
ordering of events in a distributed system*, CACM 1978, restricted to the messages that each kind of collective actually
sends.

The job is simulated once: each rank advances until it waits for data that have not been sent yet. This visits all
events in an order in which causes precede their effects. Depths and influence are propagated along this order, in time
and memory linear in the number of calls.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from msprobe_core.errors import DumpError, MissingDumpError
from msprobe_core.findings import Finding
from msprobe_core.order.communication_calls import RankCalls, calls_of
from msprobe_core.order.matching import Exchanges, Trace
from msprobe_core.order.order_codes import OrderCode
from msprobe_core.protocols.storage import Dump

if TYPE_CHECKING:
    import polars as pl

Node = tuple[int, str]
"""Rank and entry."""

_NEVER = 1 << 62


def order_of(ranks: Mapping[int, Dump]) -> Order:
    """Return the order of the calls in the dumps of one step.

    Args:
        ranks: Dumps by rank.
    """
    return Order(sorted(ranks), (calls_of(ranks[rank], rank) for rank in sorted(ranks)))


class Order:
    """A partial order over the entries of all ranks."""

    def __init__(self, ranks: Sequence[int], calls: Iterable[RankCalls]) -> None:
        """Match the communication and order it.

        Args:
            ranks: Rank numbers.
            calls: Calls of each rank, see `msprobe_core.order.communication_calls.calls_of`; not kept.
        """
        self._ranks = list(ranks)
        self._place_of_rank = {rank: i for i, rank in enumerate(ranks)}
        self._entries: list[pl.Series] = []
        exchanges = Exchanges(range(max(ranks, default=-1) + 1))
        for rank, own in zip(ranks, calls, strict=True):
            self._entries.append(own.entries)
            exchanges.add(rank, own)
        self._run = _Run(exchanges)
        self._notes = list(exchanges.notes())
        self.absent: Sequence[int] = exchanges.absent()
        """Ranks that participated in the communication and have no dump here."""
        if self._run.num_forced:
            self._notes.append(Finding(OrderCode.CIRCLE, fields={"count": self._run.num_forced}))
        self._positions = lru_cache(maxsize=64)(self._index)
        self._reach = lru_cache(maxsize=64)(self._reach_of)

    @property
    def notes(self) -> Sequence[Finding]:
        """What could not be matched; empty if everything was."""
        return self._notes

    def depth(self, rank: int, entry: str) -> int:
        """Return a number larger than that of every entry that precedes this one; comparable between ranks.

        Raises:
            DumpError: there is no such entry.
        """
        return self._run.depth(*self._place(rank, entry))

    def layer(self, rank: int, entry: str) -> int:
        """Return the number of communication calls in the longest chain of causes before an entry.

        Raises:
            DumpError: there is no such entry.
        """
        return self._run.layer(*self._place(rank, entry))

    def senders(self, rank: int, entry: str) -> list[Node]:
        """Return the calls whose data a communication call receives, including itself if it sends to itself.

        Empty for other calls, and if no sender has a dump.

        Raises:
            DumpError: there is no such entry.
        """
        return self._nodes(self._run.senders(*self._place(rank, entry)))

    def exchanges(self) -> Iterator[tuple[Sequence[Node], Sequence[Node]]]:
        """Yield the calls that send into each exchange between ranks, and those that receive from it."""
        received = self._run.receivers
        for exchange, sent in self._run.senders_of.items():
            yield self._nodes(sent), self._nodes(received.get(exchange, ()))

    def _nodes(self, places: Iterable[tuple[int, int]]) -> list[Node]:
        return [(self._ranks[place], self._entries[place][position]) for place, position in places]

    def precedes(self, a: Node, b: Node) -> bool:
        """Whether ``a`` can have affected ``b``. Of two concurrent calls, neither precedes the other.

        Raises:
            DumpError: there is no such entry.
        """
        return self._reach(a).includes(*self._place(*b))

    def earliest(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the nodes that none of the others precedes, by depth, then rank.

        Raises:
            DumpError: there is no such entry.
        """
        places = {node: self._place(*node) for node in nodes}
        reach = self._run.reach(places.values())
        first = [node for node, place in places.items() if not reach.includes(*place)]
        return sorted(first, key=lambda node: (self._run.depth(*places[node]), node[0], places[node][1]))

    def _reach_of(self, node: Node) -> _Reach:
        return self._run.reach([self._place(*node)])

    def _place(self, rank: int, entry: str) -> tuple[int, int]:
        if rank not in self._place_of_rank:
            raise MissingDumpError(f"there is no dump of rank {rank}, and its {entry!r} was asked for")
        place = self._place_of_rank[rank]
        position = self._positions(place).get(entry)
        if position is None:
            raise DumpError(f"the dump of rank {rank} has no entry {entry!r}")
        return place, position

    def _index(self, place: int) -> dict[str, int]:
        return {entry: position for position, entry in enumerate(self._entries[place])}


class _Reach(NamedTuple):
    """Everything that some nodes can have affected.

    Attributes:
        traces: Traces of all ranks.
        begins: By rank, the position from which everything is affected.
        touched: By exchange, whether its data are affected.
        shared: By exchange, whether it is itself one of the nodes: later entries on every participating rank are
            affected, the calls that form it are not.
    """

    traces: Sequence[Trace]
    begins: list[int]
    touched: bytearray
    shared: bytearray

    def includes(self, place: int, position: int) -> bool:
        """Whether an entry is affected."""
        trace = self.traces[place]
        call = _call_at(trace, position)
        if call is None:
            return self.begins[place] <= position
        return self.includes_call(place, call)

    def includes_call(self, place: int, call: int) -> bool:
        """Whether a communication call is affected, by its inputs or by received data."""
        trace = self.traces[place]
        if self.begins[place] <= trace.issued[call]:
            return True
        return any(self.touched[exchange] for exchange in trace.received(call))

    def begins_behind(self, place: int, call: int) -> bool:
        """Whether the entries after a communication call are affected."""
        return self.includes_call(place, call) or any(
            self.shared[exchange] for exchange in self.traces[place].received(call)
        )


class _Run:
    """Simulation of the job."""

    def __init__(self, exchanges: Exchanges) -> None:
        self._traces = exchanges.traces
        self._num_missing = array("q", exchanges.num_senders().tobytes())  # outstanding sends into each exchange
        self._levels = array("q", bytes(8 * len(self._num_missing)))  # of each exchange: the deepest call that sends
        self._depths = [array("q", bytes(8 * len(trace.positions))) for trace in self._traces]
        self._bases = [array("q", bytes(8 * len(trace.positions))) for trace in self._traces]
        self._issue_levels = [array("q", bytes(8 * len(trace.positions))) for trace in self._traces]
        self._layers = [array("q", bytes(8 * len(trace.positions))) for trace in self._traces]
        self._layers_of_exchanges = array("q", bytes(8 * len(self._num_missing)))
        self._layer_at = [0] * len(self._traces)
        self._waiting: dict[int, list[int]] = {}
        self._is_given_up: set[int] = set()
        self._events: array[int] = array("q")  # place << 33 | call << 1 | whether it is the end of the call
        self.num_forced = 0
        # Events of a rank in its own order: start and end of its calls.
        self._next = [0] * len(self._traces)
        self._level_at = [0] * len(self._traces)  # depth of the last entry before ...
        self._level_from = [0] * len(self._traces)  # ... this position
        self._own = list(
            zip(
                [(trace.positions, trace.early, trace.all_received, trace.received_ends) for trace in self._traces],
                self._issue_levels,
                self._layers,
                self._depths,
                self._bases,
                strict=True,
            )
        )
        self._go(range(len(self._traces)))
        self._resolve()
        self._own.clear()

    # --- running ----------------------------------------------------------------------------------------------------

    def _go(self, places: Iterable[int]) -> None:
        ready = deque(places)
        while ready:
            ready.extend(self._advance(ready.popleft()))

    def _advance(self, place: int) -> list[int]:
        """Advance a rank until it has to wait; return the ranks that may continue now.

        This loop runs once or twice for each of millions of calls, so it looks up little and slices nothing.
        """
        woken: list[int] = []  # calling an alias takes a tenth of the whole loop
        trace, issue_levels, own_layers, own_depths, own_bases = self._own[place]
        positions, early, received, ends = trace
        levels, layers = self._levels, self._layers_of_exchanges
        for call in range(self._next[place], len(positions)):
            position = positions[call]
            while early and early[-1][0] <= position:
                begun, other = early.pop()
                if not issue_levels[other]:
                    self._issue(place, other, begun, woken)
            if not issue_levels[call]:
                self._issue(place, call, position, woken)
            depth, layer = issue_levels[call], self._layer_at[place]
            first, end = ends[call], ends[call + 1]
            for i in range(first, end):
                exchange = received[i]
                if self._num_missing[exchange] > 0 and exchange not in self._is_given_up:
                    self._waiting.setdefault(exchange, []).append(place)
                    self._next[place] = call
                    return woken
                depth, layer = max(depth, levels[exchange]), max(layer, layers[exchange])
            if end > first:
                depth, layer = depth + 1, layer + 1
                self._layer_at[place] = layer
            own_layers[call], own_depths[call] = layer, depth
            reached = self._level_at[place] + position - self._level_from[place]
            own_bases[call] = self._level_at[place] = max(reached, depth)
            self._level_from[place] = position + 1
            self._events.append(place << 33 | call << 1 | 1)
        self._next[place] = len(positions)
        return woken

    def _is_issued(self, place: int, call: int) -> bool:
        return self._issue_levels[place][call] != 0

    def _issue(self, place: int, call: int, position: int, woken: list[int]) -> None:
        """Let a call send; ``position`` is the number of entries that were complete before."""
        trace, levels, layers = self._traces[place], self._levels, self._layers_of_exchanges
        missing = self._num_missing
        trace.issued[call] = position
        level = self._level_at[place] + position - self._level_from[place] + 1
        layer = self._layer_at[place]
        self._issue_levels[place][call] = level
        self._events.append(place << 33 | call << 1)
        for i in range(trace.sent_ends[call], trace.sent_ends[call + 1]):
            exchange = trace.all_sent[i]
            if levels[exchange] < level:
                levels[exchange] = level
            if layers[exchange] < layer:
                layers[exchange] = layer
            missing[exchange] -= 1
            if not missing[exchange]:
                woken += self._waiting.pop(exchange, ())

    # --- cycles -----------------------------------------------------------------------------------------------------

    def _resolve(self) -> None:
        """Continue when all ranks wait: a call with an unknown start may have begun by now."""
        senders: dict[int, list[tuple[int, int]]] | None = None
        while self._waiting:
            if senders is None:
                senders = self._unknown_senders()
            blocked = {exchange: list(places) for exchange, places in self._waiting.items()}
            woken: list[int] = []
            for exchange in blocked:
                for place, call in senders.get(exchange, ()):
                    if not self._is_issued(place, call):
                        blocked_at = self._traces[place].positions[self._next[place]]
                        self._issue(place, call, blocked_at, woken)
            if not woken:
                woken = self._give_up_one(blocked)
            self._go(woken)

    def _unknown_senders(self) -> dict[int, list[tuple[int, int]]]:
        senders: dict[int, list[tuple[int, int]]] = {}
        for place, trace in enumerate(self._traces):
            for call in range(self._next[place], len(trace.positions)):
                if trace.issued[call] < 0:
                    for exchange in trace.sent(call):
                        senders.setdefault(exchange, []).append((place, call))
        return senders

    def _give_up_one(self, blocked: Mapping[int, list[int]]) -> list[int]:
        """Release the exchange for which the ranks with the least progress wait."""
        exchange = min(blocked, key=lambda one: (min(self._level_at[place] for place in blocked[one]), one))
        self.num_forced += 1
        self._is_given_up.add(exchange)
        return self._waiting.pop(exchange)

    # --- queries ----------------------------------------------------------------------------------------------------

    def depth(self, place: int, position: int) -> int:
        """Return the length of the longest chain of causes that ends at an entry, from 1."""
        trace = self._traces[place]
        call = bisect_left(trace.positions, position)
        if call < len(trace.positions) and trace.positions[call] == position:
            return self._depths[place][call]
        if not call:
            return position + 1
        return self._bases[place][call - 1] + position - trace.positions[call - 1]

    def layer(self, place: int, position: int) -> int:
        """Return the number of exchanges in the longest chain of causes before an entry."""
        call = bisect_right(self._traces[place].positions, position)
        return self._layers[place][call - 1] if call else 0

    def senders(self, place: int, position: int) -> list[tuple[int, int]]:
        """Return rank index and position of each call that sends data to a receiving call."""
        trace = self._traces[place]
        call = _call_at(trace, position)
        if call is None:
            return []
        return [found for exchange in sorted(set(trace.received(call))) for found in self.senders_of.get(exchange, ())]

    @cached_property
    def senders_of(self) -> dict[int, list[tuple[int, int]]]:
        """Rank index and position of the calls that send into each exchange."""
        return self._linked(Trace.sent)

    @cached_property
    def receivers(self) -> dict[int, list[tuple[int, int]]]:
        """Rank index and position of the calls that receive from each exchange."""
        return self._linked(Trace.received)

    def _linked(self, of: Callable[[Trace, int], array[int]]) -> dict[int, list[tuple[int, int]]]:
        found: dict[int, list[tuple[int, int]]] = {}
        for place, trace in enumerate(self._traces):
            for call, position in enumerate(trace.positions):
                for exchange in of(trace, call):
                    found.setdefault(exchange, []).append((place, position))
        return found

    def reach(self, nodes: Iterable[tuple[int, int]]) -> _Reach:
        """Return everything after any of some entries, given by rank index and position."""
        num_exchanges = len(self._num_missing)
        begins, touched, shared = [_NEVER] * len(self._traces), bytearray(num_exchanges), bytearray(num_exchanges)
        found = _Reach(self._traces, begins, touched, shared)
        for place, position in nodes:
            begins[place] = min(begins[place], self._effect_of(place, position, found))
        for event in self._events:
            place, call = event >> 33, event >> 1 & 0xFFFFFFFF
            trace = self._traces[place]
            if event & 1:
                position = trace.positions[call]
                if begins[place] > position + 1 and found.begins_behind(place, call):
                    begins[place] = position + 1
            elif begins[place] <= trace.issued[call]:
                for exchange in trace.sent(call):
                    touched[exchange] = 1
        return found

    def _effect_of(self, place: int, position: int, found: _Reach) -> int:
        """Note what an entry itself sends, and return the position from which it affects its own rank.

        A joint operation of all ranks, such as an all-reduce, is one call: none of its parts precedes another.
        """
        trace = self._traces[place]
        call = _call_at(trace, position)
        if call is None:
            return position + 1
        received = trace.received(call)
        for exchange in trace.sent(call):
            if exchange in received:
                found.shared[exchange] = 1
            elif not received:
                found.touched[exchange] = 1
        return position + 1 if received else trace.issued[call] + 1


def _call_at(trace: Trace, position: int) -> int | None:
    """Return the communication call at a position; ``None`` if another entry is there."""
    call = bisect_left(trace.positions, position)
    return call if call < len(trace.positions) and trace.positions[call] == position else None
