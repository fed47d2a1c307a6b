"""Collection of gradients with respect to inputs and results of calls, over any number of backward passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msprobe_core.capture.call_tree import CallTree
from msprobe_core.capture.recorded_call import BackwardEntry, RecordedCall, Slot, as_results, backward_name_of
from msprobe_core.capture.selection import Selection
from msprobe_core.capture.step_record import StepRecord
from msprobe_core.capture.tensor_reader import TensorReader
from msprobe_core.capture.values import ValueBuilder
from msprobe_core.model import Entry, GradientSlot, Phase, Role, Value
from msprobe_core.protocols.framework import Framework


class BackwardCollector:
    """Collects the backward entries of calls: one for each call and backward pass."""

    __slots__ = (
        "_keeps_values", "_later", "_lock", "_reader", "_record", "_selection", "_skeletons", "_take",
        "_takes_gradient", "_tree", "started",
    )  # fmt: skip

    def __init__(
        self,
        framework: Framework,
        selection: Selection,
        record: StepRecord,
        tree: CallTree,
        reader: TensorReader,
        *,
        keeps_values: bool,
    ) -> None:
        """Begin without entries; see `Recorder` for the arguments."""
        self._takes_gradient = framework.takes_gradient
        self._skeletons = ValueBuilder(framework, reader.note_failure, tensors_only=True)
        self._selection = selection
        self._record = record
        self._lock = record.lock
        self._tree = tree
        self._reader = reader
        self._take = reader.take
        self._keeps_values = keeps_values
        self.reset()

    def reset(self) -> None:
        """Drop all entries and passes."""
        self.started: list[BackwardEntry] = []  # entries with at least one gradient that are not written yet
        self._later: dict[tuple[RecordedCall, int], BackwardEntry] = {}

    def drop_written(self) -> None:
        """Drop entries that have been written; their missing gradients are no longer expected."""
        self.started = [backward for backward in self.started if not backward.written]
        if self._later:
            self._later = {key: later for key, later in self._later.items() if not later.written}

    # --- slots ------------------------------------------------------------------------------------------------

    def input_gradients(
        self, call: RecordedCall, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[tuple[GradientSlot, Any]]:
        """Return a slot for each tensor among the arguments that requires a gradient."""
        if not self._selection.takes(Phase.BACKWARD, Role.OUTPUT):
            return []
        slots: list[tuple[GradientSlot, Any]] = []
        entry = _backward_entry(call)
        entry.outputs = self._skeletons.positional(args, self._slot_maker("output", slots))
        entry.output_kwargs = self._skeletons.named(kwargs, self._slot_maker("output", slots)) if kwargs else None
        return slots

    def output_gradients(self, call: RecordedCall, output: Any) -> list[tuple[GradientSlot, Any]]:
        """Return a slot for each tensor in the result that requires a gradient."""
        if not self._selection.takes(Phase.BACKWARD, Role.INPUT):
            return []
        slots: list[tuple[GradientSlot, Any]] = []
        entry = _backward_entry(call)
        entry.inputs = self._skeletons.positional(as_results(output), self._slot_maker("input", slots))
        return slots

    def _slot_maker(self, category: str, slots: list[tuple[GradientSlot, Any]]) -> Callable[[Any, str], Value]:
        takes_gradient = self._takes_gradient

        def make(tensor: Any, path: str) -> Value:
            if not takes_gradient(tensor):
                return None
            slot = Slot(category=category, path=path)
            slots.append((slot, tensor))
            return slot

        return make

    def expect_gradients(self, call: RecordedCall, num_outputs: int, num_inputs: int) -> None:
        """Set the number of slots that a backward pass through the whole graph fills."""
        if call.backward is not None:
            call.backward.num_expected = num_outputs + num_inputs
            call.backward.encloses = call.encloses
            if self._tree.tracks_parents and call.backward.num_expected:
                with self._lock:
                    self._tree.parents[call.backward_name] = call.backward.entry.parent

    # --- gradients --------------------------------------------------------------------------------------------

    def record_gradient(self, call: RecordedCall, slot: GradientSlot, gradient: Any, backward_pass: int = -1) -> None:
        """Store a gradient in its slot. A gradient that arrives after its entry was written is counted as late."""
        assert isinstance(slot, Slot)
        backward = call.backward
        assert backward is not None
        if not self._keeps_values:
            return
        record, selection = self._record, self._selection
        with self._lock:
            if not record.is_open:
                return
            if call.step != record.number:
                record.note_late(call.backward_name)
                return
            if backward.backward_pass != backward_pass:
                if backward.backward_pass is None:
                    backward.backward_pass = backward_pass
                elif (later := self._later_pass(call, backward, backward_pass)) is not None:
                    backward, slot = later, later.slots[id(slot)]
                else:
                    record.note_late(call.name_in_pass(call.num_later))
                    return
            name = backward.entry.name
            if backward.written or slot.value is not None:
                record.note_late(name)
                return
            place = self._tree.micro_steps()
            place.in_backward = call.micro_step
            selection.begin(name)
            if selection.is_inside:
                if not backward.begun:
                    backward.begin(place)
                    self.started.append(backward)
                slot.value = self._take(gradient, name, slot.category, slot.path)
            record.clock += 1
            backward.last_tick = record.clock
            backward.num_filled += 1
            if backward.num_filled == backward.num_expected:
                selection.end(name)
                self._reader.judge(name)
            record.offer_backlog()

    def _later_pass(self, call: RecordedCall, first: BackwardEntry, backward_pass: int) -> BackwardEntry | None:
        """Return the entry for a further backward pass through the same graph.

        The pass may reach only a part of the call; its entry then has only that part. ``None`` if the entry was written
        before the pass ended.
        """
        known = self._later.get((call, backward_pass))
        if known is not None:
            return known
        if call.last_pass == backward_pass:
            return None
        call.num_later += 1
        call.last_pass = backward_pass
        entry = Entry(
            name=call.name_in_pass(call.num_later),
            phase=Phase.BACKWARD,
            parent=self._parent_in_pass(call.parent, call.num_later, backward_pass),
            micro_step=call.micro_step,
        )
        later = self._later[call, backward_pass] = BackwardEntry(entry, call.parent)
        later.take_places_of(first)
        if self._tree.tracks_parents:
            self._tree.parents[entry.name] = self._tree.parents_in_pass[entry.name] = entry.parent
        return later

    def _parent_in_pass(self, parent: RecordedCall | None, number: int, backward_pass: int) -> str | None:
        """Return the name of the parent's backward entry, for a pass that is number ``number`` of the inner call."""
        if parent is None:
            return None
        first = parent.backward
        if first is None:  # not recorded, so its own passes are unknown
            return parent.name_in_pass(number)
        if first.backward_pass is None or first.backward_pass == backward_pass:
            return parent.backward_name
        later = self._later_pass(parent, first, backward_pass)
        return parent.name_in_pass(parent.num_later) if later is None else later.entry.name


def _backward_entry(call: RecordedCall) -> Entry:
    if call.backward is None:
        parent = backward_name_of(call.parent)
        entry = Entry(name=call.backward_name, phase=Phase.BACKWARD, parent=parent, micro_step=call.micro_step)
        call.backward = BackwardEntry(entry, call.parent)
    return call.backward.entry
