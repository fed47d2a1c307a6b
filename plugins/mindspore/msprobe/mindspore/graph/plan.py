"""Which points are compiled into a graph, and the numbers by which graphs know their gradients."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple


class Point(NamedTuple):
    """Where a gradient is taken: the number of a Cell, and of a tensor at one of its ends."""

    cell: int
    place: int


class Points:
    """All places of the process where a gradient may be taken, by number: compiled graphs refer to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: list[Point] = []
        self._numbers: dict[Point, int] = {}

    def __getitem__(self, number: int) -> Point:
        return self._points[number]

    def number_of(self, point: Point) -> int:
        """Return the number of a point; the compiler asks many times for each."""
        with self._lock:
            if point not in self._numbers:
                self._numbers[point] = len(self._points)
                self._points.append(point)
            return self._numbers[point]


class Tap(IntEnum):
    """How the gradient of a tensor is taken.

    Attributes:
        NONE: It is not.
        CELL: By a Cell with a ``bprop`` of its own. Where all of a backward pass is compiled with the forward, nothing
            of it is left in the forward.
        OPERATOR: By an operator that copies the tensor. A function whose gradient is taken outside of it keeps one
            result of each Cell with a ``bprop``, which would be that of the Cell's last call for all of them.
    """

    NONE = 0
    CELL = 1
    OPERATOR = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """Which points are compiled into a graph.

    Attributes:
        by_call: Whether they see what was given by position and what by name, as hooks do. Not everything can be
            compiled so.
        tap: How gradients of inputs and results are taken.
        untapped: Where they are not.
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
        """Whether the gradient of the parameter of this name is taken."""
        return self.hooked is None or parameter in self.hooked

    def without(self, points: frozenset[Point]) -> Plan:
        """Return the plan with these points left out."""
        return replace(self, untapped=self.untapped | points)

    def without_taps(self) -> Plan:
        """Return the plan without gradients of inputs and results."""
        return replace(self, tap=Tap.NONE)

    def by_signature(self) -> Plan:
        """Return the plan with points that do not see how arguments were given."""
        return replace(self, by_call=False)

    def hooking(self, parameters: frozenset[str]) -> Plan:
        """Return the plan with gradients of these parameters only."""
        return replace(self, hooked=parameters)
