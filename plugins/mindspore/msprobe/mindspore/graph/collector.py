"""Receives the values of compiled graphs, and passes them to their consumers.

A graph calls `Station.begin` for each call of a Cell, which assigns a number to the call, and `Station.end` at its end,
in program order. Gradients come with the number of their call, in any order. This module knows numbers only, no names,
because a graph outlives the window in which it was compiled.
"""

from __future__ import annotations

import _thread
import functools
import itertools
import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from msprobe.mindspore.graph.layouts import Layout, Layouts
from msprobe.mindspore.graph.plan import Plan, Points

_logger = logging.getLogger(__name__)

_Array = NDArray[Any]


class Taker(Protocol):
    """Consumes values; always called on the same thread."""

    @property
    def is_open(self) -> bool:
        """Whether it accepts calls that begin now."""
        ...

    def begin(self, number: int, layout: Layout, arrays: Sequence[_Array]) -> None:
        """Take the arguments and parameters of a call."""
        ...

    def end(self, number: int, layout: Layout, arrays: Sequence[_Array]) -> None:
        """Take the results of a call."""
        ...

    def gradient(self, number: int, place: int, array: _Array) -> None:
        """Take a gradient with respect to an argument or a result of a call."""
        ...

    def parameter_gradient(self, parameter: int, array: _Array) -> None:
        """Take the gradient with respect to a parameter, as accumulated so far."""
        ...

    def end_run(self) -> None:
        """Called when no graph is running."""
        ...


class Station:
    """The process's only receiver of values.

    Attributes:
        layouts: What graphs return of values.
        points: Where graphs return gradients.
        plan: The points of the graph that is being compiled.
    """

    def __init__(self) -> None:
        self.layouts = Layouts()
        self.points = Points()
        self.plan = Plan()
        self._cells = _Numbers()
        self._parameters = _Numbers()
        self._names: dict[int, tuple[str, ...]] = {}
        self._takers: list[Taker] = []
        self._counter = itertools.count(1)
        self._arriving: dict[int, _Arriving] = {}
        self._desk: _Desk | None = None

    # --- called by the compiler -------------------------------------------------------------------------------

    def number_of_cell(self, cell: object, parameters: Mapping[str, Any]) -> int:
        """Return the number that identifies a Cell in graphs; note the names of its own parameters."""
        number = self._cells.of(cell)
        self._names[number] = tuple(parameters)
        return number

    def number_of_parameter(self, parameter: object) -> int:
        """Return the number that identifies a parameter in graphs."""
        return self._parameters.of(parameter)

    def parameter_names(self, cell: int) -> tuple[str, ...]:
        """Return the names of a Cell's own parameters, in the graph's order."""
        return self._names[cell]

    # --- consumers --------------------------------------------------------------------------------------------

    def add(self, taker: Taker) -> None:
        """Pass values to a consumer from now on."""
        self._takers.append(taker)

    def remove(self, taker: Taker) -> None:
        """Pass no more values to a consumer."""
        if taker in self._takers:
            self._takers.remove(taker)

    def end_runs(self) -> None:
        """Notify all consumers that all graphs that were started have finished."""
        self._hand_over(lambda taker: taker.end_run())

    def _hand_over(self, work: Callable[[Taker], None]) -> None:
        takers = list(self._takers)
        if not takers:
            return
        if self._desk is None or self._desk.process != os.getpid():  # a thread does not outlive a fork
            self._desk = _Desk()
        # The backend calls from changing threads of its own, but the recorder keeps its state by thread.
        self._desk.run(lambda: [work(taker) for taker in takers])

    # --- called by graphs -------------------------------------------------------------------------------------

    def begin(self, layout: _Array, *arrays: _Array) -> int:
        """Begin a call, and return its number; 0 if no consumer wants it."""
        if not any(taker.is_open for taker in self._takers):
            return 0
        number = next(self._counter)
        described = self.layouts[int(layout[0])]
        self._arrive(number, _Arriving(described, lambda taker, all_: taker.begin(number, described, all_)), arrays)
        return number

    def end(self, layout: _Array, call: _Array, *arrays: _Array) -> int:
        """Take the results of a call; return its number."""
        number = int(call[0])
        if number:
            described = self.layouts[int(layout[0])]
            self._arrive(number, _Arriving(described, lambda taker, all_: taker.end(number, described, all_)), arrays)
        return number

    def more(self, call: _Array, *arrays: _Array) -> int:
        """Take further values of the arguments or results that are incomplete so far; return the call's number."""
        number = int(call[0])
        if number:
            self._arrive(number, self._arriving.pop(number), arrays)
        return number

    def _arrive(self, number: int, arriving: _Arriving, arrays: Sequence[_Array]) -> None:
        if arriving.is_complete_with(arrays):
            self._hand_over(lambda taker: arriving.hand_over(taker, [*arriving.arrays, *arrays]))
        else:
            # The backend reuses the arrays once this function returns.
            arriving.arrays += [array.copy() for array in arrays]
            self._arriving[number] = arriving

    def gradient(self, call: _Array, point: _Array, array: _Array) -> int:
        """Take a gradient with respect to an argument or a result of a call; return the call's number."""
        number = int(call[0])
        if number:
            self._hand_over(lambda taker: taker.gradient(number, self.points[int(point[0])].place, array))
        return number

    def parameter_gradient(self, parameter: _Array, array: _Array) -> int:
        """Take the gradient with respect to a parameter; return 0, since an operator must have a result."""
        if any(taker.is_open for taker in self._takers):
            self._hand_over(lambda taker: taker.parameter_gradient(int(parameter[0]), array))
        return 0


@functools.cache
def station() -> Station:
    """Return the instance of this process: graphs refer to it permanently."""
    return Station()


class _Arriving:
    """Values of the arguments or results of a call, some of which may not have arrived yet."""

    __slots__ = ("arrays", "hand_over", "num_expected")

    def __init__(self, layout: Layout, hand_over: Callable[[Taker, Sequence[_Array]], None]) -> None:
        self.num_expected = len(layout.read)
        self.arrays: list[_Array] = []
        self.hand_over = hand_over

    def is_complete_with(self, arrays: Sequence[_Array]) -> bool:
        return len(self.arrays) + len(arrays) >= self.num_expected


class _Numbers:
    """Numbers for objects, valid during the object's life and never reused."""

    def __init__(self) -> None:
        self._counter = itertools.count()
        self._numbers: dict[int, int] = {}

    def of(self, thing: object) -> int:
        number = self._numbers.get(id(thing))
        if number is None:
            number = self._numbers[id(thing)] = next(self._counter)
            weakref.finalize(thing, self._numbers.pop, id(thing), None).atexit = False
        return number


class _Desk:
    """A thread that executes one task at a time, while the caller waits."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._work: queue.SimpleQueue[tuple[Callable[[], object], threading.Lock]] = queue.SimpleQueue()
        # Not `threading`: its frames would appear in recorded call stacks, and the interpreter would wait for its end.
        _thread.start_new_thread(self._run, ())

    def run(self, work: Callable[[], object]) -> None:
        """Execute ``work`` and wait for its end; errors are logged, not raised."""
        done = threading.Lock()
        done.acquire()
        self._work.put((work, done))
        done.acquire()

    def _run(self) -> None:
        while True:
            work, done = self._work.get()
            try:
                work()
            except Exception:
                _logger.exception("a value of a static graph could not be recorded")
            finally:
                done.release()
