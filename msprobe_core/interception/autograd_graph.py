"""What a framework must say of the nodes of its autograd graph, so that `GraphGradients` can read gradients there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from typing import Any

Node = Any
"""An autograd node; the classes of different frameworks have no common base."""


class AutogradGraph(ABC):
    """Access to nodes, edges and passes; frameworks implement it."""

    __slots__ = ()

    @staticmethod
    @abstractmethod
    def is_tensor(value: object) -> bool:
        """Whether ``value`` is a tensor of the framework."""

    @staticmethod
    @abstractmethod
    def node_of(tensor: Any) -> Node | None:
        """Return the node that made this tensor; ``None`` for leaves and constants."""

    @staticmethod
    @abstractmethod
    def output_number(tensor: Any) -> int:
        """Return the output number of the tensor at its node."""

    @staticmethod
    @abstractmethod
    def key_of(node: Node) -> Hashable:
        """Return a key that is equal for two wrappers of the same node, as long as one of them is alive."""

    @staticmethod
    @abstractmethod
    def leaf_key(tensor: Any) -> Hashable:
        """Return the key that `edges_of` yields for edges to this tensor, which is a leaf."""

    @staticmethod
    @abstractmethod
    def edges_of(node: Node) -> Iterable[tuple[Node | None, Hashable, Hashable] | None]:
        """Return the edges of a node, in the order of the gradients that it sends: node, its key, key of the edge.

        The node is ``None`` at the end of the graph; the edge is ``None`` if it takes no gradient.
        """

    @staticmethod
    @abstractmethod
    def sequence_number(node: Node) -> int:
        """Return the node's sequence number; it increases with the order of creation on a thread."""

    @staticmethod
    @abstractmethod
    def next_sequence_number() -> int:
        """Return the smallest sequence number of nodes that this thread creates from now on."""

    @staticmethod
    @abstractmethod
    def backward_pass() -> int:
        """Return a unique number of the backward pass that runs on this thread; -1 if it is unknown."""

    @staticmethod
    def postponed_version(tensor: Any) -> Any:  # noqa: ARG004  # of those who override it
        """Return the version of a tensor whose node must not be accessed before the call; ``None`` if it may be."""
        return None

    @staticmethod
    def is_view(tensor: Any, /) -> bool:  # noqa: ARG004  # of those who override it
        """Whether a tensor is a view of another one, so that a write of the call gives it a new node."""
        return False

    @staticmethod
    @abstractmethod
    def quiet(on_failure: Callable[[str, Exception], None]) -> AbstractContextManager[None]:
        """See `msprobe_core.plugin.Framework.quiet`."""
