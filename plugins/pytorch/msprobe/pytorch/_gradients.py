"""Gradients of one call, read from hooks on autograd nodes; nothing is spliced into the graph.

Before a call, the tensors among its arguments have gradient edges: pairs of a node and a number of that node's
output (for a leaf, the node that accumulates its gradient). After the call, walking back from its results through
nodes that were created during the call ends at *boundary* nodes, whose edges are those of the arguments. A hook on
a boundary node reads the gradient that this call sends to that argument, whether or not others use the tensor too;
where a call uses an argument several times, the parts are added up. The gradient with respect to a result is what
arrives at the result's own node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.hooks import unserializable_hook

from msprobe.pytorch._quiet import Quiet
from msprobe_core.capture.values import MAX_DEPTH
from msprobe_core.hookspecs import Call, CallRecorder
from msprobe_core.model import GradientSlot

Node = Any
"""An autograd node: C++ nodes and those of custom functions share no Python base class."""

_ACCUMULATE_GRAD = "AccumulateGrad"

_read_sequence_number: Callable[[], int] | None = getattr(cast("Any", torch._C)._autograd, "_get_sequence_nr", None)


def next_sequence_number() -> int:
    """Return the number that the next autograd node of this thread will get."""
    if _read_sequence_number is not None:
        return _read_sequence_number()
    with torch.enable_grad():  # releases that do not tell: make a node and look
        return torch.empty(0, requires_grad=True).view(0).grad_fn._sequence_nr() + 1  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]


def is_in_backward() -> bool:
    """Whether autograd's engine is running nodes on this thread: a forward that runs now computes something again."""
    return _read_graph_task is not None and _read_graph_task() != -1


_read_graph_task: Callable[[], int] | None = getattr(torch._C, "_current_graph_task_id", None)


class _Part:
    """The gradient of one argument while its parts arrive."""

    __slots__ = ("num_expected", "num_received", "slot", "total")

    def __init__(self, slot: GradientSlot) -> None:
        self.slot = slot
        self.num_expected = 0
        self.num_received = 0
        self.total: Tensor | None = None


class CallGradients:
    """Watches the gradients of one call: made before it, ``attach`` after it."""

    __slots__ = ("_call", "_edges", "_first", "_leaves", "_postponed", "_recorder", "_unsettled")

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
        self._edges: dict[tuple[Node, int], list[_Part]] = {}
        self._leaves: dict[int, list[_Part]] = {}
        self._postponed: list[tuple[GradientSlot, Tensor, int]] = []
        for slot, tensor in recorder.input_gradients(call, args, kwargs):
            if _may_make_its_node(tensor):
                self._postponed.append((slot, tensor, tensor._version))
            else:
                self._note_edge(slot, tensor)
        self._first = next_sequence_number()

    def _note_edge(self, slot: GradientSlot, tensor: Tensor) -> None:
        node = tensor.grad_fn
        if node is None:
            self._leaves.setdefault(id(tensor), []).append(_Part(slot))
        else:
            self._edges.setdefault((node, tensor.output_nr), []).append(_Part(slot))

    def attach(self, output: Any) -> None:
        """Set the hooks, on nodes that the call created."""
        results = self._recorder.output_gradients(self._call, output)
        has_slots = bool(results)
        if self._postponed:
            # The call has used them by now, and made their nodes where they were missing. What it merely hands on is
            # left alone: nobody may have used it yet.
            handed_on = {id(tensor) for _, tensor in results}
            for slot, tensor, version in self._postponed:
                if id(tensor) not in handed_on and tensor._version == version:
                    self._note_edge(slot, tensor)
            postponed = {id(tensor) for _, tensor, _ in self._postponed}
            results = [(slot, tensor) for slot, tensor in results if id(tensor) not in postponed]
            self._postponed = []
        starts = [tensor.grad_fn for _, tensor in results if tensor.grad_fn is not None]
        if self._edges or self._leaves:
            boundary = self._find_boundary(starts if has_slots else _grad_functions(output))
        else:
            boundary = {}
        watched: set[int] = set()
        for parts in boundary.values():
            for _, part in parts:
                watched.add(id(part))
                part.num_expected += 1
        num_outputs = self._watch_results(results, watched)
        self._recorder.expect_gradients(self._call, num_outputs, len(watched))
        for node, parts in boundary.items():
            node.register_hook(self._make_boundary_hook(parts))
        # The hooks live as long as the graph and refer to this object, which must not keep other nodes alive.
        self._edges, self._leaves = {}, {}

    def _find_boundary(self, starts: Sequence[Node]) -> dict[Node, list[tuple[int, _Part]]]:
        """Return the nodes that send gradients to the arguments: which of their edges lead to which argument."""
        boundary: dict[Node, list[tuple[int, _Part]]] = {}
        edges, leaves = self._edges, self._leaves
        # What made an argument is outside, whatever its number says: each thread counts for itself.
        outside = {node for node, _ in edges}
        seen = {node for node in starts if self._is_inside(node)}  # several results may share a node
        pending = list(seen)
        while pending:
            node = pending.pop()
            for i, (following, number) in enumerate(node.next_functions):
                if following is None:
                    continue
                is_leaf = type(following).__name__ == _ACCUMULATE_GRAD  # there is nothing behind it
                if not is_leaf:
                    parts = edges.get((following, number))
                else:
                    parts = leaves.get(id(following.variable)) if leaves else None
                if parts is not None:
                    boundary.setdefault(node, []).extend((i, part) for part in parts)
                if not is_leaf and following not in seen and following not in outside and self._is_inside(following):
                    seen.add(following)
                    pending.append(following)
        return boundary

    def _is_inside(self, node: Node) -> bool:
        return node._sequence_nr() >= self._first

    def _watch_results(self, results: Sequence[tuple[GradientSlot, Tensor]], watched: set[int]) -> int:
        num_watched = 0
        by_node: dict[Node, list[tuple[int, GradientSlot, Sequence[_Part]]]] = {}
        for slot, tensor in results:
            node = tensor.grad_fn
            if node is None:
                continue  # an argument that is a leaf, handed back as it is: its gradient is not this call's
            # A call that hands an argument back has no node of its own: what arrives at the result is what it sends.
            same = [part for part in self._edges.get((node, tensor.output_nr), ()) if id(part) not in watched]
            watched.update(id(part) for part in same)
            by_node.setdefault(node, []).append((tensor.output_nr, slot, same))
            num_watched += 1
        for node, places in by_node.items():
            node.register_prehook(self._make_result_hook(places))
        return num_watched

    def _make_result_hook(
        self, places: Sequence[tuple[int, GradientSlot, Sequence[_Part]]]
    ) -> Callable[[tuple[Tensor | None, ...]], None]:
        recorder, call = self._recorder, self._call

        def hook(gradients: tuple[Tensor | None, ...]) -> None:
            if not recorder.is_open:
                return
            with Quiet(recorder.note_failure):
                for number, slot, same in places:
                    gradient = gradients[number]
                    if gradient is not None:
                        recorder.record_gradient(call, slot, gradient)
                        for part in same:
                            recorder.record_gradient(call, part.slot, gradient)

        return hook

    def _make_boundary_hook(
        self, parts: Sequence[tuple[int, _Part]]
    ) -> Callable[[tuple[Tensor | None, ...], tuple[Tensor | None, ...]], None]:
        def hook(sent: tuple[Tensor | None, ...], _received: tuple[Tensor | None, ...]) -> None:
            if not self._recorder.is_open:
                return
            with Quiet(self._recorder.note_failure):
                for i, part in parts:
                    self._receive(part, sent[i])

        return hook

    def _receive(self, part: _Part, gradient: Tensor | None) -> None:
        part.num_received += 1
        if gradient is not None:
            # Out of place: the tensor belongs to the engine.
            part.total = gradient if part.total is None else part.total + gradient
        if part.num_received < part.num_expected:
            self._unsettled[id(part)] = lambda: self._hand_over(part)
            return
        self._unsettled.pop(id(part), None)
        self._hand_over(part)

    def _hand_over(self, part: _Part) -> None:
        total, part.total = part.total, None
        if total is not None:
            self._recorder.record_gradient(self._call, part.slot, total)


def _may_make_its_node(tensor: Tensor) -> bool:
    """Whether asking for the tensor's node may create it.

    The node of a view is made anew when it is asked for after its base was written to. Made early, it would get an
    earlier number, the engine would run it at another time, and sums of gradients would round differently.
    """
    return tensor._is_view() and tensor._version > 0


def watch_gradient(tensor: Tensor, on_gradient: Callable[[Tensor], None]) -> Callable[[], None] | None:
    """See `msprobe_core.hookspecs.Framework.watch_gradient`.

    Raises:
        ValueError: asking for the tensor's node could make it.
    """
    if not tensor.requires_grad:
        return None
    if _may_make_its_node(tensor):
        raise ValueError("a view of memory that was written to has its gradient only by a change to the graph")
    node = tensor.grad_fn
    number = tensor.output_nr

    @unserializable_hook  # a model that is saved does not take it along, and PyTorch does not warn of it
    def on_leaf(gradient: Tensor) -> None:
        with Quiet():
            on_gradient(gradient)

    def on_node(gradients: tuple[Tensor | None, ...]) -> None:
        gradient = gradients[number]
        if gradient is not None:
            with Quiet():
                on_gradient(gradient)

    handle = tensor.register_hook(on_leaf) if node is None else node.register_prehook(on_node)
    return handle.remove


def _grad_functions(output: Any, depth: int = 0) -> list[Node]:
    """Return the nodes of the tensors in a result, for when the gradients of results are not asked for."""
    if isinstance(output, Tensor):
        return [output.grad_fn] if output.grad_fn is not None else []
    if depth == MAX_DEPTH:
        return []
    if isinstance(output, Mapping):
        output = list(cast("Mapping[Any, Any]", output).values())
    if isinstance(output, tuple | list):
        return [node for item in output for node in _grad_functions(item, depth + 1)]
    return []
