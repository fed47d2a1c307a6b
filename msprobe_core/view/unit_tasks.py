"""The units of a run that a page shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msprobe_core.compare.pairs import Chosen, UnitPair
from msprobe_core.errors import CompareError
from msprobe_core.execute.units import files_of
from msprobe_core.findings import Finding
from msprobe_core.store.kernel_files import find_kernel_units
from msprobe_core.store.reading import check_exists, is_dump
from msprobe_core.store.runs import steps_of_run, units_of_step


@dataclass(frozen=True)
class UnitTask:
    """One unit to be shown."""

    label: str
    step: int | None
    rank: int | None
    target: Path
    pair: UnitPair | None = None

    @property
    def files(self) -> Sequence[Path]:
        """The files of the target's dump."""
        return files_of([self.target])


def tasks_of_run(target: Path, chosen: Chosen) -> tuple[list[UnitTask], Sequence[Finding]]:
    """Return the units of a run, and messages about parts of the run that were skipped.

    Raises:
        CompareError: the run is empty, or has none of the selected steps and ranks.
        DumpError: it cannot be read, or holds no dump.
    """
    check_exists(target)
    if is_dump(target):
        return [UnitTask("", None, None, target)], []
    notes: list[Finding] = []
    if kernels := find_kernel_units(target):
        tasks = [
            UnitTask(f"step{unit.iteration}/rank{unit.rank}", unit.iteration, unit.rank, unit.directory)
            for unit in kernels
        ]
    else:
        found, said = steps_of_run(target)
        steps: dict[int | None, Path] = {**found} or {None: target}
        looked_at = {
            step: units_of_step(directory)
            for step, directory in steps.items()
            if step is None or not chosen.steps or step in chosen.steps
        }
        notes = [*said, *(note for step in looked_at.values() for note in step.notes)]
        tasks = [
            UnitTask(unit.label if step is None else f"step{step}/{unit.label}", step, unit.rank, unit.directory)
            for step, own in looked_at.items()
            for unit in own.units
        ]
    wanted = [
        task
        for task in tasks
        if (not chosen.steps or task.step is None or task.step in chosen.steps)
        and (not chosen.ranks or task.rank in chosen.ranks)
    ]
    if not wanted:
        raise CompareError(f"{target}: has none of the steps and ranks that were asked for")
    return wanted, notes
