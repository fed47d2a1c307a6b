"""Gradients of one call and of one tensor, from MindSpore's dynamic graph.

Its nodes have edges, numbers and hooks, so gradients are read where they pass and nothing is inserted into the graph.
Other mechanisms (identity cells, backward hooks of Cells) change the order in which gradients are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import mindspore as ms
from mindspore import Tensor

from msprobe.mindspore._device import FLOATING
from msprobe.mindspore._quiet import RecordingGuard, executor
from msprobe_core.interception import GraphGradients, Node

has_nodes: bool = hasattr(Tensor, "_grad_node")
"""Whether this release exposes the nodes of its graph; if not, gradients of calls are not recorded."""


def builds_graph() -> bool:
    """Whether values computed now can be differentiated."""
    return has_nodes and bool(executor.requires_grad())


def is_in_backward() -> bool:
    """Whether a backward pass is running, so that a forward is a recomputation."""
    return _current_engine is not None and _current_engine() != -1


_current_engine: Callable[[], int] | None = getattr(executor, "get_current_autodiff_engine_id", None)

_marks: list[Any] = []
"""A tensor to create nodes from, made on first use."""


def next_sequence_number() -> int:
    """Return the number of a node created for this purpose; later nodes have higher numbers."""
    if not _marks:
        mark: Any = Tensor([0.0], ms.float32)
        mark.requires_grad_(True)
        _marks.append(mark)
    executor.set_enable_grad(True)  # it is off inside the guard
    try:
        return _marks[0].view(1)._grad_node._sequence_nr()
    finally:
        executor.set_enable_grad(False)


class CallGradients(GraphGradients):
    """See `msprobe_core.interception.gradients`."""

    __slots__ = ()

    @staticmethod
    def is_tensor(value: object) -> bool:
        """Whether ``value`` is a ``mindspore.Tensor``."""
        return isinstance(value, Tensor)

    @staticmethod
    def node_of(tensor: Any) -> Node | None:
        """Return the node; hooks on the node of a leaf are never called."""
        node = tensor._grad_node
        return None if node is None or node.is_leaf() else node

    @staticmethod
    def output_number(tensor: Any) -> int:
        """Return the index of the tensor among its node's results."""
        return tensor._output_index

    @staticmethod
    def key_of(node: Node) -> Hashable:
        """Return the address of the node: each access returns another object."""
        return node._unique_id()

    @staticmethod
    def leaf_key(tensor: Any) -> Hashable:
        """Return the address of the leaf's node; for a tensor outside of the graph, a key that no edge leads to."""
        node = tensor._grad_node
        return None if node is None else node._unique_id()

    @staticmethod
    def edges_of(node: Node) -> Iterable[tuple[Node | None, Hashable, Hashable] | None]:
        """Return ``next_functions``; a leaf has none."""
        return [_edge(following, number) for following, number in node.next_functions]

    @staticmethod
    def sequence_number(node: Node) -> int:
        """Return the node's number; that of a leaf is the maximum."""
        return node._sequence_nr()

    @staticmethod
    def next_sequence_number() -> int:
        """Return the number of a node created for this purpose."""
        return next_sequence_number()

    @staticmethod
    def backward_pass() -> int:
        """Return the number of the running engine."""
        return -1 if _current_engine is None else _current_engine()

    @staticmethod
    def quiet(on_failure: Callable[[str, Exception], None]) -> RecordingGuard:
        """Return a block in which no graph is built."""
        return RecordingGuard(on_failure)


def _edge(following: Node, number: int) -> tuple[Node | None, Hashable, Hashable] | None:
    if following is None:
        return None
    key = following._unique_id()
    return (None, None, key) if following.is_leaf() else (following, key, (key, number))


def watch_gradient(tensor: Any, on_gradient: Callable[[Any], None]) -> Callable[[], None] | None:
    """See `msprobe_core.plugin.Framework.watch_gradient`."""
    if not takes_gradient(tensor):
        return None
    _take_out_left()
    node = tensor._grad_node if has_nodes else None
    number = tensor._output_index if node is not None else 0

    def on_node(gradients: tuple[Any, ...]) -> None:
        gradient = gradients[number]
        if gradient is not None:
            with RecordingGuard():
                on_gradient(gradient)

    if node is None or node.is_leaf():
        return _LeafHook(tensor, on_gradient).remove
    return node.register_prehook(on_node).remove


class _LeafHook:
    """A hook of a leaf that may be removed while it is called; MindSpore itself would abort the process."""

    def __init__(self, tensor: Any, on_gradient: Callable[[Any], None]) -> None:
        self._on_gradient: Callable[[Any], None] | None = on_gradient
        self._is_running = False
        self._handle = tensor.register_hook(self._call)

    def _call(self, gradient: Any) -> None:
        if self._on_gradient is None:
            return
        self._is_running = True
        try:
            with RecordingGuard():
                self._on_gradient(gradient)
        finally:
            self._is_running = False

    def remove(self) -> None:
        """Remove it, if necessary once no backward pass runs; it is not called again in any case."""
        self._on_gradient = None
        _left.append(self._handle)
        if not self._is_running:
            _take_out_left()


_left: list[Any] = []
"""Hooks still to be removed."""


def _take_out_left() -> None:
    if not is_in_backward():
        while _left:
            _left.pop().remove()


def takes_gradient(tensor: Any) -> bool:
    """Whether a backward pass computes a gradient with respect to this tensor.

    Comparisons and indices claim to require a gradient as well, though they have none.
    """
    return bool(tensor._requires_grad) and tensor.dtype in FLOATING
