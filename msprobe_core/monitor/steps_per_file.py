"""Text files of values, each of a range of steps; a file appears by renaming, when its steps are complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from msprobe_core.protocols.monitoring import MonitoredValue
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.layout import make_directory


class StepFiles:
    """Writes the values of a rank; a `msprobe_core.protocols.monitoring.MonitorWriter`."""

    def __init__(
        self,
        directory: Path,
        steps_per_file: int,
        name_of: Callable[[str, int, int], str],
        text_of: Callable[[Sequence[MonitoredValue]], str],
    ) -> None:
        """Begin without files.

        Args:
            directory: Of the files; created with the first.
            steps_per_file: After how many steps to write.
            name_of: Returns the name of the file for a quantity, the first and the last step.
            text_of: Returns the text of a file with these values.
        """
        self._directory = directory
        self._steps_per_file = steps_per_file
        self._name_of = name_of
        self._text_of = text_of
        self._steps: list[tuple[int, Sequence[MonitoredValue]]] = []

    def add(self, step: int, values: Sequence[MonitoredValue]) -> None:
        """Take a step, and write the files that it completes.

        Raises:
            StoreError: a file cannot be written.
        """
        self._steps.append((step, values))
        if len(self._steps) >= self._steps_per_file:
            self.close()

    def close(self) -> None:
        """Write the steps that are not written yet, as files of fewer steps if need be.

        Raises:
            StoreError: a file cannot be written.
        """
        steps, self._steps = self._steps, []
        found: dict[str, list[MonitoredValue]] = {}
        for _, values in steps:
            for value in values:
                name = self._name_of(value.quantity, steps[0][0], steps[-1][0])
                found.setdefault(name, []).append(value)
        if not found:
            return
        make_directory(self._directory)
        for name, values in found.items():
            with whole_file(self._directory / name) as file:
                file.write(self._text_of(values).encode())
