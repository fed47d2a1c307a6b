"""Gradients of one call, read from hooks on autograd nodes; nothing is spliced into the graph.

Before a call, the tensors among its arguments have gradient edges: pairs of a node and a number of that node's
output (for a leaf, the node that accumulates its gradient). After the call, walking back from its results through
nodes that were created during the call ends at *boundary* nodes, whose edges are those of the arguments. A hook on
a boundary node reads the gradient that this call sends to that argument, whether or not others use the tensor too;
where a call uses an argument several times, the parts are added up. The gradient with respect to a result is what
arrives at the result's own node.

Written once for all frameworks whose graph is made of such nodes; what they do differently is abstract here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

from msprobe_core.model import MAX_DEPTH, GradientSlot
from msprobe_core.protocols.recording import Call, CallRecorder

Node = Any
"""An autograd node: of one framework or the other, and of classes that share no base."""


class _Sum:
    """What one pass has sent to an argument so far."""

    __slots__ = ("num_received", "total")

    def __init__(self) -> None:
        self.num_received = 0
        self.total: Any = None


_NO_SUMS: dict[int, _Sum] = {}


class _Part:
    """The gradient of one argument while its parts arrive: of several passes, if they come by turns."""

    __slots__ = ("num_expected", "slot", "sums")

    def __init__(self, slot: GradientSlot) -> None:
        self.slot = slot
        self.num_expected = 0
        self.sums = _NO_SUMS


_MOST_WAITING = 3
"""How many unfinished passes an argument waits for: most of them stopped short, and each holds memory."""


_Place = tuple[int, GradientSlot, Sequence[_Part]]
"""Of a node that made a result: which of its gradients belongs to which slot, and to which arguments handed back."""


class GraphGradients(ABC):
    """Watches the gradients of one call: made before it, ``attach`` after it."""

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
        """Note the gradient edges of the arguments, which the call may change by writing in place.

        Args:
            recorder: Takes the gradients.
            call: Whose they are.
            args: Positional arguments.
            kwargs: Keyword arguments.
            unsettled: Where a sum that is not complete leaves a way to hand it over as it is.
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

    # --- what frameworks do differently -----------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def is_tensor(value: object) -> bool:
        """Whether ``value`` is a tensor of the framework."""

    @staticmethod
    @abstractmethod
    def node_of(tensor: Any) -> Node | None:
        """Return the node that computes the gradient of what made this tensor; ``None`` for leaves and constants."""

    @staticmethod
    @abstractmethod
    def output_number(tensor: Any) -> int:
        """Return which of its node's results the tensor is."""

    @staticmethod
    @abstractmethod
    def key_of(node: Node) -> Hashable:
        """Return what is equal for two views of the same node, as long as one of them is alive."""

    @staticmethod
    @abstractmethod
    def leaf_key(tensor: Any) -> Hashable:
        """Return what `edges_of` gives for the edges that lead to this tensor, which is a leaf."""

    @staticmethod
    @abstractmethod
    def edges_of(node: Node) -> Iterable[tuple[Node | None, Hashable, Hashable] | None]:
        """Return the edges of a node, in the order of the gradients that it sends: node, its key, key of the edge.

        The node is ``None`` where there is nothing behind it; the edge, where it takes no gradient.
        """

    @staticmethod
    @abstractmethod
    def sequence_number(node: Node) -> int:
        """Return the node's number: those made later on the same thread have higher ones."""

    @staticmethod
    @abstractmethod
    def next_sequence_number() -> int:
        """Return a number that no node of this thread has reached, and that all later ones reach."""

    @staticmethod
    @abstractmethod
    def backward_pass() -> int:
        """Return a number that the backward pass has which runs on this thread, and no other; -1 if it is not known."""

    @staticmethod
    def postponed_version(tensor: Any) -> Any:  # noqa: ARG004  # of those who override it
        """Return the version of a tensor whose node must not be asked for before the call; ``None`` if it may be."""
        return None

    @staticmethod
    def is_view(tensor: Any, /) -> bool:  # noqa: ARG004  # of those who override it
        """Whether a tensor shows the memory of another, and gets another node when the call writes to it."""
        return False

    def follow_views(self, results: Sequence[tuple[GradientSlot, Any]]) -> int:  # noqa: ARG002
        """Watch the gradients of views that the call has written to; return how many of the arguments these are."""
        return 0

    @staticmethod
    @abstractmethod
    def quiet(on_failure: Callable[[str, Exception], None]) -> AbstractContextManager[None]:
        """See `msprobe_core.plugin.Framework.quiet`."""

    # --- setting the hooks ------------------------------------------------------------------------------------

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
        """Set the hooks, on nodes that the call created."""
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
        # The hooks live as long as the graph and refer to this object, which must not keep other nodes alive.
        del self._edges, self._outside, self._postponed, self._views

    def _without_postponed(self, results: list[tuple[GradientSlot, Any]]) -> list[tuple[GradientSlot, Any]]:
        # The call has used them by now, and made their nodes where they were missing. What it merely hands on is
        # left alone: nobody may have used it yet.
        handed_on = {id(tensor) for _, tensor in results}
        for slot, tensor, version in self._postponed:
            if id(tensor) not in handed_on and self.postponed_version(tensor) == version:
                self._note_edge(slot, tensor)
        postponed = {id(tensor) for _, tensor, _ in self._postponed}
        return [(slot, tensor) for slot, tensor in results if id(tensor) not in postponed]

    def _find_boundary(self, starts: Iterable[Node]) -> list[tuple[Node, list[tuple[int, _Part]]]]:
        """Return the nodes that send gradients to the arguments: which of their edges lead to which argument."""
        boundary: list[tuple[Node, list[tuple[int, _Part]]]] = []
        edges, first = self._edges, self._first
        edges_of, sequence_number = self.edges_of, self.sequence_number
        # What made an argument is outside, whatever its number says: each thread counts for itself.
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
                continue  # an argument that is a leaf, handed back as it is: its gradient is not this call's
            key, number = self.key_of(node), self.output_number(tensor)
            # A call that hands an argument back has no node of its own: what arrives at the result is what it sends.
            same = tuple(part for part in self._edges.get((key, number), ()) if id(part) not in watched)
            watched.update(id(part) for part in same)
            by_node.setdefault(key, (node, []))[1].append((number, slot, same))
            num_watched += 1
        for node, places in by_node.values():
            node.register_prehook(_ResultsHook(self, places))
        return num_watched

    # --- what arrives -----------------------------------------------------------------------------------------

    def receive_results(self, places: Sequence[_Place], gradients: Sequence[Any]) -> None:
        """Record what has arrived at a node that made results of the call."""
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
        """Record what a node has sent to arguments of the call."""
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
            # A pass that has not come to all nodes may have ended. But it may go on as well, where a hook or another
            # thread has begun this one in the middle of it. If only the sums tell the passes apart, their order counts.
            self._settle(part, _MOST_WAITING if self._sees_results else 0)
            if part.sums is _NO_SUMS:
                part.sums = {}
            found = part.sums[backward_pass] = _Sum()
        found.num_received += 1
        if gradient is not None:
            # Out of place: the tensor belongs to the engine.
            found.total = gradient if found.total is None else found.total + gradient
        if found.num_received < part.num_expected:
            self._unsettled[id(part)] = lambda: self._settle(part)
            return
        part.sums.pop(backward_pass, None)
        if not part.sums:
            self._unsettled.pop(id(part), None)
        self._hand_over(part, backward_pass, found.total)

    def _settle(self, part: _Part, num_kept: int = 0) -> None:
        """Hand over the sums that are not complete, but for the latest."""
        for backward_pass in list(part.sums)[: max(0, len(part.sums) - num_kept)]:
            found = part.sums.pop(backward_pass, None)
            if found is not None:
                self._hand_over(part, backward_pass, found.total)

    def _hand_over(self, part: _Part, backward_pass: int, total: Any) -> None:
        if total is not None:
            self._recorder.record_gradient(self._call, part.slot, total, backward_pass)

    def _result_nodes(self, output: Any, depth: int = 0) -> list[Node]:
        """Return the nodes of the tensors in a result, for when the gradients of results are not asked for."""
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
    """Stands at a node that made results of a call: an object, since a closure is five for the garbage collector."""

    __slots__ = ("_gradients", "_places")

    def __init__(self, gradients: GraphGradients, places: Sequence[_Place]) -> None:
        self._gradients = gradients
        self._places = places

    def __call__(self, gradients: tuple[Any, ...]) -> None:
        self._gradients.receive_results(self._places, gradients)


class _ArgumentsHook:
    """Stands at a node that sends gradients to arguments of a call."""

    __slots__ = ("_gradients", "_parts")

    def __init__(self, gradients: GraphGradients, parts: Sequence[tuple[int, _Part]]) -> None:
        self._gradients = gradients
        self._parts = parts

    def __call__(self, sent: tuple[Any, ...], _received: tuple[Any, ...]) -> None:
        self._gradients.receive_arguments(self._parts, sent)
