"""Files as the established monitor's second version has them: one for each kind of quantity and range of steps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from msprobe_core.hookspecs import hookimpl
from msprobe_core.monitor.steps_per_file import StepFiles
from msprobe_core.monitoring.quantities import MONITORS, SCOPES, Quantity
from msprobe_core.protocols.monitoring import MonitoredValue, MonitorWriter, MonitorWriterFactory
from msprobe_core.store.atomic_file import csv_text

_SCOPE_OF = {quantity.value: scope for scope, quantity in SCOPES.items()}
_MONITOR_OF = {quantity.value: monitor for monitor, quantities in MONITORS.items() for quantity in quantities}
_WITH_MICRO_STEPS = ("module", "weight_grad")
_SIDE = re.compile(r"\.(input|output)(?:_(\d+))?$")


def _file_name(quantity: str, first: int, last: int) -> str:
    return f"{_MONITOR_OF.get(quantity, quantity)}_step{first}-{last}.csv"


def _text_of(values: Sequence[MonitoredValue]) -> str:
    has_micro_steps = _MONITOR_OF.get(values[0].quantity) in _WITH_MICRO_STEPS
    micro_step = ["micro_step"] if has_micro_steps else []
    rows: list[list[object]] = [["vpp_stage", "step", "module_name", "scope", *micro_step, *values[0].numbers]]
    for value in values:
        own = [value.micro_step or 0] if has_micro_steps else []
        place = [value.stage, value.step, _name_of(value), _SCOPE_OF.get(value.quantity, value.quantity)]
        rows.append([*place, *own, *(float(value.numbers.get(column, "nan")) for column in values[0].numbers)])
    return csv_text(rows)


def _name_of(value: MonitoredValue) -> str:
    if value.quantity in (Quantity.EXP_AVG, Quantity.EXP_AVG_SQ):
        return f"{value.name}.{value.quantity}"
    # Inputs and outputs have a number here, also where there is only one.
    return _SIDE.sub(lambda found: f".{found[1]}.{found[2] or 0}", value.name)


class _CsvFormat:
    name = "csv-v2"

    def open(self, directory: Path, rank: int, *, steps_per_file: int, ndigits: int) -> MonitorWriter:
        del rank, ndigits  # the second version does not round
        return StepFiles(directory, steps_per_file, _file_name, _text_of)


@hookimpl
def msprobe_register_monitor_writers() -> Sequence[MonitorWriterFactory]:
    """Offer it."""
    return [_CsvFormat()]
