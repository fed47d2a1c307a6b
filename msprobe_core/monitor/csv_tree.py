"""The files of the monitor: a CSV file for each quantity and range of steps, in a directory for each rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msprobe_core.hookspecs import hookimpl
from msprobe_core.monitor.steps_per_file import StepFiles
from msprobe_core.protocols.monitoring import MonitoredValue, MonitorWriter, MonitorWriterFactory
from msprobe_core.store.atomic_file import csv_text


def _file_name(quantity: str, first: int, last: int) -> str:
    return f"{quantity}_{first}-{last}.csv"


def _text_of(ndigits: int, values: Sequence[MonitoredValue]) -> str:
    has_micro_steps, has_tensors = values[0].micro_step is not None, values[0].shape is not None
    columns = list(dict.fromkeys(column for value in values for column in value.numbers))  # may differ by step
    micro_step = ["micro_step"] if has_micro_steps else []
    tensor = ["shape", "dtype"] if has_tensors else []
    rows: list[list[object]] = [["vpp_stage", "name", "step", *micro_step, *values[0].labels, *columns, *tensor]]
    shapes: dict[tuple[int, ...] | None, str] = {}
    for value in values:
        row: list[object] = [value.stage, value.name, value.step]
        if has_micro_steps:
            row.append(value.micro_step)
        row += value.labels.values()
        numbers = value.numbers
        found = numbers.values() if [*numbers] == columns else [numbers.get(column, math.nan) for column in columns]
        row += [round(number, ndigits) if isinstance(number, float) else number for number in found]
        if has_tensors:
            shape = value.shape
            row += (shapes.get(shape) or shapes.setdefault(shape, str(list(shape or ()))), value.dtype)
        rows.append(row)
    return csv_text(rows)


class _CsvFormat:
    name = "csv"

    def open(self, directory: Path, rank: int, *, steps_per_file: int, ndigits: int) -> MonitorWriter:
        del rank
        return StepFiles(directory, steps_per_file, _file_name, partial(_text_of, ndigits))


@hookimpl
def msprobe_register_monitor_writers() -> Sequence[MonitorWriterFactory]:
    """Offer it."""
    return [_CsvFormat()]
