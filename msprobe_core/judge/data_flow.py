"""Data flow: which call's output is which call's input. Tensors are matched by fingerprint, or else by statistics.

Edges connect the innermost recorded calls. A value that several consecutive calls pass on unchanged, such as the output
of a disabled dropout, is attributed to the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from msprobe_core.model import Role
from msprobe_core.store.frame import RowKind

Edge = tuple[int, int, int]
"""Producer and consumer, as nodes, and the row of the consumer's input in the values."""

_IDENTITY = ("numel", "max", "min", "mean", "norm", "checksum")


def identity_of(suffix: str = "") -> pl.Expr:
    """Return a number shared by equal tensors; null for values that many calls may produce, such as all zeros.

    Args:
        suffix: Of the frame's columns, such as ``_target`` for one of two sides.
    """
    high, low, numel = (pl.col(f"{name}{suffix}") for name in ("max", "min", "numel"))
    is_plain = pl.when(numel > 1).then(high == low).otherwise(high.is_in([0.0, 1.0]))
    has_values = high.is_not_null() | pl.col(f"checksum{suffix}").is_not_null()
    is_worth = (pl.col(f"kind{suffix}") == RowKind.TENSOR.value) & has_values & ~is_plain.fill_null(False)
    own = pl.struct([pl.col(f"{name}{suffix}").alias(name) for name in _IDENTITY]).hash()
    return pl.when(is_worth).then(own)


def edges_of(parents: Sequence[int], calls: Sequence[int], values: pl.DataFrame) -> list[Edge]:
    """Return the edges of a unit, ordered by consumer in execution order.

    Args:
        parents: Index of the enclosing node of each node, which precedes it; -1 at the top.
        calls: Number of each node's call in execution order; -1 for nodes without a recorded call.
        values: With ``call``, ``role`` and ``identity``, in the order of calls.
    """
    return _Search(parents, calls, values).edges()


@dataclass
class _Pending:
    """An input of a module that was produced outside of it; becomes an edge if no call in the module consumes it."""

    producer: int
    identity: int
    row: int


class _Search:
    def __init__(self, parents: Sequence[int], calls: Sequence[int], values: pl.DataFrame) -> None:
        self._parents = parents
        num_calls = max(calls, default=-1) + 1
        self._node_of = [-1] * num_calls
        for node, call in enumerate(calls):
            if call != -1:
                self._node_of[call] = node
        self._has_inner = [False] * len(parents)
        starts = list(range(num_calls))
        start_of = dict(zip(self._node_of, starts, strict=True))
        # Nodes follow their parents, so that the reverse order visits children first.
        for node in range(len(parents) - 1, -1, -1):
            parent = parents[node]
            if parent != -1:
                self._has_inner[parent] = True
                start = start_of.get(node, num_calls)
                start_of[parent] = min(start_of.get(parent, num_calls), start)
        # Modules by the first call inside: inputs are resolved before it, since calls inside may produce equal values.
        self._starting: dict[int, list[int]] = {}
        for call, node in enumerate(self._node_of):
            if node != -1 and self._has_inner[node]:
                self._starting.setdefault(start_of[node], []).append(call)
        self._inputs, self._outputs = _by_call(values)
        self._made_inside: dict[int, int] = {}  # by the innermost recorded calls
        self._made_outside: dict[int, int] = {}  # by modules, for outputs that no recorded call inside produced
        self._taken: set[tuple[int, int]] = set()
        self._pending: dict[int, list[_Pending]] = {}

    def edges(self) -> list[Edge]:
        return sorted(self._found(), key=lambda edge: edge[2])

    def _found(self) -> Iterator[Edge]:
        for call, node in enumerate(self._node_of):
            for module in self._starting.get(call, ()):
                self._pending[module] = list(self._resolved(module))
            if node == -1:
                continue
            if self._has_inner[node]:
                pending = self._pending.pop(call, ())
                made = self._made_outside
            else:
                pending = self._resolved(call)
                made = self._made_inside
            for each in pending:
                if (node, each.identity) not in self._taken:
                    self._mark(node, each.identity)
                    yield each.producer, node, each.row
            for identity in self._outputs.get(call, ()):
                # A module's output that a recorded call inside produced is attributed to that call.
                if made is self._made_inside or identity not in self._made_inside:
                    made[identity] = node

    def _resolved(self, call: int) -> Iterator[_Pending]:
        seen: set[int] = set()
        for identity, row in self._inputs.get(call, ()):
            producer = self._made_inside.get(identity, self._made_outside.get(identity))
            if producer is not None and identity not in seen and producer != self._node_of[call]:
                seen.add(identity)
                yield _Pending(producer, identity, row)

    def _mark(self, node: int, identity: int) -> None:
        parent = self._parents[node]
        while parent != -1 and (parent, identity) not in self._taken:
            self._taken.add((parent, identity))
            parent = self._parents[parent]


def _by_call(values: pl.DataFrame) -> tuple[dict[int, list[tuple[int, int]]], dict[int, list[int]]]:
    inputs: dict[int, list[tuple[int, int]]] = {}
    outputs: dict[int, list[int]] = {}
    made = (Role.OUTPUT.value, Role.PARAMETERS_GRAD.value)
    wanted = values.with_row_index("row").filter(pl.col("identity").is_not_null())
    for row, call, role, identity in wanted.select("row", "call", "role", "identity").iter_rows():
        if role in made:
            outputs.setdefault(call, []).append(identity)
        elif role == Role.INPUT.value:
            inputs.setdefault(call, []).append((identity, row))
    return inputs, outputs
