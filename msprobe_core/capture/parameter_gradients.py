"""Gradients of parameters: an entry per module for each time that all its parameters have received a gradient."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msprobe_core import names
from msprobe_core.capture.call_tree import CallTree
from msprobe_core.capture.selection import Selection
from msprobe_core.capture.step_record import Finished, StepRecord
from msprobe_core.capture.tensor_reader import TensorReader
from msprobe_core.model import Entry, Phase, Role

_UNKNOWN = {""}
"""Expected parameters of a module if unknown; no parameter has an empty name, so such an entry never completes."""


class ParameterGradients:
    """Collects gradients of parameters by the stem of their module."""

    __slots__ = (
        "_counts", "_expected", "_numbers_written", "_reader", "_record", "_selection", "_takes", "_tree", "covered",
        "incomplete",
    )  # fmt: skip

    def __init__(
        self, selection: Selection, record: StepRecord, tree: CallTree, reader: TensorReader, *, keeps_values: bool
    ) -> None:
        """Begin without gradients; see `Recorder` for the arguments."""
        self._selection = selection
        self._record = record
        self._tree = tree
        self._reader = reader
        self._takes = keeps_values and selection.takes(Phase.PARAMETERS_GRAD, Role.PARAMETERS_GRAD)
        self.reset()

    def reset(self) -> None:
        """Drop all gradients."""
        self.incomplete: dict[str, Finished] = {}  # entries that may get further parameters, by name
        self.covered: set[str] = set()  # stems of called modules whose gradients are recorded
        self._expected: dict[str, set[str]] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._numbers_written: dict[str, int] = {}

    def expect(self, stem: str, parameters: Collection[str]) -> None:
        """Set which parameters of a module report gradients in this window."""
        with self._record.lock:
            self._expected.setdefault(stem, set()).update(parameters)

    def record(self, stem: str, name: str, gradient: Any, contribution: Any) -> None:
        """Record the accumulated gradient of one parameter, and the contribution of the current backward if given."""
        record = self._record
        with record.lock:
            if not record.is_open or not self._wants(stem):
                return
            index = max(self._counts.get((stem, name), 0), self._numbers_written.get(stem, 0))
            self._counts[stem, name] = index + 1
            entry_name = f"{stem}.{Phase.PARAMETERS_GRAD.value}.{index}"
            _, entry, _ = self.incomplete.pop(entry_name, (0, None, None))
            if entry is None:
                micro_step = self._tree.micro_steps().in_backward
                entry = Entry(name=entry_name, phase=Phase.PARAMETERS_GRAD, parameters={}, micro_step=micro_step)
            assert entry.parameters is not None
            entry.parameters[name] = self._reader.take(gradient, entry_name, "", name)
            if contribution is not None:
                added = f"{name}.{names.CONTRIBUTION}"
                entry.parameters[added] = self._reader.take(contribution, entry_name, "", added)
            if self._expected.get(stem, _UNKNOWN) <= entry.parameters.keys():
                record.add(entry)
            else:
                record.clock += 1
                self.incomplete[entry_name] = (record.clock, entry, None)

    def _wants(self, stem: str) -> bool:
        selection = self._selection
        # Do not require that the module was called: a tied parameter may belong to a module that never is.
        return self._takes and selection.is_inside and (not selection.has_patterns or stem in self.covered)

    def take_all(self) -> list[Finished]:
        """Return the incomplete entries, which get no further gradients."""
        for (stem, _), count in self._counts.items():
            self._numbers_written[stem] = max(count, self._numbers_written.get(stem, 0))
        taken = list(self.incomplete.values())
        self.incomplete = {}
        self._expected.clear()
        return taken
