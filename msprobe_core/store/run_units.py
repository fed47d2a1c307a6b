"""The dumps of a run, with or without stages: what a command goes through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msprobe_core.errors import MissingDumpError
from msprobe_core.store.layout import find_steps, holds_units
from msprobe_core.store.reading import check_exists, is_dump
from msprobe_core.store.runs import steps_of_run, units_of_step
from msprobe_core.untrusted.files import reading


@dataclass(frozen=True, slots=True)
class RecordedUnit:
    """One dump of a run.

    Attributes:
        path: What `msprobe_core.comparison.read_dump` reads.
        stage: Stage of the trainer; empty for a run without stages.
        step: Number of the step; ``None`` if one step, or one rank, was given.
        rank: Number of the rank; ``None`` for a process outside of a job, and for one dump that was given.
    """

    path: Path
    stage: str = ""
    step: int | None = None
    rank: int | None = None

    @property
    def label(self) -> str:
        """Where it is in the run, as a path: ``train/step0/rank1``; empty for one dump."""
        step = None if self.step is None else f"step{self.step}"
        name = self.path.name if self.rank is None else f"rank{self.rank}"
        return "/".join(filter(None, (self.stage, step, name if step or self.rank is not None else None)))


def recorded_units(path: Path) -> Iterator[RecordedUnit]:
    """Yield the dumps of a run with or without stages, of a step, or of a rank; leftovers of earlier runs are left out.

    Args:
        path: A directory, or the file of a dump.

    Raises:
        CompareError: nothing is there.
        DumpError: it holds no dump, or cannot be read.
    """
    check_exists(path)
    if is_dump(path):
        yield RecordedUnit(path)
    elif holds_units(path):
        yield from _units_of_run(path)
    else:
        stages = stages_in(path)
        if not stages:
            raise MissingDumpError(f"{path}: holds no dump; give a run, with or without stages, a step or a rank")
        for stage, directory in stages.items():
            yield from _units_of_run(directory, stage)


def stages_in(path: Path) -> dict[str, Path]:
    """Return the stages of a staged run by name, in the order of their names; empty if it is none.

    Raises:
        DumpError: it is not a directory, or cannot be read.
    """
    with reading(path):
        children = sorted(each for each in path.iterdir() if each.is_dir())
    return {each.name: each for each in children if find_steps(each)}


def _units_of_run(path: Path, stage: str = "") -> Iterator[RecordedUnit]:
    steps, _ = steps_of_run(path)
    for number, directory in steps.items() or [(None, path)]:
        for unit in units_of_step(directory).units:
            yield RecordedUnit(unit.directory, stage, number, unit.rank)
