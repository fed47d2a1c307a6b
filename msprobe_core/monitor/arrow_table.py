"""Values as a growing table, ``values_0.arrow``: one row for each tensor or other object, quantity and step.

Every window of steps is a closed record batch, so a process that is killed loses the window that it was in. Quantities
with columns of their own are in further files, ``values_1.arrow`` and so on. Texts are stored once per batch, and
numbers as float64, compressed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe_core.hookspecs import hookimpl
from msprobe_core.model import RunHeader
from msprobe_core.protocols.monitoring import MonitoredValue, MonitorWriter, MonitorWriterFactory
from msprobe_core.store.layout import make_directory

if TYPE_CHECKING:
    from msprobe_core.store.arrow_columns import Cell
    from msprobe_core.store.arrow_writer import ArrowStream

_MAX_ROWS = 1 << 16
"""Rows of a batch: a window that has more is several."""

_HEADER = RunHeader(task="monitor", level="", framework="", has_extra_info=False)


class _ArrowTable:
    """Writes the values of a rank; see `msprobe_core.protocols.monitoring.MonitorWriter`."""

    def __init__(self, directory: Path, rank: int, steps_per_batch: int) -> None:
        self._directory = directory
        self._rank = rank
        self._steps_per_batch = steps_per_batch
        self._num_steps = 0
        self._values: list[MonitoredValue] = []
        self._streams: dict[tuple[str, ...], ArrowStream] = {}

    def add(self, step: int, values: Sequence[MonitoredValue]) -> None:
        """Take a step, and append a window that it completes.

        Raises:
            StoreError: a file cannot be written.
        """
        del step
        self._values += values
        self._num_steps += 1
        if self._num_steps >= self._steps_per_batch:
            self._append()

    def close(self) -> None:
        """Append what is left.

        Raises:
            StoreError: a file cannot be written.
        """
        try:
            self._append()
        finally:
            for stream in self._streams.values():
                stream.close()

    def _append(self) -> None:
        values, self._values, self._num_steps = self._values, [], 0
        found: dict[tuple[str, ...], list[MonitoredValue]] = {}
        for value in values:
            found.setdefault(tuple(value.numbers), []).append(value)
        for numbers, own in found.items():
            stream, columns = self._stream(numbers)
            for first in range(0, len(own), _MAX_ROWS):
                _append_rows(stream, columns, self._rank, own[first : first + _MAX_ROWS], numbers)

    def _stream(self, numbers: tuple[str, ...]) -> tuple[ArrowStream, Mapping[str, Cell]]:
        from msprobe_core.store.arrow_columns import FORMAT_VERSION, Cell, FileHeader  # imports NumPy, slow to load
        from msprobe_core.store.arrow_writer import ArrowStream
        from msprobe_core.store.monitor_columns import KEY_COLUMNS

        columns = {**KEY_COLUMNS, **dict.fromkeys(numbers, Cell.NUMBER)}
        if numbers not in self._streams:
            make_directory(self._directory)
            path = next(path for path in self._paths() if not path.exists())
            self._streams[numbers] = ArrowStream(path, columns, FileHeader(FORMAT_VERSION, _HEADER))
        return self._streams[numbers], columns

    def _paths(self) -> Iterator[Path]:
        return (self._directory / f"values_{number}.arrow" for number in count())


def _append_rows(
    stream: ArrowStream,
    columns: Mapping[str, Cell],
    rank: int,
    values: Sequence[MonitoredValue],
    numbers: Sequence[str],
) -> None:
    from msprobe_core.store.arrow_columns import to_small_batch

    shapes = {shape: None if shape is None else str(list(shape)) for shape in {value.shape for value in values}}
    cells = [
        [rank] * len(values),
        [value.step for value in values],
        [value.micro_step for value in values],
        [value.stage for value in values],
        [value.quantity for value in values],
        [value.name for value in values],
        [shapes[value.shape] for value in values],
        [value.dtype for value in values],
        *([value.numbers[name] for value in values] for name in numbers),
    ]
    stream.append(to_small_batch(columns, cells))


class _ArrowFormat:
    name = "arrow"

    def open(self, directory: Path, rank: int, *, steps_per_file: int, ndigits: int) -> MonitorWriter:
        from msprobe_core.store.arrow_columns import import_pyarrow

        del ndigits
        import_pyarrow()  # so that a library that is missing is said before the training begins
        return _ArrowTable(directory, rank, steps_per_file)


@hookimpl
def msprobe_register_monitor_writers() -> Sequence[MonitorWriterFactory]:
    """Offer it."""
    return [_ArrowFormat()]
