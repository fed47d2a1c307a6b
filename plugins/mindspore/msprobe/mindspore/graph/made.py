"""Find out where the compiler made a graph with points compute differently than without them.

A point that takes a gradient needs the sum of the gradients from all later uses of its tensor. Without the point, the
compiler may merge this sum with gradients from other uses of the same value into one sum, which rounds differently;
with the point it cannot. Nor can it then merge constants that are multiplied on both sides of the point. On the CPU it
computes half precision in float32, and rounds only where an operator needs half precision, which a point that copies a
tensor does. No other optimization across points changes a value.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore.train import mind_ir_pb2

from msprobe.mindspore.graph.collector import station
from msprobe.mindspore.graph.leaf import GRADIENT, HAND_ON
from msprobe.mindspore.graph.plan import Point
from msprobe.mindspore.graph.tensordump import point_in

_OURS = "msprobe"
_REFERENCE = "REF::"
_CALL = "call", ""
_CONSTANT = "Constant"
_SUM = "AddN"
_PRODUCTS = frozenset({"Mul", "Muls"})
_ADDED = frozenset(
    {
        "call", "Cast", "Depend", "Load", "MakeTuple", "make_list", "Reshape", "TensorDump", "TensorMove",
        "TupleGetItem", "UpdateState",
    }
)  # fmt: skip
"""Kinds of operators that points add."""

_FOLDED = frozenset({"AddN", "BroadcastTo", "Fill", "Mul", "Muls", "OnesLike", "RealDiv", "Tile", "ZerosLike"})
"""Kinds of operators that the compiler evaluates if the gradient is a constant, as that of a loss is. With a point the
gradient is a variable."""

_MADE_PLAIN = frozenset({"Cast", "Reshape"})
_SPREADING = _MADE_PLAIN | {"Depend", "Tile", "BroadcastTo"}
_DTYPES = {1: np.float32, 10: np.float16, 11: np.float64}
"""NumPy dtypes of constants, by the format's numbers."""

_HALF = frozenset({10, 16})
"""The format's numbers of float16 and bfloat16."""

_DEPENDS = frozenset({"Depend", "Load"})
_UNCHANGED = _MADE_PLAIN | _DEPENDS
_NO_USE = frozenset({"UpdateState"})


@dataclass(frozen=True, slots=True)
class _Node:
    name: str
    kind: str
    inputs: Sequence[str]
    ours: str = ""
    is_half: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """Properties of a compiled graph.

    Attributes:
        regrouped: Points that split a sum, or round where the graph without them would not.
        parameters: Names of the parameters that are used in a computation.
        order: Operations that round differently in another order: the number of sums by their number of terms, and at
            0 the number of products with a constant that have another such product as a factor.
        kinds: Number of operators of each kind that the program needs and points do not add.
        takes_gradients: Whether gradients of inputs or results are taken in it.
    """

    regrouped: frozenset[Point]
    parameters: frozenset[str]
    order: Counter[int]
    kinds: Counter[str]
    takes_gradients: bool

    def computes_as(self, other: Made) -> bool:
        """Whether two graphs of one program compute in the same order."""
        passed_over = _FOLDED if self.takes_gradients else frozenset[str]()
        ours, theirs = (
            {kind: num for kind, num in made.kinds.items() if kind not in passed_over} for made in (self, other)
        )
        return self.order == other.order and ours == theirs


def has_points(exported: bytes) -> bool:
    """Whether a graph as exported by MindSpore (``mind_ir``) contains any operator of ours."""
    return _OURS.encode() in exported


def read_made(exported: bytes) -> Made:
    """Read a graph as exported by MindSpore (``mind_ir``)."""
    messages: Any = mind_ir_pb2  # generated: its classes are created at import
    model = messages.ModelProto()
    model.ParseFromString(exported)
    graphs = [model.graph, *model.functions]
    nodes = _Nodes(model, graphs)
    names = {parameter.name: parameter.ref_key for graph in graphs for parameter in graph.parameter}
    return Made(
        frozenset([*nodes.points_in_sums(), *nodes.points_between_uses(), *nodes.points_that_round()]),
        frozenset(names[name] for node in nodes for name in node.inputs if name in names),
        nodes.order(),
        Counter(node.kind for node in nodes.needed() if node.kind not in _ADDED),
        any(node.ours == GRADIENT for node in nodes),
    )


class _Nodes:
    """The nodes of all graphs of a model; their names are unique in the model."""

    def __init__(self, model: Any, graphs: Sequence[Any]) -> None:
        kinds = {primitive.name: _kind(primitive) for primitive in model.primitives}
        self._tensors: dict[str, Any] = {}
        self._texts: dict[str, str] = {}
        self._constants: set[str] = set()
        self._nodes: dict[str, _Node] = {}
        for graph in graphs:
            for node in graph.node:
                name = node.output[0]
                if node.op_type == _CONSTANT:
                    self._constants.add(name)
                    self._add_constant(name, node)
                else:
                    kind, ours = kinds.get(node.op_type.removeprefix(_REFERENCE), _CALL)
                    is_half = any(t.data_type in _HALF for a in node.attribute for t in a.tensors)
                    self._nodes[name] = _Node(name, kind, list(node.input), ours, is_half)
        self._users: dict[str, list[_Node]] = defaultdict(list)
        for node in self:
            for name in node.inputs:
                self._users[name].append(node)
        self._leaving = [output.name for graph in graphs for output in graph.output]

    def __iter__(self) -> Iterator[_Node]:
        return iter(self._nodes.values())

    def _add_constant(self, name: str, node: Any) -> None:
        for attribute in node.attribute:
            if len(attribute.tensors):
                self._tensors[name] = attribute.tensors[0]
            elif attribute.s:
                self._texts[name] = attribute.s.decode(errors="replace")

    def needed(self) -> Iterator[_Node]:
        """Yield the nodes on which results and effects of the program depend: points also take unused values."""
        names = list(self._leaving)
        seen: set[str] = set()
        while names:
            name = names.pop()
            node = self._nodes.get(name)
            if name in seen or node is None:
                continue
            seen.add(name)
            if node.ours == HAND_ON:
                names.append(node.inputs[0])
            elif not node.ours:
                names += node.inputs
                yield node

    def points_in_sums(self) -> Iterator[Point]:
        """Return the points whose gradient is a sum within another sum, but not its first term."""
        taken = self._taken()
        for name in self.inner_sums():
            yield from taken.get(name, ())

    def inner_sums(self) -> Iterator[str]:
        """Yield the names of sums that are a term of another sum, but not its first, with which addition begins."""
        for node in self:
            if node.kind == _SUM:
                for term in self._terms(node)[1:]:
                    inner = self._origin(term, _DEPENDS)
                    if inner in self._nodes and self._nodes[inner].kind == _SUM:
                        yield inner

    def _terms(self, node: _Node) -> Sequence[str]:
        first = self._nodes.get(node.inputs[0])
        return first.inputs if first is not None and first.kind == "MakeTuple" else node.inputs

    def _taken(self) -> dict[str, list[Point]]:
        """Return the points by the name of the gradient that they take."""
        found: dict[str, list[Point]] = defaultdict(list)
        for node in self:
            if node.ours == GRADIENT:
                found[self._origin(node.inputs[-1])].append(self._point(node))
            elif node.kind == "TensorDump" and (file := point_in(self._texts.get(node.inputs[0], ""))) is not None:
                found[self._origin(node.inputs[1])].append(file)
        return found

    def points_that_round(self) -> Iterator[Point]:
        """Return points that copy tensors of half precision, where the operators before and after use float32."""
        if ms.get_context("device_target") == "CPU":
            yield from (self._point(node) for node in self if node.ours == HAND_ON and node.is_half)

    def points_between_uses(self) -> Iterator[Point]:
        """Return the points that copy a tensor that has other uses, while the copy has several uses."""
        for node in self:
            if node.ours == HAND_ON:
                others = [user for user in self._users[self._taken_from(node)] if not self._leads_to(user, node)]
                if any(self._is_use(user) for user in others) and self._num_uses(node.name) > 1:
                    yield self._point(node)

    def _taken_from(self, node: _Node) -> str:
        """Return the name of the tensor before a tap; a reshape or cast of ours may come between."""
        given = self._nodes.get(node.inputs[0])
        return given.inputs[0] if given is not None and given.kind in _MADE_PLAIN else node.inputs[0]

    def _leads_to(self, user: _Node, tap: _Node) -> bool:
        return user is tap or (user.kind in _MADE_PLAIN and user.name == tap.inputs[0])

    def _is_use(self, user: _Node) -> bool:
        return user.ours == HAND_ON or not (user.ours or user.kind in _NO_USE)

    def _num_uses(self, name: str) -> int:
        """Return the number of terms in the gradient with respect to a tensor."""
        num = self._leaving.count(name)
        for user in self._users[name]:
            if user.ours == HAND_ON or (user.kind == "Depend" and user.inputs[0] == name):
                num += self._num_uses(user.name)
            elif self._is_use(user):
                num += 1
        return num

    def order(self) -> Counter[int]:
        """Count sums by their number of terms, with sums in first place merged; at 0, products with two constants."""
        needed = list(self.needed())
        going_on = {first for node in needed if node.kind == _SUM and (first := self._first_sum(node))}
        found = Counter(self._num_terms(node) for node in needed if node.kind == _SUM and node.name not in going_on)
        for node in needed:
            inner = self._nodes.get(self._factor(node) or "")
            found[0] += inner is not None and self._factor(inner) is not None
        return found

    def _first_sum(self, node: _Node) -> str | None:
        first = self._nodes.get(self._origin(self._terms(node)[0], _DEPENDS))
        return first.name if first is not None and first.kind == _SUM else None

    def _num_terms(self, node: _Node) -> int:
        first = self._first_sum(node)
        others = 0 if first is None else self._num_terms(self._nodes[first]) - 1
        return len(self._terms(node)) + others

    def _factor(self, node: _Node) -> str | None:
        """Return the variable that is multiplied by a constant; ``None`` if the node is no such product."""
        if node.kind not in _PRODUCTS or self._other_than_one(node) is not None:
            return None
        names = [self._origin(name) for name in node.inputs[:2]]
        others = [name for name in names if name not in self._constants]
        return others[0] if len(others) == 1 else None

    def _other_than_one(self, node: _Node) -> str | None:
        """Return what is multiplied by ones: the compiler removes such a product only if it knows the ones."""
        if node.kind == "Mul":
            for factor, other in (node.inputs[:2], node.inputs[1::-1]):
                if self._is_one(factor):
                    return other
        return None

    def _is_one(self, name: str) -> bool:
        while (node := self._nodes.get(name)) is not None and node.kind in _SPREADING:
            name = node.inputs[0]
        if name not in self._tensors:
            return node is not None and node.kind == "OnesLike"
        tensor = self._tensors[name]
        dtype = _DTYPES.get(tensor.data_type)
        return dtype is not None and bool((np.frombuffer(tensor.raw_data, dtype) == 1).all())

    def _origin(self, name: str, kinds: frozenset[str] = _UNCHANGED) -> str:
        """Return the tensor before all operators of ``kinds``, and before our copies."""
        while (node := self._nodes.get(name)) is not None:
            if node.kind in kinds or node.ours == HAND_ON:
                name = node.inputs[0]
            elif kinds is _UNCHANGED and (other := self._other_than_one(node)) is not None:
                name = other
            else:
                break
        return name

    def _point(self, node: _Node) -> Point:
        """Return the point of one of our operators, whose second input is the point's number."""
        number = self._tensors[self._origin(node.inputs[1])]
        return station().points[int(np.frombuffer(number.raw_data, np.int64)[0])]


def _kind(primitive: Any) -> tuple[str, str]:
    name = next((attribute.s.decode() for attribute in primitive.attribute if attribute.name == "func_name"), "")
    return primitive.op_type, name if name.startswith(_OURS) else ""
