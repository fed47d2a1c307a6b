"""The files of the monitor: a directory for each rank, a CSV file for each quantity and range of steps."""

from __future__ import annotations

import csv
import io
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from msprobe_core.monitor.plan import MonitorPlan
from msprobe_core.monitor.readings import Reading, Step
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.layout import make_directory

_OF_MICRO_BATCHES = frozenset({Quantity.ACTIVATION, Quantity.ACTIVATION_GRADIENT, Quantity.GRADIENT_UNREDUCED})
"""Quantities whose files have the column ``micro_step``."""

_ZONE = timezone(timedelta(hours=8))
"""Readers parse the directory's time, which the established monitor gives in this zone."""


class CsvTree:
    """Writes the readings of a rank; a file appears by renaming, when its steps are complete."""

    def __init__(self, plan: MonitorPlan, rank: int) -> None:
        """Create nothing yet.

        Args:
            plan: Says which columns files have, and how many steps.
            rank: Of this process.
        """
        self._plan = plan
        began = datetime.now(_ZONE).strftime("%b%d_%H-%M-%S")
        self.directory = plan.output / f"{began}-rank{rank}-{secrets.token_hex(4)}"
        self._steps: list[Step] = []

    def add(self, step: Step) -> None:
        """Take a step, and write the file that it completes.

        Raises:
            StoreError: a file cannot be written.
        """
        self._steps.append(step)
        if len(self._steps) >= self._plan.step_count_per_record:
            self.flush()

    def flush(self) -> None:
        """Write the steps that are not written yet, as a file of fewer steps if need be.

        Raises:
            StoreError: a file cannot be written.
        """
        steps, self._steps = self._steps, []
        if not steps:
            return
        make_directory(self.directory)
        found: dict[Quantity, list[tuple[int, Reading]]] = {}
        for step in steps:
            for reading in step.readings.values():
                found.setdefault(reading.quantity, []).append((step.number, reading))
        for quantity, readings in found.items():
            name = f"{quantity.value}_{steps[0].number}-{steps[-1].number}.csv"
            with whole_file(self.directory / name) as file:
                file.write(self._text_of(quantity, readings).encode())

    def _text_of(self, quantity: Quantity, readings: Sequence[tuple[int, Reading]]) -> str:
        has_micro_steps = quantity in _OF_MICRO_BATCHES
        ops, ndigits = self._plan.ops, self._plan.ndigits
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        micro_step = ["micro_step"] if has_micro_steps else []
        rows.writerow(["vpp_stage", "name", "step", *micro_step, *(op.value for op in ops), "shape", "dtype"])
        for step, reading in readings:
            values = [reading.value(op) for op in ops]
            rows.writerow(
                [
                    reading.stage,
                    reading.name,
                    step,
                    *([reading.micro_step] if has_micro_steps else []),
                    *(round(value, ndigits) if isinstance(value, float) else value for value in values),
                    str(list(reading.meta.shape)),
                    reading.meta.dtype,
                ]
            )
        return text.getvalue()
