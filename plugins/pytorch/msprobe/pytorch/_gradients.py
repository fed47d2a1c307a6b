"""Gradients of one call and of one tensor, from PyTorch's graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.hooks import unserializable_hook

from msprobe.pytorch._quiet import RecordingGuard
from msprobe_core.interception import GraphGradients
from msprobe_core.plugin import GradientSlot

Node = Any
"""An autograd node: C++ nodes and those of custom functions share no Python base class."""

_ACCUMULATE_GRAD = "AccumulateGrad"

next_sequence_number: Callable[[], int] = cast("Any", torch._C)._autograd._get_sequence_nr
"""Returns the sequence number of the next autograd node of this thread."""


def run_apart(work: Callable[[], None], on_failure: Callable[[str, Exception], None]) -> None:
    """Run code that creates autograd nodes on a separate thread, and wait for it.

    Each thread numbers its nodes. Backward follows the numbers, so a node of ours among those of the user would change
    the order in which gradients of several threads are accumulated.

    Args:
        work: Code to run.
        on_failure: Called with an exception.
    """

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  # of PyTorch, or of a tensor subclass of the user
            on_failure("gradients of parameters after the window", error)

    thread = threading.Thread(target=run, name="msprobe-graph", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is ending, and there will be no backward
        return
    thread.join()


def is_in_backward() -> bool:
    """Whether autograd's engine is running nodes on this thread, so that a forward is a recomputation."""
    return _read_graph_task is not None and _read_graph_task() != -1


_read_graph_task: Callable[[], int] | None = getattr(torch._C, "_current_graph_task_id", None)


class CallGradients(GraphGradients):
    """See `msprobe_core.interception.gradients`."""

    __slots__ = ()

    backward_pass = staticmethod(_read_graph_task or (lambda: -1))  # without a wrapper, since every gradient calls it

    @staticmethod
    def is_tensor(value: object) -> bool:
        """Whether ``value`` is a ``torch.Tensor``."""
        return isinstance(value, Tensor)

    @staticmethod
    def node_of(tensor: Tensor) -> Node | None:
        """Return ``grad_fn``."""
        return tensor.grad_fn

    @staticmethod
    def output_number(tensor: Tensor) -> int:
        """Return the index of the tensor among its node's results."""
        return tensor.output_nr

    @staticmethod
    def key_of(node: Node) -> Hashable:
        """Return the node: PyTorch returns the same object as long as it is alive."""
        return node

    @staticmethod
    def leaf_key(tensor: Tensor) -> Hashable:
        """Return the leaf's own identity: the node that accumulates its gradient may not exist yet."""
        return id(tensor)

    @staticmethod
    def edges_of(node: Node) -> Iterable[tuple[Node | None, Hashable, Hashable] | None]:
        """Return ``next_functions``; an accumulating node has none."""
        return [
            None
            if edge[0] is None
            else (None, None, id(edge[0].variable))
            if type(edge[0]).__name__ == _ACCUMULATE_GRAD
            else (edge[0], edge[0], edge)
            for edge in node.next_functions
        ]

    @staticmethod
    def sequence_number(node: Node) -> int:
        """Return the node's number."""
        return node._sequence_nr()

    next_sequence_number = staticmethod(next_sequence_number)

    @staticmethod
    def postponed_version(tensor: Tensor) -> int | None:
        """Return the version of a view of memory that was written to."""
        return tensor._version if _may_make_its_node(tensor) else None

    is_view = staticmethod(Tensor._is_view)

    def follow_views(self, results: Sequence[tuple[GradientSlot, Any]]) -> int:
        """Record the gradients of views that the call has written to.

        Such a view gets a new node, and its old node never runs. Instead, ``CopySlices`` computes the gradient with
        respect to the old view, as a part of that with respect to its base. Hooks at the old node report it to the call
        that created the view.
        """
        handed_on = {id(tensor) for _, tensor in results}
        num_followed = 0
        for slot, tensor, node in self._views:
            # If it is not a result, other code may have written to it, and asking for its node would create the node.
            if id(tensor) not in handed_on or not tensor._version or tensor.output_nr or tensor.grad_fn is node:
                continue
            copies = self._find_copies(tensor.grad_fn)
            if len(copies) == 1:
                copies[0].register_hook(self._make_view_hook(slot, tensor, node, copies[0]))
                num_followed += 1
        return num_followed

    def _find_copies(self, start: Node) -> list[Node]:
        """Return the nodes that this call created to write to a part of a tensor."""
        seen, pending = {start}, [start]
        while pending:
            for following, _ in pending.pop().next_functions:
                if following is not None and following not in seen and following._sequence_nr() >= self._first:
                    seen.add(following)
                    pending.append(following)
        return [node for node in seen if type(node).__name__ == _COPY_SLICES and node._sequence_nr() >= self._first]

    def _make_view_hook(self, slot: GradientSlot, view: Tensor, node: Node, copy: Node) -> Callable[[Any, Any], None]:
        recorder, call = self._recorder, self._call
        base: Any = view._base
        layout = base.shape, base.stride()
        part = view.shape, view.stride(), view.storage_offset() - base.storage_offset()
        before, after = _own_hooks(node)
        if any(each.__module__ == __name__ for each in _own_hooks(copy)[1]):
            before, after = [], []  # a call inside this one has called them
        # The view's creator passes on all of the gradient only if no other part of the base is used elsewhere.
        is_whole = view.numel() == base.numel() and node.next_functions == copy.next_functions[:1]

        def hook(sent: tuple[Tensor | None, ...], received: Any) -> None:
            whole = sent[0]
            if whole is None or (whole.shape, whole.stride()) != layout or not recorder.is_open:
                return
            with RecordingGuard(recorder.note_failure):
                gradient = whole.as_strided(*part)
                recorder.record_gradient(call, slot, gradient, CallGradients.backward_pass())
                for each in before:
                    each((gradient,))
                if is_whole:
                    for each in after:
                        each((whole,), received)

        return hook

    @staticmethod
    def quiet(on_failure: Callable[[str, Exception], None]) -> RecordingGuard:
        """Return a block that is hidden from PyTorch's modes."""
        return RecordingGuard(on_failure)


def _own_hooks(node: Node) -> tuple[list[Any], list[Any]]:
    """Return our hooks at a node, before and after it; a handle of a hook leads to all of its kind."""
    found: list[list[Any]] = []
    for handle in (node.register_prehook(_nothing), node.register_hook(_nothing)):
        hooks = handle.hooks_dict_ref()
        handle.remove()
        found.append([hook for hook in (hooks or {}).values() if getattr(hook, "__module__", None) in _OWN])
    return found[0], found[1]


def _nothing(*_: Any) -> None:
    return


_OWN = (GraphGradients.__module__, __name__)
_COPY_SLICES = "CopySlices"


def _may_make_its_node(tensor: Tensor) -> bool:
    """Whether asking for the tensor's node may create it.

    The node of a view is recreated on access after its base was written to. Created early, it would get an earlier
    number, the engine would run it at another time, and sums of gradients would round differently.
    """
    return tensor._is_view() and tensor._version > 0


def watch_gradient(tensor: Tensor, on_gradient: Callable[[Tensor], None]) -> Callable[[], None] | None:
    """See `msprobe_core.plugin.Framework.watch_gradient`.

    Raises:
        ValueError: asking for the tensor's node could create it.
    """
    if not tensor.requires_grad:
        return None
    if _may_make_its_node(tensor):
        raise ValueError("a view of memory that was written to has its gradient only by a change to the graph")
    node = tensor.grad_fn
    number = tensor.output_nr

    @unserializable_hook  # excluded from saved models, without a warning of PyTorch
    def on_leaf(gradient: Tensor) -> None:
        with RecordingGuard():
            on_gradient(gradient)

    def on_node(gradients: tuple[Tensor | None, ...]) -> None:
        gradient = gradients[number]
        if gradient is not None:
            with RecordingGuard():
                on_gradient(gradient)

    handle = tensor.register_hook(on_leaf) if node is None else node.register_prehook(on_node)
    return handle.remove
