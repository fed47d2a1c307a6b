"""A trace for Perfetto or ``chrome://tracing``: calls as slices, ranks as processes, communication as arrows.

Dumps contain the order of calls, not their times: every call takes one microsecond, and a communication call ends after
the calls whose data it receives have begun, so that arrows point forward. Source: *Trace Event Format*, the Chromium
project (duration events ``X``, flow events ``s`` and ``f``, metadata ``M``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from msprobe_core.exports.graphs import UnitGraph, unit_graphs
from msprobe_core.protocols.presentation import Page, PageGraphs
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.layout import make_directory
from msprobe_core.untrusted.paths import encode_json
from msprobe_core.view.data import ViewData, text_of

TRACE = "trace.json"
_GAP = 10
"""Microseconds between two steps."""


@dataclass
class _Timeline:
    """When the calls of a unit begin and end, in microseconds from the start of the step.

    Attributes:
        leaves: Nodes without children, in order.
        begins: Begin of each call that has been scheduled.
        ends: End of each call that has been scheduled.
        done: Number of leaves that have ended.
        now: End of the last finished leaf.
    """

    unit: UnitGraph
    leaves: Sequence[int]
    begins: dict[int, int] = field(default_factory=dict[int, int])
    ends: dict[int, int] = field(default_factory=dict[int, int])
    done: int = 0
    now: int = 0

    @cached_property
    def places(self) -> dict[str, int]:
        """The leaves by name."""
        return {self.unit.graph.name[node]: node for node in self.leaves}


def write(page: Page) -> Sequence[Path]:
    """Write the trace and return its path.

    Raises:
        StoreError: it cannot be written.
    """
    path = page.directory / "perfetto" / TRACE
    make_directory(path.parent, below=page.directory)
    with whole_file(path) as file:
        file.write(b'{"displayTimeUnit":"ms","otherData":{"made by":"msprobe view","time":"order of calls"},')
        file.write(b'"traceEvents":[')
        for number, event in enumerate(_events(page.data, page.graphs)):
            file.write(b",\n" * bool(number) + encode_json(event))
        file.write(b"]}")
    return [path]


def _events(data: ViewData, page_graphs: PageGraphs) -> Iterator[dict[str, Any]]:
    ranks = sorted({_process(unit.rank) for unit in data.units})
    for rank in ranks:
        yield {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}}
    offset = 0
    flow = 0
    steps = list(dict.fromkeys(unit.step for unit in data.units))
    graphs = unit_graphs(data, page_graphs)
    held = next(graphs, None)
    for step in steps:
        # Units are ordered by step, and the units of one step are needed together.
        own: list[UnitGraph] = []
        while held is not None and held.unit.step == step:
            own.append(held)
            held = next(graphs, None)
        timelines = {each.number: _Timeline(each, _leaves(each)) for each in own}
        _run(timelines)
        for timeline in timelines.values():
            yield from _slices(timeline, offset)
        for event in _arrows(timelines, offset, flow):
            yield event
            flow = max(flow, int(event["id"]))
        offset += max((each.now for each in timelines.values()), default=0) + _GAP


def _process(rank: int | None) -> int:
    return 0 if rank is None else rank


def _leaves(own: UnitGraph) -> list[int]:
    return [node for node in range(len(own.graph.name)) if node not in own.children]


def _run(timelines: Mapping[int, _Timeline]) -> None:
    """Advance each rank until it waits for a sender that has not begun; repeat until all ranks are done."""
    is_forced = False
    while any(each.done < len(each.leaves) for each in timelines.values()):
        has_moved = False
        for timeline in timelines.values():
            while timeline.done < len(timeline.leaves):
                node = timeline.leaves[timeline.done]
                timeline.begins.setdefault(node, timeline.now)
                sent = _begins_of_senders(timeline.unit, node, timelines)
                if None in sent and not is_forced:
                    break
                is_forced = False
                known = [begin for begin in sent if begin is not None]
                timeline.now = timeline.ends[node] = max(timeline.now, *known, timeline.now) + 1
                timeline.done += 1
                has_moved = True
        is_forced = not has_moved  # the ranks wait in a circle, so one continues without its sender


def _begins_of_senders(own: UnitGraph, node: int, timelines: Mapping[int, _Timeline]) -> list[int | None]:
    peers = own.graph.communication[node]
    if peers is None:
        return []
    found: list[int | None] = []
    for i in peers.receives:
        unit, name = peers.peers[i]
        sender = timelines[unit].places.get(name) if unit in timelines else None
        if sender is not None:
            found.append(timelines[unit].begins.get(sender))
    return found


def _slices(timeline: _Timeline, offset: int) -> Iterator[dict[str, Any]]:
    graph = timeline.unit.graph
    begins, ends = dict(timeline.begins), dict(timeline.ends)
    for node in range(len(graph.name) - 1, -1, -1):
        parent = graph.parent[node]
        if parent != -1:
            begins[parent] = min(begins.get(parent, begins[node]), begins[node])
            ends[parent] = max(ends.get(parent, ends[node]), ends[node])
    for node, name in enumerate(graph.name):
        told = {
            "name": name,
            "phase": graph.phase[node],
            "severity": graph.severity[node],
            "score": graph.score[node],
            "reason": text_of(graph.reason[node]),
            "only on": graph.side[node] if graph.side[node] == "golden" else "",
        }
        yield {
            "ph": "X",
            "name": graph.label[node],
            "cat": graph.phase[node] or graph.kind[node],
            "pid": _process(timeline.unit.unit.rank),
            "tid": 0,
            "ts": offset + begins[node],
            "dur": ends[node] - begins[node],
            "args": {key: value for key, value in told.items() if value not in (None, "")},
        }


def _arrows(timelines: Mapping[int, _Timeline], offset: int, flow: int) -> Iterator[dict[str, Any]]:
    """Yield both ends of each arrow: from the begin of the sending call to the end of the receiving one."""
    for timeline in timelines.values():
        graph = timeline.unit.graph
        for node, peers in enumerate(graph.communication):
            if peers is None or node not in timeline.ends:
                continue
            for i in peers.receives:
                unit, name = peers.peers[i]
                other = timelines.get(unit)
                sender = None if other is None else other.places.get(name)
                if other is None or sender is None:
                    continue
                flow += 1
                shared = {"name": graph.label[node], "cat": "communication", "id": flow, "tid": 0}
                ranks = _process(other.unit.unit.rank), _process(timeline.unit.unit.rank)
                yield shared | {"ph": "s", "pid": ranks[0], "ts": offset + other.begins[sender]}
                yield shared | {"ph": "f", "bp": "e", "pid": ranks[1], "ts": offset + timeline.ends[node] - 1}
