"""Gradients of one call, read by hooks on autograd nodes; the graph itself is not changed.

Before a call, the tensors among its arguments have gradient edges: pairs of a node and an output number of that node
(for a leaf, the node that accumulates its gradient). After the call, a walk back from its results through nodes created
during the call ends at *boundary* nodes, whose edges are those of the arguments. A hook on a boundary node reads the
gradient that this call sends to that argument, even if other calls use the tensor too; if a call uses an argument
several times, the parts are added. The gradient with respect to a result is the gradient that arrives at the result's
own node.

This module serves all frameworks whose graphs consist of such nodes; the differences are methods of `AutogradGraph`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, cast

from msprobe_core.interception.autograd_graph import AutogradGraph, Node
from msprobe_core.model import MAX_DEPTH, GradientSlot
from msprobe_core.protocols.recording import Call, CallRecorder


class _Sum:
    """The sum that one pass has sent to an argument so far."""

    __slots__ = ("num_received", "total")

    def __init__(self) -> None:
        self.num_received = 0
        self.total: Any = None


_NO_SUMS: dict[int, _Sum] = {}


class _Part:
    """The gradient of one argument while its parts arrive, possibly from several interleaved passes."""

    __slots__ = ("num_expected", "slot", "sums")

    def __init__(self, slot: GradientSlot) -> None:
        self.slot = slot
        self.num_expected = 0
        self.sums = _NO_SUMS


_MOST_WAITING = 3
"""Maximum number of unfinished passes per argument: most of them stopped early, and each holds memory."""


_Place = tuple[int, GradientSlot, Sequence[_Part]]
"""For a node that made a result: output number, slot, and the parts of arguments that the call returned unchanged."""


class GraphGradients(AutogradGraph):
    """Watches the gradients of one call: constructed before the call, ``attach`` after it."""

    __slots__ = (
        "_call", "_edges", "_first", "_outside", "_postponed", "_recorder", "_sees_results", "_unsettled", "_views",
    )  # fmt: skip

    def __init__(
        self,
        recorder: CallRecorder,
        call: Call,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        unsettled: dict[int, Callable[[], None]],
    ) -> None:
        """Note the gradient edges of the arguments now, because the call may change them by writing in place.

        Args:
            recorder: Receives the gradients.
            call: The call.
            args: Positional arguments.
            kwargs: Keyword arguments.
            unsettled: Collects functions that report an incomplete sum.
        """
        self._recorder = recorder
        self._call = call
        self._unsettled = unsettled
        self._edges: dict[Hashable, list[_Part]] = {}
        self._outside: dict[Hashable, Node] = {}
        self._postponed: list[tuple[GradientSlot, Any, Any]] = []
        self._views: list[tuple[GradientSlot, Any, Node]] = []
        self._sees_results = False
        for slot, tensor in recorder.input_gradients(call, args, kwargs):
            version = self.postponed_version(tensor)
            if version is None:
                self._note_edge(slot, tensor)
            else:
                self._postponed.append((slot, tensor, version))
        self._first = self.next_sequence_number()

    def follow_views(self, results: Sequence[tuple[GradientSlot, Any]]) -> int:  # noqa: ARG002
        """Watch the gradients of views that the call has written to; return the number of such arguments."""
        return 0

    # --- installing the hooks ---------------------------------------------------------------------------------

    def _note_edge(self, slot: GradientSlot, tensor: Any) -> None:
        node = self.node_of(tensor)
        if node is None:
            edge = self.leaf_key(tensor)
        else:
            key = self.key_of(node)
            self._outside[key] = node
            edge = key, self.output_number(tensor)
            if self.is_view(tensor):
                self._views.append((slot, tensor, node))
        self._edges.setdefault(edge, []).append(_Part(slot))

    def attach(self, output: Any) -> None:
        """Install hooks on the nodes that the call created."""
        results = self._recorder.output_gradients(self._call, output)
        has_slots = bool(results)
        if self._postponed:
            results = self._without_postponed(results)
        if self._edges:
            starts = [node for _, tensor in results if (node := self.node_of(tensor)) is not None]
            boundary = self._find_boundary(starts if has_slots else self._result_nodes(output))
        else:
            boundary = []
        watched: set[int] = set()
        for _, parts in boundary:
            for _, part in parts:
                watched.add(id(part))
                part.num_expected += 1
        num_outputs = self._watch_results(results, watched)
        self._sees_results = num_outputs > 0
        num_inputs = len(watched)
        if self._views:
            num_inputs += self.follow_views(results)
        self._recorder.expect_gradients(self._call, num_outputs, num_inputs)
        for node, parts in boundary:
            node.register_hook(_ArgumentsHook(self, parts))
        # The hooks live as long as the graph and refer to this object, so it must not keep other nodes alive.
        del self._edges, self._outside, self._postponed, self._views

    def _without_postponed(self, results: list[tuple[GradientSlot, Any]]) -> list[tuple[GradientSlot, Any]]:
        # The call has used these tensors by now, so accessing their nodes is safe. Exclude tensors that it returned
        # unchanged: they may still be unused.
        handed_on = {id(tensor) for _, tensor in results}
        for slot, tensor, version in self._postponed:
            if id(tensor) not in handed_on and self.postponed_version(tensor) == version:
                self._note_edge(slot, tensor)
        postponed = {id(tensor) for _, tensor, _ in self._postponed}
        return [(slot, tensor) for slot, tensor in results if id(tensor) not in postponed]

    def _find_boundary(self, starts: Iterable[Node]) -> list[tuple[Node, list[tuple[int, _Part]]]]:
        """Return the nodes that send gradients to the arguments, with the argument of each of their edges."""
        boundary: list[tuple[Node, list[tuple[int, _Part]]]] = []
        edges, first = self._edges, self._first
        edges_of, sequence_number = self.edges_of, self.sequence_number
        # Nodes of arguments are outside of the call, whatever their numbers: each thread counts separately.
        seen: dict[Hashable, Node] = dict(self._outside)
        pending: list[Node] = []
        for node in starts:
            key = self.key_of(node)
            if key not in seen and sequence_number(node) >= first:  # several results may share a node
                seen[key] = node
                pending.append(node)
        while pending:
            node = pending.pop()
            found: list[tuple[int, _Part]] = []
            for i, edge in enumerate(edges_of(node)):
                if edge is None:
                    continue
                following, key, edge_key = edge
                parts = edges.get(edge_key)
                if parts is not None:
                    found.extend((i, part) for part in parts)
                if following is not None and key not in seen and sequence_number(following) >= first:
                    seen[key] = following
                    pending.append(following)
            if found:
                boundary.append((node, found))
        return boundary

    def _watch_results(self, results: Sequence[tuple[GradientSlot, Any]], watched: set[int]) -> int:
        num_watched = 0
        by_node: dict[Hashable, tuple[Node, list[_Place]]] = {}
        for slot, tensor in results:
            node = self.node_of(tensor)
            if node is None:
                continue  # a leaf returned unchanged: its gradient does not belong to this call
            key, number = self.key_of(node), self.output_number(tensor)
            # A call that returns an argument unchanged has no node for it: its gradient is the one that arrives there.
            same = tuple(part for part in self._edges.get((key, number), ()) if id(part) not in watched)
            watched.update(id(part) for part in same)
            by_node.setdefault(key, (node, []))[1].append((number, slot, same))
            num_watched += 1
        for node, places in by_node.values():
            node.register_prehook(_ResultsHook(self, places))
        return num_watched

    # --- receiving gradients ----------------------------------------------------------------------------------

    def receive_results(self, places: Sequence[_Place], gradients: Sequence[Any]) -> None:
        """Record the gradients that have arrived at a node that made results of the call."""
        recorder, call = self._recorder, self._call
        if not recorder.is_open:
            return
        with self.quiet(recorder.note_failure):
            backward_pass = self.backward_pass()
            for number, slot, same in places:
                gradient = gradients[number]
                if gradient is not None:
                    recorder.record_gradient(call, slot, gradient, backward_pass)
                    for part in same:
                        recorder.record_gradient(call, part.slot, gradient, backward_pass)

    def receive_arguments(self, parts: Sequence[tuple[int, _Part]], sent: Sequence[Any]) -> None:
        """Record the gradients that a node has sent to arguments of the call."""
        if not self._recorder.is_open:
            return
        with self.quiet(self._recorder.note_failure):
            backward_pass = self.backward_pass()
            for i, part in parts:
                self._receive(part, sent[i], backward_pass)

    def _receive(self, part: _Part, gradient: Any, backward_pass: int) -> None:
        if part.num_expected == 1:
            self._hand_over(part, backward_pass, gradient)
            return
        found = part.sums.get(backward_pass)
        if found is None:
            # An earlier pass that did not reach all nodes may have ended. It may also continue, if a hook or another
            # thread
            # began this pass in the middle of it. If only these sums distinguish the passes, report them in order at
            # once.
            self._settle(part, _MOST_WAITING if self._sees_results else 0)
            if part.sums is _NO_SUMS:
                part.sums = {}
            found = part.sums[backward_pass] = _Sum()
        found.num_received += 1
        if gradient is not None:
            # Not in place: the tensor belongs to the autograd engine.
            found.total = gradient if found.total is None else found.total + gradient
        if found.num_received < part.num_expected:
            self._unsettled[id(part)] = lambda: self._settle(part)
            return
        part.sums.pop(backward_pass, None)
        if not part.sums:
            self._unsettled.pop(id(part), None)
        self._hand_over(part, backward_pass, found.total)

    def _settle(self, part: _Part, num_kept: int = 0) -> None:
        """Report incomplete sums, except for the latest ``num_kept`` passes."""
        for backward_pass in list(part.sums)[: max(0, len(part.sums) - num_kept)]:
            found = part.sums.pop(backward_pass, None)
            if found is not None:
                self._hand_over(part, backward_pass, found.total)

    def _hand_over(self, part: _Part, backward_pass: int, total: Any) -> None:
        if total is not None:
            self._recorder.record_gradient(self._call, part.slot, total, backward_pass)

    def _result_nodes(self, output: Any, depth: int = 0) -> list[Node]:
        """Return the nodes of the tensors in a result, for a call whose result gradients are not recorded."""
        if self.is_tensor(output):
            node = self.node_of(output)
            return [] if node is None else [node]
        if depth == MAX_DEPTH:
            return []
        if isinstance(output, Mapping):
            output = list(cast("Mapping[Any, Any]", output).values())
        if isinstance(output, tuple | list):
            items = cast("Sequence[Any]", output)
            return [node for item in items for node in self._result_nodes(item, depth + 1)]
        return []


class _ResultsHook:
    """Hook on a node that made results of a call; an object, since a closure costs the garbage collector five."""

    __slots__ = ("_gradients", "_places")

    def __init__(self, gradients: GraphGradients, places: Sequence[_Place]) -> None:
        self._gradients = gradients
        self._places = places

    def __call__(self, gradients: tuple[Any, ...]) -> None:
        self._gradients.receive_results(self._places, gradients)


class _ArgumentsHook:
    """Hook on a node that sends gradients to arguments of a call."""

    __slots__ = ("_gradients", "_parts")

    def __init__(self, gradients: GraphGradients, parts: Sequence[tuple[int, _Part]]) -> None:
        self._gradients = gradients
        self._parts = parts

    def __call__(self, sent: tuple[Any, ...], _received: tuple[Any, ...]) -> None:
        self._gradients.receive_arguments(self._parts, sent)
