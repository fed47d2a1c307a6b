"""Batches of complete entries in execution order, for a writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from msprobe_core.capture.backward_collector import BackwardCollector
from msprobe_core.capture.call_tree import CallTree
from msprobe_core.capture.order import drop_empty_places, in_execution_order
from msprobe_core.capture.parameter_gradients import ParameterGradients
from msprobe_core.capture.recorded_call import BackwardEntry
from msprobe_core.capture.step_record import Finished, StepRecord
from msprobe_core.capture.tensor_reader import TensorReader
from msprobe_core.model import Batch, Entry


class BatchBuilder:
    """Takes entries from the recorder's parts, in an order that does not depend on the time of the call."""

    __slots__ = ("_backwards", "_num_written", "_parameters", "_reader", "_record", "_tree")

    def __init__(
        self,
        record: StepRecord,
        tree: CallTree,
        reader: TensorReader,
        backwards: BackwardCollector,
        parameters: ParameterGradients,
    ) -> None:
        """Begin at entry 0."""
        self._record = record
        self._tree = tree
        self._reader = reader
        self._backwards = backwards
        self._parameters = parameters
        self.reset()

    def reset(self) -> None:
        """Number entries from 0 again."""
        self._num_written = 0

    def drain(self) -> Batch:
        """Return everything recorded since the last call, complete and in execution order, and drop it."""
        with self._record.lock:
            self._reader.reducer.collect()
            entries = self._take([*self._record.finished, *self._parameters.take_all()], self._backwards.started)
            self._record.finished = []
            self._backwards.reset()
            return Batch(entries, self._tree.take_all_parents(entries))

    def drain_complete(self) -> Batch:
        """Return the part of the result of ``drain`` that later reports cannot change.

        So the order of entries does not depend on the time of this call. An entry is certain if it precedes every
        backward entry that waits for gradients or for inner calls, and every module that lacks gradients of some
        parameters. If more than `MAX_WAITING` entries wait for such an entry, all complete entries are returned. While
        digests are still on a device, the result is empty.
        """
        record = self._record
        with record.lock:
            if not self._reader.reducer.is_complete:
                return Batch([], {})
            entries = self._take_early(*self._certain())
            if record.is_overfull:
                held_back = self._around_incomplete()
                started = self._backwards.started
                complete = [one for one in started if one.is_complete and one.entry.name not in held_back]
                entries += self._take_early(record.finished, complete)
            return Batch(entries, self._tree.take_parents(entries))

    def _certain(self) -> tuple[Sequence[Finished], Sequence[BackwardEntry]]:
        """Return the entries that precede every entry that may still move or change."""
        finished, started, floor = self._record.finished, self._backwards.started, self._record.floor
        incomplete = self._parameters.incomplete
        uncertain = {one.entry.name for one in started if not one.is_complete} | incomplete.keys()
        if floor is not None:
            uncertain |= {entry.name for moment, entry, _ in finished if moment > floor}
            uncertain |= {one.entry.name for one in started if one.last_tick > floor}
        if not uncertain:
            return finished, started
        ordered = self._in_order([*finished, *incomplete.values()], started)
        certain = {entry.name for entry in takewhile(lambda entry: entry.name not in uncertain, ordered)}
        return (
            [one for one in finished if one[1].name in certain],
            [one for one in started if one.entry.name in certain],
        )

    def _take_early(self, finished: Sequence[Finished], backwards: Sequence[BackwardEntry]) -> list[Entry]:
        entries = self._take(finished, backwards)
        taken = {entry.name for entry in entries}
        self._record.finished = [one for one in self._record.finished if one[1].name not in taken]
        self._backwards.drop_written()
        return entries

    def _around_incomplete(self) -> set[str]:
        """Return the backward entries of calls that enclose waiting ones, and hence have to follow them."""
        around: set[str] = set()
        waiting = [backward for backward in self._backwards.started if not backward.is_complete]
        parents = self._parents_around([], waiting)
        for backward in waiting:
            parent = backward.entry.parent
            while parent is not None and parent not in around:
                around.add(parent)
                parent = parents.get(parent)
        return around

    def _parents_around(
        self, finished: Sequence[Finished], backwards: Sequence[BackwardEntry]
    ) -> Mapping[str, str | None]:
        """Return the parents of all calls that enclose the calls of these entries."""
        parents: dict[str, str | None] = {}
        tree = self._tree
        if not tree.tracks_parents:
            return parents
        in_backward = [backward.around for backward in backwards]
        for _, entry, around in finished:
            if around is not None and entry.parent == around.backward_name:  # an operator of a backward pass
                in_backward.append(around)
            else:
                tree.add_ancestors(around, parents)
        for around in in_backward:
            tree.add_backward_ancestors(around, parents)
        return parents | tree.parents_in_pass

    def _take(self, finished: Sequence[Finished], backwards: Sequence[BackwardEntry]) -> list[Entry]:
        for backward in backwards:
            backward.written = True
            entry = backward.entry
            backward.places = (entry.inputs, entry.outputs, entry.output_kwargs)
        entries = self._in_order(finished, backwards)
        is_judged = self._reader.check is not None
        for entry in entries:
            if is_judged:
                self._reader.judge(entry.name)
            entry.sequence = self._num_written
            self._num_written += 1
            drop_empty_places(entry)
        return entries

    def _in_order(self, finished: Sequence[Finished], backwards: Sequence[BackwardEntry]) -> list[Entry]:
        timed = [(time, entry) for time, entry, _ in finished]
        timed += [(backward.last_tick, backward.entry) for backward in backwards]
        return in_execution_order(timed, self._parents_around(finished, backwards))
