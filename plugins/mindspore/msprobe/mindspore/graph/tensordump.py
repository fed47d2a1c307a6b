"""Reads the files of ``TensorDump``, and passes their values on as if they had come while the graph ran.

A file is called ``{stem}_{dtype}_{n}.npy``, where n counts all files of the process in the order of their operators.
Forwards come in program order. A gradient belongs to the last earlier call that has none yet, since a backward pass
goes in reverse order; on Ascend there is no further information.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor, ops
from numpy.typing import NDArray

from msprobe.mindspore.graph.collector import Taker, station
from msprobe.mindspore.graph.layouts import Layouts
from msprobe.mindspore.graph.plan import Point
from msprobe_core.plugin import PluginError

_GRADIENT = re.compile(r".*/1_(?P<layout>\d+)_(?P<place>\d+)")
"""Path of a gradient, as returned by `Arrivals.stem`."""

_FILE = re.compile(r"(?P<kind>\d)_(?P<first>\d+)_(?P<second>\d+)_.*_(?P<order>\d+)\.npy")

_POLL_S = 0.02
_TIMEOUT_S = 600.0


class Kind(IntEnum):
    """What a file holds; the comments say what its two numbers are."""

    VALUE = 0  # a value of a call: layout, and position among its values
    GRADIENT = 1  # layout, and number of the tensor
    PARAMETER = 2  # number of the parameter, and 0
    FLAG = 3  # a counter; all files before it have been written


@dataclass(frozen=True, slots=True)
class _Arrival:
    kind: Kind
    first: int
    second: int
    order: int
    path: Path

    def read(self) -> NDArray[Any]:
        return np.load(self.path, allow_pickle=False)


class Arrivals:
    """The directory that graphs of this process write to."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="msprobe-graph-"))
        self._flags = itertools.count()
        atexit.register(shutil.rmtree, self._directory, ignore_errors=True)

    def stem(self, kind: Kind, first: int, second: int) -> str:
        """Return the path that a point writes to, without the suffix that ``TensorDump`` adds."""
        return str(self._directory / f"{kind.value}_{first}_{second}")

    def drop(self) -> None:
        """Delete files that were written while nothing was recorded."""
        self._wait()
        for arrival in self._listed():
            arrival.path.unlink(missing_ok=True)

    def replay(self, layouts: Layouts, taker: Taker) -> None:
        """Pass the values of all files to ``taker``, and delete the files.

        Raises:
            PluginError: expected files were not written in time.
        """
        self._wait()
        arrivals = self._listed()
        try:
            _Replay(layouts, taker).run(arrivals)
        finally:
            for arrival in arrivals:
                arrival.path.unlink(missing_ok=True)

    def _listed(self) -> list[_Arrival]:
        return sorted(self._arrivals(), key=lambda arrival: arrival.order)

    def _arrivals(self) -> Iterator[_Arrival]:
        for path in self._directory.iterdir():
            if (found := _FILE.fullmatch(path.name)) is not None:
                first, second, order = (int(found[name]) for name in ("first", "second", "order"))
                yield _Arrival(Kind(int(found["kind"])), first, second, order, path)

    def _wait(self) -> None:
        """Wait until all values have been written: files come with delay, but in order."""
        number = next(self._flags)
        ops.TensorDump()(self.stem(Kind.FLAG, number, 0), Tensor([number]))
        end = time.monotonic() + _TIMEOUT_S
        while not any(arrival.kind is Kind.FLAG and arrival.first == number for arrival in self._arrivals()):
            if time.monotonic() > end:
                raise PluginError(
                    f"{self._directory}: TensorDump has not written everything within {_TIMEOUT_S:.0f} s; for large "
                    "tensors raise MS_DUMP_SLICE_SIZE and MS_DUMP_WAIT_TIME"
                )
            time.sleep(_POLL_S)


class _Replay:
    """Assigns a list of files to calls."""

    def __init__(self, layouts: Layouts, taker: Taker) -> None:
        self._layouts = layouts
        self._taker = taker
        self._numbers = itertools.count(1)
        self._open: list[tuple[int, int]] = []
        self._coming: dict[int, list[_Arrival]] = {}
        self._waiting: dict[tuple[int, int], list[int]] = {}
        self._early: list[_Arrival] = []

    def run(self, arrivals: Sequence[_Arrival]) -> None:
        """Pass all values on."""
        take: dict[Kind, Callable[[_Arrival], object]] = {
            Kind.VALUE: self._take_value,
            Kind.GRADIENT: self._take_gradient,
            Kind.PARAMETER: lambda arrival: self._taker.parameter_gradient(arrival.first, arrival.read()),
            Kind.FLAG: lambda _: None,
        }
        for arrival in arrivals:
            take[arrival.kind](arrival)
        # Constants, such as the gradient of the loss, are written before the call that they belong to.
        early, self._early = self._early, []
        for arrival in early:
            self._take_gradient(arrival)
        self._taker.end_run()

    def _take_value(self, arrival: _Arrival) -> None:
        coming = self._coming.setdefault(arrival.first, [])
        coming.append(arrival)
        layout = self._layouts[arrival.first]
        if len(coming) < len(layout.read):
            return
        arrays = [item.read() for item in self._coming.pop(arrival.first)][: len(layout.read)]
        if not layout.is_end:
            number = next(self._numbers)
            self._open.append((number, layout.cell))
            self._expect_gradients(arrival.first, number)
            self._taker.begin(number, layout, arrays)
            return
        while self._open:
            number, cell = self._open.pop()
            if cell == layout.cell:
                self._expect_gradients(arrival.first, number)
                self._taker.end(number, layout, arrays)
                return

    def _expect_gradients(self, layout: int, number: int) -> None:
        for place in self._layouts[layout].read:
            self._waiting.setdefault((layout, place.number), []).append(number)

    def _take_gradient(self, arrival: _Arrival) -> None:
        waiting = self._waiting.get((arrival.first, arrival.second))
        if waiting:
            self._taker.gradient(waiting.pop(), arrival.second, arrival.read())
        else:
            self._early.append(arrival)


def point_in(path: str) -> Point | None:
    """Return the point whose gradients are written to ``path``; ``None`` if it is no path of a gradient."""
    found = _GRADIENT.fullmatch(path)
    return None if found is None else Point(station().layouts[int(found["layout"])].cell, int(found["place"]))


@functools.cache
def arrivals() -> Arrivals:
    """Return the instance of this process: graphs refer to its directory permanently."""
    return Arrivals()
