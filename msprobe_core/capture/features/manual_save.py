"""Values saved by the training program itself: ``PrecisionDebugger.save`` at level debug."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msprobe_core import names
from msprobe_core.capture.features.feature import Feature
from msprobe_core.capture.recorded_call import Slot
from msprobe_core.capture.step_record import StepRecord
from msprobe_core.capture.tensor_reader import TensorReader
from msprobe_core.capture.values import ValueBuilder
from msprobe_core.guard import reason_of
from msprobe_core.model import Entry, Failure, Phase, Value
from msprobe_core.protocols.framework import Framework


class _Gradients:
    """The gradients of one saved value, while they arrive."""

    __slots__ = ("entry", "num_missing", "step")

    def __init__(self, entry: Entry, step: int) -> None:
        self.entry = entry
        self.num_missing = 0
        self.step = step


class SavedValues(Feature):
    """Adds the values given to ``save`` to the record of a step; nothing is intercepted."""

    def __init__(self, framework: Framework, record: StepRecord, reader: TensorReader) -> None:
        """Begin without values.

        Args:
            framework: Recognises tensors and watches their gradients.
            record: Receives the entries.
            reader: Reads the tensors.
        """
        self._framework = framework
        self._record = record
        self._reader = reader
        self._values = ValueBuilder(framework, reader.note_failure)
        self._skeletons = ValueBuilder(framework, reader.note_failure, tensors_only=True)
        self._begin_step()

    def _begin_step(self) -> None:
        self._next_indices: dict[str, int] = {}
        self._waiting: list[_Gradients] = []
        self._removals: dict[int, Callable[[], None]] = {}

    def save(self, variable: Any, name: str, *, save_backward: bool) -> None:
        """Record the current value and, with ``save_backward``, the gradients of its tensors within this step.

        Args:
            variable: A tensor, a number, a text, or a dict, list or tuple of these, nested to any depth.
            name: Name of the entry; the n-th value of a name within a step is ``{name}.{n}.debug``.
            save_backward: Whether gradients are recorded too, as ``{name}_grad.{n}.debug``.
        """
        note_failure = self._reader.note_failure
        with self._record.lock, self._framework.quiet(note_failure):
            entry = self._new_entry(name)
            (value,) = self._values.positional([variable], self._taker_of(entry.name))
            if value is None:
                self._next_indices[name] -= 1
                kind = type(variable).__qualname__
                note_failure(entry.name, TypeError(f"save() takes tensors, numbers and text, not {kind}"))
                return
            entry.outputs = [value]
            self._record.add(entry)
            if save_backward:
                self._watch(variable, f"{name}{names.SAVED_GRADIENT}")
        self._offer()

    def finish_step(self) -> None:
        """Add entries with missing gradients, and number values from 0 again."""
        with self._record.lock:
            for remove in self._removals.values():
                remove()
            for gradients in self._waiting:
                self._record.add(gradients.entry)
            self._begin_step()

    def _new_entry(self, name: str) -> Entry:
        index = self._next_indices.get(name, 0)
        self._next_indices[name] = index + 1
        return Entry(name=names.saved_entry(name, index), phase=Phase.DEBUG)

    def _taker_of(self, entry: str) -> Callable[[Any, str], Value]:
        return lambda tensor, path: self._reader.take(tensor, entry, "", names.path_within(path))

    def _watch(self, variable: Any, name: str) -> None:
        gradients = _Gradients(self._new_entry(name), self._record.number)

        def watch(tensor: Any, path: str) -> Value:
            slot = Slot(path=names.path_within(path))
            try:
                remove = self._framework.watch_gradient(tensor, lambda part: self._receive(gradients, slot, part))
            except Exception as error:  # noqa: BLE001  # a tensor without a gradient must not affect others
                self._reader.note_failure(names.tensor_file_stem(gradients.entry.name, "", slot.path), error)
                return Failure(reason_of(error))
            if remove is None:
                return None
            self._removals[id(slot)] = remove
            gradients.num_missing += 1
            return slot

        gradients.entry.outputs = self._skeletons.positional([variable], watch)
        if gradients.num_missing:
            self._waiting.append(gradients)
        else:
            self._record.add(gradients.entry)

    def _receive(self, gradients: _Gradients, slot: Slot, gradient: Any) -> None:
        record = self._record
        with record.lock:
            # Once only: with the next micro-batch a parameter gets another gradient, which does not belong to this
            # value.
            remove = self._removals.pop(id(slot), None)
            if remove is None or not record.is_open or gradients.step != record.number:
                record.note_late(gradients.entry.name)
                return
            remove()
            slot.value = self._reader.take(gradient, gradients.entry.name, "", slot.path)
            gradients.num_missing -= 1
            if gradients.num_missing or gradients not in self._waiting:
                return
            self._waiting.remove(gradients)
            record.add(gradients.entry)
        self._offer()

    def _offer(self) -> None:
        if self._record.on_backlog is not None:
            self._record.on_backlog()
