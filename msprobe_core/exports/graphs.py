"""What exports need from a graph: its children, and its nodes as they occur on one of the two sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import msgspec

from msprobe_core.protocols.presentation import PageGraphs
from msprobe_core.view.calls import GOLDEN_MARK
from msprobe_core.view.data import Graph, Unit, ViewData


class SideOf(str, Enum):
    """One of the two runs."""

    TARGET = "target"
    GOLDEN = "golden"


@dataclass(frozen=True)
class UnitGraph:
    """A unit with its graph."""

    number: int
    unit: Unit
    graph: Graph

    @property
    def label(self) -> str:
        """Label of the unit; a single dump has no label and is called ``dump``."""
        return self.unit.label or "dump"

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """The children of each node, in order; the key -1 has the top-level nodes."""
        found: dict[int, list[int]] = {}
        for node, parent in enumerate(self.graph.parent):
            found.setdefault(parent, []).append(node)
        return found

    def has(self, side: SideOf, node: int) -> bool:
        """Whether a side has a node."""
        return self.graph.side[node] in ("both", side.value)

    def name(self, side: SideOf, node: int) -> str:
        """Return the name of a node in a side's own dump."""
        name = self.graph.name[node]
        if side is SideOf.TARGET or self.graph.side[node] == "target":
            return name
        return self.graph.partner[node] or name.removesuffix(GOLDEN_MARK)

    def ancestors(self, node: int) -> list[int]:
        """Return the ancestors of a node, the outermost first."""
        found: list[int] = []
        parent = self.graph.parent[node]
        while parent != -1:
            found.append(parent)
            parent = self.graph.parent[parent]
        return found[::-1]

    def post_order(self) -> Iterator[int]:
        """Yield all nodes, each after its children."""
        stack = [(node, False) for node in reversed(self.children.get(-1, []))]
        while stack:
            node, is_done = stack.pop()
            below = self.children.get(node, [])
            if is_done or not below:
                yield node
            else:
                stack.append((node, True))
                stack += [(each, False) for each in reversed(below)]


def unit_graphs(data: ViewData, page_graphs: PageGraphs) -> Iterator[UnitGraph]:
    """Yield the units that have a graph, one at a time."""
    for number, unit in enumerate(data.units):
        content = page_graphs.content(number)
        if content is not None:
            yield UnitGraph(number, unit, msgspec.json.decode(content, type=Graph))


def sides_of(data: ViewData) -> Sequence[SideOf]:
    """Return the sides of the page: one for a single dump, two for a comparison."""
    return (SideOf.TARGET,) if data.sides.golden is None else (SideOf.TARGET, SideOf.GOLDEN)
