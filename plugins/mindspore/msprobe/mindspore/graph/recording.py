"""Turns values of compiled graphs into calls of the recorder, with the names and records of the dynamic graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from msprobe.mindspore._cells import PREFIX
from msprobe.mindspore.graph.layouts import Layout, Place, Tree
from msprobe.mindspore.graph.values import GraphValues
from msprobe_core.interception import module_stem
from msprobe_core.plugin import Call, CallRecorder, CallWatcher, GradientSlot, TensorMeta

_Array = NDArray[Any]

_LANE = 1 << 32
_FORWARD, _BACKWARD, _PARAMETERS, _NUM_LANES = range(4)


class _Run:
    """One run of a graph: in the dump forward precedes backward, which precedes the gradients of parameters.

    The backend runs them in its own order: the end of the outermost Cell often comes last.
    """

    __slots__ = ("_clocks", "_recorder", "has_gradients", "last", "parameter_gradients")

    def __init__(self, recorder: CallRecorder, after: int) -> None:
        self._recorder = recorder
        self._clocks = [after + lane * _LANE for lane in range(_NUM_LANES)]
        self.last = after + _NUM_LANES * _LANE
        self.has_gradients = False
        self.parameter_gradients: dict[int, _Array] = {}

    @contextmanager
    def lane(self, number: int) -> Iterator[None]:
        """Return a block in which records get the position of this part of the run."""
        recorder = self._recorder
        if self.has_gradients:  # a forward call may still come, and must precede all gradients
            recorder.set_clock(self._clocks[number], self._clocks[_FORWARD])
        else:  # there may have been calls of the dynamic graph since
            recorder.set_clock(max(self._clocks[number], recorder.clock))
        try:
            yield
        finally:
            self._clocks[number] = recorder.clock


class _GraphCall:
    """A call of a Cell whose graph is running or has run."""

    __slots__ = ("call", "early", "has_ended", "has_gradients", "left_out", "num_inputs", "num_outputs", "run", "slots")

    def __init__(self, call: Call, run: _Run) -> None:
        self.call = call
        self.run = run
        self.slots: dict[int, tuple[GradientSlot, GraphValues]] = {}
        self.left_out: list[tuple[GradientSlot, GraphValues]] = []
        self.early: list[tuple[int, _Array]] = []
        self.num_inputs = 0
        self.num_outputs = 0
        self.has_ended = False
        self.has_gradients = False


class Recording:
    """Consumes the values of one window; see `collector.Taker`."""

    def __init__(
        self,
        recorder: CallRecorder,
        cells: Mapping[int, tuple[str, str]],
        parameters: Mapping[int, tuple[str, str, TensorMeta]],
        watchers: Sequence[CallWatcher] = (),
    ) -> None:
        """Begin without any calls.

        Args:
            recorder: Receives every call.
            cells: Path and class of each recorded Cell, by the Cell's number.
            parameters: Stem of its Cell, name and description of each parameter, by the parameter's number.
            watchers: Get the arguments of calls, when they have come out of the graph; they cannot replace them.
        """
        self._recorder = recorder
        self._watchers = watchers
        self._cells = cells
        self._parameters = parameters
        self._own = {(stem, name): meta for stem, name, meta in parameters.values()}
        self._calls: dict[int, _GraphCall] = {}
        self._run = _Run(recorder, recorder.clock)
        self._num_open = 0
        self._is_shut = False
        self.num_calls = 0
        self.around: object = ()  # the calls of the dynamic graph around a compiled function

    @property
    def is_open(self) -> bool:
        """Whether calls that begin now are recorded."""
        return not self._is_shut and self._recorder.is_open

    def shut(self) -> None:
        """Record no new calls; gradients of earlier calls are still recorded."""
        self._is_shut = True

    def _guarded(self, where: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  # the training must continue
            self._recorder.note_failure(where, error)

    def begin(self, number: int, layout: Layout, arrays: Sequence[_Array]) -> None:
        """Open a call, and record its arguments and parameters."""
        if not self.is_open or layout.cell not in self._cells:
            return
        path, type_name = self._cells[layout.cell]
        self._guarded(path, lambda: self._begin(number, path, type_name, layout, arrays))

    def _begin(self, number: int, path: str, type_name: str, layout: Layout, arrays: Sequence[_Array]) -> None:
        recorder = self._recorder
        if not self._num_open and self._run.has_gradients:
            self.end_run()
            self._run = _Run(recorder, max(self._run.last, recorder.clock))
        if not self._num_open:
            recorder.nest_in(self.around)
        self.num_calls += 1
        self._num_open += 1
        call = recorder.open_module(PREFIX, path, type_name)
        graph_call = self._calls[number] = _GraphCall(call, self._run)
        watchers = [watcher for watcher in self._watchers if watcher.wants(path, type_name)]
        if not (call.wants_forward or call.wants_gradients or watchers):
            return
        filled = _Filled(layout, arrays)
        args, kwargs = filled.tree(layout.tree)
        stem = module_stem(PREFIX, path, type_name)
        for watcher in watchers:
            watcher.before(stem, tuple(args), dict(kwargs))
            watcher.after(stem)
        if call.wants_forward:
            recorder.record_inputs(call, args, kwargs)
            own = {name: filled.value(place, self._own.get((stem, name))) for name, place in layout.parameters.items()}
            recorder.record_parameters(call, own)
        if call.wants_gradients:
            graph_call.num_inputs = _add_slots(graph_call, recorder.input_gradients(call, args, kwargs))

    def end(self, number: int, layout: Layout, arrays: Sequence[_Array]) -> None:
        """Record the results of a call, and close it."""
        graph_call = self._calls.get(number)
        if graph_call is not None:
            self._guarded(self._cells[layout.cell][0], lambda: self._end(graph_call, layout, arrays))

    def _end(self, graph_call: _GraphCall, layout: Layout, arrays: Sequence[_Array]) -> None:
        recorder, call = self._recorder, graph_call.call
        graph_call.has_ended = True
        self._num_open -= 1
        try:
            if not (call.wants_forward or call.wants_gradients):
                return
            output = _Filled(layout, arrays).tree(layout.tree)
            if call.wants_forward:
                recorder.record_outputs(call, output)
            if call.wants_gradients:
                graph_call.num_outputs = _add_slots(graph_call, recorder.output_gradients(call, output))
        finally:
            with graph_call.run.lane(_FORWARD):
                recorder.close(call)
        early, graph_call.early = graph_call.early, []
        for place, array in early:
            self._gradient(graph_call, place, array)

    def gradient(self, number: int, place: int, array: _Array) -> None:
        """Record a gradient of a call that has begun in this window."""
        graph_call = self._calls.get(number)
        if graph_call is None or not self._recorder.is_open or not graph_call.call.wants_gradients:
            return
        if graph_call.has_ended:
            self._guarded("a gradient", lambda: self._gradient(graph_call, place, array))
        else:
            # A constant, such as the gradient of the loss, may come before the call ends.
            graph_call.early.append((place, array.copy()))

    def _gradient(self, graph_call: _GraphCall, place: int, array: _Array) -> None:
        found = graph_call.slots.get(place)
        if found is None:
            return
        slot, values = found
        graph_call.run.has_gradients = True
        self._record(graph_call, slot, GraphValues(values.meta, array))

    def _record(self, graph_call: _GraphCall, slot: GradientSlot, gradient: GraphValues) -> None:
        if not graph_call.has_gradients:
            graph_call.has_gradients = True
            self._recorder.expect_gradients(graph_call.call, graph_call.num_outputs, graph_call.num_inputs)
        with graph_call.run.lane(_BACKWARD):
            self._recorder.record_gradient(graph_call.call, slot, gradient)

    def parameter_gradient(self, parameter: int, array: _Array) -> None:
        """Keep the gradient with respect to a parameter, as accumulated so far.

        With loops, branches or recomputed Cells it comes several times; the last one is complete.
        """
        if parameter in self._parameters and self.is_open:
            self._run.has_gradients = True
            self._run.parameter_gradients[parameter] = array.copy()

    def end_run(self) -> None:
        """Record gradients of parameters, and which gradients were left out: no graph is running now."""
        if self._run.has_gradients:
            self._guarded("a gradient", self._record_left_out)
        gradients = self._run.parameter_gradients
        for stem, name, _ in map(self._parameters.__getitem__, gradients):
            self._recorder.expect_parameter_gradients(stem, [name])
        while gradients:
            parameter = next(iter(gradients))
            stem, name, meta = self._parameters[parameter]
            values = GraphValues(meta, gradients.pop(parameter))
            with self._run.lane(_PARAMETERS):
                self._guarded(stem, partial(self._recorder.record_parameter_gradient, stem, name, values))
        self._recorder.set_clock(self._recorder.clock)

    def _record_left_out(self) -> None:
        for graph_call in reversed(self._calls.values()):
            if graph_call.run is self._run:
                left_out, graph_call.left_out = graph_call.left_out, []
                for slot, values in left_out:
                    self._record(graph_call, slot, GraphValues(values.meta, None, is_left_out=True))


def _add_slots(graph_call: _GraphCall, slots: Sequence[tuple[GradientSlot, Any]]) -> int:
    for slot, values in slots:
        graph_call.slots[values.number] = slot, values
        if values.is_left_out:
            graph_call.left_out.append((slot, values))
    return len(slots)


class _Filled:
    """A layout with the arrays that have arrived for its tensors."""

    def __init__(self, layout: Layout, arrays: Sequence[_Array]) -> None:
        self._arrays = {place.number: array for place, array in zip(layout.read, arrays, strict=False)}

    def value(self, place: Place, meta: TensorMeta | None = None) -> GraphValues:
        """Return the values of one tensor; ``meta`` replaces the description in the layout."""
        array = self._arrays.get(place.number)
        if array is None and place.is_empty:
            array = np.empty(place.meta.shape, np.float32)
        return GraphValues(
            meta or place.meta,
            array,
            number=place.number,
            takes_gradient=place.takes_gradient,
            is_left_out=place.is_left_out,
        )

    def tree(self, tree: Tree) -> Any:
        """Return the arguments or results, with values in place of tensors."""
        if isinstance(tree, Place):
            return self.value(tree)
        if isinstance(tree, Mapping):
            return {name: self.tree(item) for name, item in cast("Mapping[str, Tree]", tree).items()}
        if type(tree) in (tuple, list):
            items = [self.tree(item) for item in cast("Sequence[Tree]", tree)]
            return items if isinstance(tree, list) else tuple(items)
        return tree
