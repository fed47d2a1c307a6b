"""Where the values of compiled graphs arrive, and who takes them.

A graph calls `Station.begin` for each call of a Cell, which gives the call a number, and `Station.end` at its end, in
the order of the program; gradients come with the number of their call, in any order. Nothing is known of names here: a
graph outlives the window that it was compiled in.
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
    """Takes what arrives, always on the same thread."""

    @property
    def is_open(self) -> bool:
        """Whether it wants calls that begin now."""
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
        """Take the gradient with respect to a parameter, as far as it has been added up."""
        ...

    def end_run(self) -> None:
        """Take note that no graph is running."""
        ...


class Station:
    """The process's one place of arrival.

    Attributes:
        layouts: What graphs hand out of values.
        points: What they hand out of gradients.
        plan: What the graph is to hand out that is compiled now.
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

    # --- what the compiler asks -------------------------------------------------------------------------------

    def number_of_cell(self, cell: object, parameters: Mapping[str, Any]) -> int:
        """Return the number by which graphs know a Cell with these parameters of its own."""
        number = self._cells.of(cell)
        self._names[number] = tuple(parameters)
        return number

    def number_of_parameter(self, parameter: object) -> int:
        """Return the number by which graphs know a parameter."""
        return self._parameters.of(parameter)

    def parameter_names(self, cell: int) -> tuple[str, ...]:
        """Return the names of a Cell's own parameters, in the order in which the graph has them."""
        return self._names[cell]

    # --- who takes --------------------------------------------------------------------------------------------

    def add(self, taker: Taker) -> None:
        """Let somebody take what arrives from now on."""
        self._takers.append(taker)

    def remove(self, taker: Taker) -> None:
        """Let him take nothing any more."""
        if taker in self._takers:
            self._takers.remove(taker)

    def end_runs(self) -> None:
        """Tell everybody that all graphs that were started are through."""
        self._hand_over(lambda taker: taker.end_run())

    def _hand_over(self, work: Callable[[Taker], None]) -> None:
        takers = list(self._takers)
        if not takers:
            return
        if self._desk is None or self._desk.process != os.getpid():  # a thread does not outlive a fork
            self._desk = _Desk()
        # The backend calls from threads of its own, now from this one, now from that; whoever records goes by threads.
        self._desk.run(lambda: [work(taker) for taker in takers])

    # --- what graphs call -------------------------------------------------------------------------------------

    def begin(self, layout: _Array, *arrays: _Array) -> int:
        """Take note that a call has begun, and return its number; 0 if nobody wants it."""
        if not any(taker.is_open for taker in self._takers):
            return 0
        number = next(self._counter)
        described = self.layouts[int(layout[0])]
        self._arrive(number, _Arriving(described, lambda taker, all_: taker.begin(number, described, all_)), arrays)
        return number

    def end(self, layout: _Array, call: _Array, *arrays: _Array) -> int:
        """Take the results of a call."""
        number = int(call[0])
        if number:
            described = self.layouts[int(layout[0])]
            self._arrive(number, _Arriving(described, lambda taker, all_: taker.end(number, described, all_)), arrays)
        return number

    def more(self, call: _Array, *arrays: _Array) -> int:
        """Take further values of what is arriving of a call."""
        number = int(call[0])
        if number:
            self._arrive(number, self._arriving.pop(number), arrays)
        return number

    def _arrive(self, number: int, arriving: _Arriving, arrays: Sequence[_Array]) -> None:
        if arriving.is_complete_with(arrays):
            self._hand_over(lambda taker: arriving.hand_over(taker, [*arriving.arrays, *arrays]))
        else:
            # What is handed in belongs to the backend once the function returns.
            arriving.arrays += [array.copy() for array in arrays]
            self._arriving[number] = arriving

    def gradient(self, call: _Array, point: _Array, array: _Array) -> int:
        """Take a gradient with respect to an argument or a result of a call."""
        number = int(call[0])
        if number:
            self._hand_over(lambda taker: taker.gradient(number, self.points[int(point[0])].place, array))
        return number

    def parameter_gradient(self, parameter: _Array, array: _Array) -> int:
        """Take the gradient with respect to a parameter."""
        if any(taker.is_open for taker in self._takers):
            self._hand_over(lambda taker: taker.parameter_gradient(int(parameter[0]), array))
        return 0


@functools.cache
def station() -> Station:
    """Return the station: graphs refer to it as long as the process lives."""
    return Station()


class _Arriving:
    """Values of one end of a call, of which some may be missing."""

    __slots__ = ("arrays", "hand_over", "num_expected")

    def __init__(self, layout: Layout, hand_over: Callable[[Taker, Sequence[_Array]], None]) -> None:
        self.num_expected = len(layout.read)
        self.arrays: list[_Array] = []
        self.hand_over = hand_over

    def is_complete_with(self, arrays: Sequence[_Array]) -> bool:
        return len(self.arrays) + len(arrays) >= self.num_expected


class _Numbers:
    """Numbers for objects, which last as long as they do and are not given again."""

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
    """A thread that does one thing after the other, while whoever wants it done waits."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._work: queue.SimpleQueue[tuple[Callable[[], object], threading.Lock]] = queue.SimpleQueue()
        # Not of `threading`: its frames would be found wherever a call came from, and it is waited for at the end.
        _thread.start_new_thread(self._run, ())

    def run(self, work: Callable[[], object]) -> None:
        """Return when it is done; it raises nothing."""
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
