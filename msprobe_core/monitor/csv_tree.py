"""The files of the monitor: a CSV file for each quantity and range of steps, in a directory for each rank."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from msprobe_core.hookspecs import hookimpl
from msprobe_core.protocols.monitoring import MonitoredValue, MonitorWriter, MonitorWriterFactory
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.layout import make_directory


class _CsvTree:
    """Writes the values of a rank; a file appears by renaming, when its steps are complete."""

    def __init__(self, directory: Path, steps_per_file: int, ndigits: int) -> None:
        self._directory = directory
        self._steps_per_file = steps_per_file
        self._ndigits = ndigits
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
                found.setdefault(value.quantity, []).append(value)
        if not found:
            return
        make_directory(self._directory)
        for quantity, values in found.items():
            with whole_file(self._directory / f"{quantity}_{steps[0][0]}-{steps[-1][0]}.csv") as file:
                file.write(self._text_of(values).encode())

    def _text_of(self, values: Sequence[MonitoredValue]) -> str:
        has_micro_steps, has_tensors = values[0].micro_step is not None, values[0].shape is not None
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        micro_step = ["micro_step"] if has_micro_steps else []
        tensor = ["shape", "dtype"] if has_tensors else []
        rows.writerow(["vpp_stage", "name", "step", *micro_step, *values[0].numbers, *tensor])
        for value in values:
            rows.writerow(
                [
                    value.stage,
                    value.name,
                    value.step,
                    *([value.micro_step] if has_micro_steps else []),
                    *(self._rounded(number) for number in value.numbers.values()),
                    *([str(list(value.shape or ())), value.dtype] if has_tensors else []),
                ]
            )
        return text.getvalue()

    def _rounded(self, number: float) -> float | int:
        return round(number, self._ndigits) if isinstance(number, float) else number


class _CsvFormat:
    name = "csv"

    def open(self, directory: Path, rank: int, *, steps_per_file: int, ndigits: int) -> MonitorWriter:
        del rank
        return _CsvTree(directory, steps_per_file, ndigits)


@hookimpl
def msprobe_register_monitor_writers() -> Sequence[MonitorWriterFactory]:
    """Offer it."""
    return [_CsvFormat()]
