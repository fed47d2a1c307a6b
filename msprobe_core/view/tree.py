"""The calls of a unit as a tree: modules with the calls inside them, and collections of calls outside of modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msprobe_core import names
from msprobe_core.model import Phase
from msprobe_core.view.data import NodeKind

_MAX_LOOSE = 200
"""Maximum number of calls in one collection that nothing else divides: more would be too many to look at."""

_BETWEEN = "Apis_Between_Modules"
_STEPPERS = (names.OPTIMIZER, names.CLIP_GRAD)


@dataclass
class Tree:
    """Nodes; parents precede their descendants, siblings are in the order of their first call.

    Attributes:
        names: Unique names.
        kinds: Kind of each node.
        parents: Index of the enclosing node; -1 at the top.
        calls: Row of the node's call; -1 for nodes without a recorded call.
        micro_steps: Micro step of each node, from 0.
        is_stepping: Whether the node belongs to the optimizer.
    """

    names: list[str] = field(default_factory=list[str])
    kinds: list[NodeKind] = field(default_factory=list[NodeKind])
    parents: list[int] = field(default_factory=list[int])
    calls: list[int] = field(default_factory=list[int])
    micro_steps: list[int] = field(default_factory=list[int])
    is_stepping: list[bool] = field(default_factory=list[bool])


def tree_of(entries: Sequence[str], phases: Sequence[str], parents: Mapping[str, str | None]) -> Tree:
    """Return the tree of a unit's calls.

    Args:
        entries: Unique names, in execution order; an enclosing call follows the calls inside it.
        phases: Phase of each call.
        parents: Name of the enclosing call, which may not be recorded itself.
    """
    return _Builder(entries, phases, parents).build()


class _Builder:
    def __init__(self, entries: Sequence[str], phases: Sequence[str], parents: Mapping[str, str | None]) -> None:
        self._nodes = list(entries)
        self._phases = list(phases)
        self._places = {name: i for i, name in enumerate(entries)}
        self._num_calls = len(self._nodes)
        self._parents = parents
        self._above = [-1] * len(self._nodes)
        self._starts = list(range(len(self._nodes)))
        self._children: dict[int, list[int]] = {}

    def build(self) -> Tree:
        for i in range(self._num_calls):
            self._hang(i)
        for i, above in enumerate(self._above):
            self._children.setdefault(above, []).append(i)
        self._start()
        for below in self._children.values():
            below.sort(key=self._starts.__getitem__)
        self._gather()
        return self._walk()

    def _hang(self, node: int) -> None:
        """Put a node under its parent, together with ancestors that were not recorded."""
        seen = {node}
        while True:
            parent = self._parent_of(node)
            if parent is None:
                return
            place = self._places.get(parent)
            is_new = place is None
            if place is None:
                place = self._places[parent] = len(self._nodes)
                self._nodes.append(parent)
                self._phases.append(self._phases[node])
                self._above.append(-1)
                self._starts.append(self._starts[node])
            if place in seen or self._is_around(node, place):  # a file may claim that a call encloses itself
                return
            self._above[node] = place
            if not is_new:
                return
            seen.add(place)
            node = place

    def _is_around(self, node: int, place: int) -> bool:
        """Whether ``node`` already encloses ``place``."""
        while place != -1:
            if place == node:
                return True
            place = self._above[place]
        return False

    def _parent_of(self, node: int) -> str | None:
        name = self._nodes[node]
        parent = self._parents.get(name)
        if parent is None and self._phases[node] == Phase.PARAMETERS_GRAD.value and name not in self._parents:
            # Dumps record no parent of these gradients; they belong to their module's backward.
            backward = names.backward_of_parameters(names.numbered_gradients(name))
            return backward if backward in self._places else None
        return parent

    def _start(self) -> None:
        """Set the start of each node to that of its first descendant."""
        for i in range(self._num_calls):
            above, start = self._above[i], self._starts[i]
            while above != -1 and self._starts[above] > start:
                self._starts[above] = start
                above = self._above[above]

    def _gather(self) -> None:
        """Gather consecutive top-level calls that are in no module into collections."""
        top = self._children.get(-1, [])
        gathered: list[int] = []
        run: list[int] = []
        number = 0
        # -1 is a sentinel, which ends the last run.
        for node in [*top, -1]:
            is_loose = node != -1 and self._is_loose(node)
            if is_loose and len(run) < _MAX_LOOSE and (not run or self._phases[run[0]] == self._phases[node]):
                run.append(node)
                continue
            if len(run) > 1:
                gathered.append(self._collect(run, number))
                number += 1
            else:
                gathered += run
            run = [node] if is_loose else []
            if node != -1 and not is_loose:
                gathered.append(node)
        self._children[-1] = gathered

    def _is_loose(self, node: int) -> bool:
        name = self._nodes[node]
        return node not in self._children and not names.is_module(name) and name not in _STEPPERS

    def _collect(self, run: Sequence[int], number: int) -> int:
        place = len(self._nodes)
        name = f"{_BETWEEN}.{number}"
        while name in self._places:  # a program's call may have this name
            name += "_"
        self._places[name] = place
        self._nodes.append(name)
        self._phases.append(self._phases[run[0]])
        self._above.append(-1)
        self._starts.append(self._starts[run[0]])
        self._children[place] = list(run)
        return place

    def _walk(self) -> Tree:
        tree = Tree()
        running = self._running()
        stack = [(node, -1, 0, False) for node in reversed(self._children.get(-1, []))]
        while stack:
            node, parent, micro_step, is_stepping = stack.pop()
            name = self._nodes[node]
            if parent == -1 or tree.kinds[parent] is NodeKind.COLLECTION:
                micro_step = _index_of(name) if names.is_module(name) else running.get(node, 0)
            is_stepping = is_stepping or name in _STEPPERS
            own = len(tree.names)
            tree.names.append(name)
            tree.kinds.append(self._kind_of(node))
            tree.parents.append(parent)
            tree.calls.append(node if node < self._num_calls else -1)
            tree.micro_steps.append(micro_step)
            tree.is_stepping.append(is_stepping)
            stack += [(below, own, micro_step, is_stepping) for below in reversed(self._children.get(node, []))]
        return tree

    def _running(self) -> dict[int, int]:
        """Return, for calls in no module, the micro step whose forward began last before them."""
        tops = [node for node in range(len(self._nodes)) if self._above[node] == -1]
        found: dict[int, int] = {}
        latest = 0
        for node in sorted(tops, key=lambda each: (self._starts[each], each)):
            name = self._nodes[node]
            if names.is_module(name) and self._phases[node] == Phase.FORWARD.value:
                latest = _index_of(name)
            elif name not in _STEPPERS:
                found[node] = latest
        return found

    def _kind_of(self, node: int) -> NodeKind:
        name = self._nodes[node]
        if (self._phases[node] == Phase.PARAMETERS_GRAD.value and node < self._num_calls) or names.is_saved(name):
            return NodeKind.VALUE
        if names.is_module(name):
            return NodeKind.MODULE
        return NodeKind.API if node < self._num_calls else NodeKind.COLLECTION


def _index_of(entry: str) -> int:
    last = entry.rpartition(".")[2]
    return int(last) if last.isascii() and last.isdigit() else 0
