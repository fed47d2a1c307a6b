"""Curves that TensorBoard draws while the training runs: a directory for each quantity, with one growing file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from msprobe_core.errors import StoreError
from msprobe_core.hookspecs import hookimpl
from msprobe_core.monitoring.quantities import tag_of
from msprobe_core.protocols.monitoring import MonitoredValue, MonitorWriter, MonitorWriterFactory
from msprobe_core.store.event_file import event_file_name, first_record, scalars
from msprobe_core.store.layout import create_file, make_directory

_DIRECTORY = "tensorboard"


class _EventFiles:
    """Writes the values of a rank; see `msprobe_core.protocols.monitoring.MonitorWriter`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / _DIRECTORY
        self._files: dict[str, BinaryIO] = {}

    def add(self, step: int, values: Sequence[MonitoredValue]) -> None:
        """Append a step to the files of its quantities; the operating system has it when this returns.

        Raises:
            StoreError: a file cannot be written.
        """
        found: dict[str, list[tuple[str, float]]] = {}
        for value in values:
            own = found.setdefault(value.quantity, [])
            own += [
                (tag_of(value.stage, value.name, value.micro_step, op), float(number))
                for op, number in value.numbers.items()
            ]
        for quantity, numbers in found.items():
            file = self._files.get(quantity) or self._open(quantity)
            try:
                file.write(scalars(step, numbers, time.time()))
                file.flush()
            except OSError as error:
                raise StoreError(f"{file.name}: cannot be written ({error.strerror}); free space") from error

    def _open(self, quantity: str) -> BinaryIO:
        directory = self._directory / quantity
        make_directory(directory)
        file = self._files[quantity] = create_file(directory / event_file_name())
        file.write(first_record(time.time()))
        return file

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


class _EventFormat:
    name = "tensorboard"

    def open(self, directory: Path, rank: int, *, steps_per_file: int, ndigits: int) -> MonitorWriter:
        del rank, steps_per_file, ndigits
        return _EventFiles(directory)


@hookimpl
def msprobe_register_monitor_writers() -> Sequence[MonitorWriterFactory]:
    """Offer it."""
    return [_EventFormat()]
