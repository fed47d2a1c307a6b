"""Which points are compiled into a graph, and the numbers by which graphs identify their gradients."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple


class Point(NamedTuple):
    """Where a gradient is taken: the number of a Cell, and of a tensor among its arguments or results."""

    cell: int
    place: int


class Points:
    """All points of the process, by number, since compiled graphs refer to them by number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: list[Point] = []
        self._numbers: dict[Point, int] = {}

    def __getitem__(self, number: int) -> Point:
        return self._points[number]

    def number_of(self, point: Point) -> int:
        """Return the number of a point; idempotent, since the compiler asks many times for each."""
        with self._lock:
            if point not in self._numbers:
                self._numbers[point] = len(self._points)
                self._points.append(point)
            return self._numbers[point]


class Tap(IntEnum):
    """How the gradient of a tensor is taken.

    Attributes:
        NONE: Not at all.
        CELL: By a Cell with a ``bprop``. If the whole backward pass is compiled together with the forward, it leaves
            nothing in the forward.
        OPERATOR: By an operator that copies the tensor. If the gradient of a function is taken outside of it, the
            compiler keeps one result for each Cell with a ``bprop``, and all calls would get that of the last.
    """

    NONE = 0
    CELL = 1
    OPERATOR = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """Which points are compiled into a graph.

    Attributes:
        by_call: Whether points distinguish positional and keyword arguments, as hooks do. Not everything can be
            compiled this way.
        tap: How gradients of inputs and results are taken.
        untapped: Points where they are not taken.
        hooked: Names of the parameters whose gradients are taken; ``None`` for all.
    """

    by_call: bool = True
    tap: Tap = Tap.CELL
    untapped: frozenset[Point] = frozenset()
    hooked: frozenset[str] | None = None

    def tap_at(self, point: Point) -> Tap:
        """Return how the gradient at a point is taken."""
        return Tap.NONE if point in self.untapped else self.tap

    def hooks(self, parameter: str) -> bool:
        """Whether the gradient of the parameter with this name is taken."""
        return self.hooked is None or parameter in self.hooked

    def without(self, points: frozenset[Point]) -> Plan:
        """Return the plan without these points."""
        return replace(self, untapped=self.untapped | points)

    def without_taps(self) -> Plan:
        """Return the plan without gradients of inputs and results."""
        return replace(self, tap=Tap.NONE)

    def by_signature(self) -> Plan:
        """Return the plan with points that do not distinguish positional and keyword arguments."""
        return replace(self, by_call=False)

    def hooking(self, parameters: frozenset[str]) -> Plan:
        """Return the plan with gradients of these parameters only."""
        return replace(self, hooked=parameters)
