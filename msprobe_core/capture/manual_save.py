"""Values that the training program saves itself: ``PrecisionDebugger.save`` at level debug."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from msprobe_core import names
from msprobe_core.capture.recorder import Recorder, Slot, TensorSink
from msprobe_core.capture.selection import Selection
from msprobe_core.capture.values import reason_of
from msprobe_core.config import TaskOptions
from msprobe_core.model import Entry, Failure, Phase, Value
from msprobe_core.protocols.framework import Framework
from msprobe_core.protocols.storage import Processor

_logger = logging.getLogger(__name__)


class _Gradients:
    """The gradients of one saved value while they arrive."""

    __slots__ = ("entry", "num_missing", "step")

    def __init__(self, entry: Entry, step: int) -> None:
        self.entry = entry
        self.num_missing = 0
        self.step = step


class SavedRecorder(Recorder):
    """Collects the values that are handed to ``save``; nothing is intercepted."""

    def __init__(self, framework: Framework, processor: Processor, *, keep_tensor: TensorSink | None) -> None:
        """Begin with nothing saved; see `Recorder`."""
        super().__init__(
            framework,
            processor,
            Selection(TaskOptions()),
            stacks=None,
            tracks_parents=False,
            expands_modules=False,
            keep_tensor=keep_tensor,
        )
        # Nobody watches who writes to tensors here, so each is read whenever it is saved.
        self._identity = _no_identity

    def _reset(self) -> None:
        super()._reset()
        self._next_indices: dict[str, int] = {}
        self._waiting: list[_Gradients] = []
        self._removals: dict[int, Callable[[], None]] = {}

    def save(self, variable: Any, name: str, *, save_backward: bool) -> None:
        """Take a value as it is now and, if asked to, the gradients that its tensors get within this step.

        Args:
            variable: A tensor, a number or text, or a dict, list or tuple of such, nested as one likes.
            name: What it is to be called; the n-th value of a name within a step is ``{name}.{n}.debug``.
            save_backward: Whether gradients are taken too, as ``{name}_grad.{n}.debug``.
        """
        with self._lock, self._framework.quiet(self.note_failure):
            entry = self._new_entry(name)
            (value,) = self._values.positional([variable], self._taker_of(entry.name))
            if value is None:
                self._next_indices[name] -= 1
                kind = type(variable).__qualname__
                self.note_failure(entry.name, TypeError(f"save() takes tensors, numbers and text, not {kind}"))
                return
            self._finish(entry, value)
            if save_backward:
                self._watch(variable, f"{name}{names.SAVED_GRADIENT}")
        if self.on_backlog is not None:
            self.on_backlog()

    def end_step(self) -> None:
        """Wait for no gradient any more: hand over what is there."""
        with self._lock:
            for remove in self._removals.values():
                remove()
            self._removals = {}
            waiting, self._waiting = self._waiting, []
            for gradients in waiting:
                self._finished.append((self._next_tick(), gradients.entry, None))

    def _new_entry(self, name: str) -> Entry:
        index = self._next_indices.get(name, 0)
        self._next_indices[name] = index + 1
        entry_name = names.saved_entry(name, index)
        return Entry(name=entry_name, phase=Phase.DEBUG)

    def _finish(self, entry: Entry, value: Value) -> None:
        entry.outputs = [value]
        self._finished.append((self._next_tick(), entry, None))

    def _taker_of(self, entry: str) -> Callable[[Any, str], Value]:
        return lambda tensor, path: self._take(tensor, entry, "", names.path_within(path))

    def _watch(self, variable: Any, name: str) -> None:
        gradients = _Gradients(self._new_entry(name), self._step)

        def watch(tensor: Any, path: str) -> Value:
            slot = Slot(path=names.path_within(path))
            try:
                remove = self._framework.watch_gradient(tensor, lambda part: self._receive(gradients, slot, part))
            except Exception as error:  # noqa: BLE001  # one tensor whose gradient cannot be had costs no other
                self.note_failure(names.tensor_file_stem(gradients.entry.name, "", slot.path), error)
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
            self._finished.append((self._next_tick(), gradients.entry, None))

    def _receive(self, gradients: _Gradients, slot: Slot, gradient: Any) -> None:
        with self._lock:
            # Once: a parameter gets another gradient with the next micro-batch, which is not that of this value.
            remove = self._removals.pop(id(slot), None)
            if remove is None or not self._is_open or gradients.step != self._step:
                self._note_late(gradients.entry.name)
                return
            remove()
            slot.value = self._take(gradient, gradients.entry.name, "", slot.path)
            gradients.num_missing -= 1
            if gradients.num_missing or gradients not in self._waiting:
                return
            self._waiting.remove(gradients)
            self._finished.append((self._next_tick(), gradients.entry, None))
        if self.on_backlog is not None:
            self.on_backlog()


def _no_identity(_tensor: Any) -> None:
    return None
