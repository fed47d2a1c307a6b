"""Decide which dumps in a directory belong to one run, so that leftovers of an earlier run are found and reported.

Each dump stores the process and job that recorded it, and when it ended. Two dumps belong to different runs if their
jobs have different names, or if one had ended before the process of the other began. Time is needed because ranks of a
job run concurrently, while a restarted training may reuse the name of its job.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from msprobe_core.config.ranges import format_ranges
from msprobe_core.errors import DumpError, MissingDumpError
from msprobe_core.findings import Finding
from msprobe_core.model import RunIdentity
from msprobe_core.store import layout
from msprobe_core.store.layout import Unit
from msprobe_core.store.run_codes import RunCode
from msprobe_core.untrusted.files import open_plain

RUN_VARIABLE = "MSPROBE_RUN_ID"
"""Environment variable with a job name given by the user, which is used unchanged."""

_HEAD_BYTES, _TAIL_BYTES = 1 << 16, 1 << 14
_IDENTITY = re.compile(r'"run"\s*:\s*(?=\{\s*"job"\s*:)')
_ENDED = re.compile(rb'"ended"\s*:\s*([0-9.eE+-]+)')
_SLACK_S, _SLACK_OF_HOSTS_S = 1.0, 30.0
"""Maximum difference between the clocks of two processes, on one machine and on two."""


class Recorder(NamedTuple):
    """The process that recorded a dump.

    Attributes:
        identity: ``None`` if the dump does not have it.
        ended: Time of the last write to the dump, in seconds since 1970; 0 if there is no dump.
    """

    identity: RunIdentity | None
    ended: float

    @property
    def is_nothing(self) -> bool:
        """Whether there is no dump."""
        return not self.ended

    @property
    def began(self) -> float:
        """Start time of its process; if the dump does not have it, the time of the last write."""
        return self.ended if self.identity is None else self.identity.started


def recorder_of(directory: Path) -> Recorder:
    """Return the recorder of the dump in a rank's directory, without reading the whole dump."""
    for name in layout.RECORD_FILES:
        path = directory / name
        try:
            status = path.stat()
        except OSError:
            continue
        return _recorder_in(path, status.st_mtime_ns, status.st_size)
    return Recorder(None, 0.0)


@lru_cache(maxsize=1 << 14)
def _recorder_in(path: Path, modified_ns: int, size: int) -> Recorder:
    try:
        with open_plain(path) as file:
            head = file.read(_HEAD_BYTES)
            file.seek(max(size - _TAIL_BYTES, 0))
            tail = file.read(_TAIL_BYTES)
    except OSError:
        return Recorder(None, modified_ns * 1e-9)
    found = _ENDED.findall(tail)
    try:
        ended = float(found[-1])
    except (IndexError, ValueError):
        ended = 0.0
    return Recorder(_identity_in(head.decode("utf-8", "replace")), ended or modified_ns * 1e-9)


def _identity_in(head: str) -> RunIdentity | None:
    # All our formats have a JSON header near the beginning; no other tool's header has this member.
    found = _IDENTITY.search(head)
    if found is None:
        return None
    try:
        fields, _ = json.JSONDecoder().raw_decode(head, found.end())
        return msgspec.convert(fields, RunIdentity)
    except (ValueError, RecursionError):
        return None


def are_of_one_run(one: Recorder, other: Recorder) -> bool:
    """Whether two dumps can belong to one run."""
    a, b = one.identity, other.identity
    if a is None or b is None:
        return a is b
    if a.job != b.job:
        return False
    if a.job.startswith(f"{RUN_VARIABLE}=") or (a.host, a.process, a.started) == (b.host, b.process, b.started):
        return True
    slack_s = _SLACK_S if a.host == b.host else _SLACK_OF_HOSTS_S
    return one.ended + slack_s >= b.started and other.ended + slack_s >= a.started


def described(recorder: Recorder) -> Finding:
    """Describe the run of a dump."""
    at, own = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(recorder.began)), recorder.identity
    if own is None:
        return Finding(RunCode.WRITTEN, fields={"at": at})
    return Finding(RunCode.BEGUN, fields={"at": at, "process": own.process, "host": own.host})


class Found(NamedTuple):
    """Units of the latest run.

    Attributes:
        units: Units of the step.
        notes: What was left out.
    """

    units: Sequence[Unit]
    notes: Sequence[Finding]


def units_of_step(step_directory: Path) -> Found:
    """Return the ranks, or else the processes, of a step's latest run, and note leftovers of earlier runs.

    Raises:
        DumpError: ``step_directory`` is not a directory or has neither.
    """
    units = layout.find_units(step_directory)
    if len(units) < 2:
        return Found(units, [])
    recorders = {unit: recorder_of(unit.directory) for unit in units}
    latest = max(units, key=lambda unit: recorders[unit].began)
    # A process that is killed at once leaves an empty directory, which may also be from an earlier run.
    own = [unit for unit in units if recorders[unit].is_nothing or are_of_one_run(recorders[unit], recorders[latest])]
    others = [unit for unit in units if unit not in own]
    if not others:
        return Found(units, [])
    runs = {"run": described(recorders[others[0]]), "latest_run": described(recorders[latest])}
    fields = {"path": str(step_directory), "units": _names(others), "latest": latest.label, **runs}
    return Found(own, [Finding(RunCode.UNITS_LEFT_OUT, fields={**fields, "variable": RUN_VARIABLE})])


def _names(units: Sequence[Unit]) -> Finding | list[str]:
    ranks = [unit.rank for unit in units if unit.rank is not None]
    if len(ranks) == len(units):
        return Finding(RunCode.RANKS if len(ranks) > 1 else RunCode.RANK, fields={"ranks": format_ranges(ranks)})
    return [unit.label for unit in units]


def steps_of_run(run_directory: Path) -> tuple[Mapping[int, Path], list[Finding]]:
    """Return the steps of a run by number, without later steps that an earlier run has left.

    Earlier steps from a previous run are kept: a training may have continued from a checkpoint.

    Raises:
        DumpError: ``run_directory`` is not a directory, or cannot be read.
    """
    steps = layout.find_steps(run_directory)
    recorders = {number: _latest_in(directory) for number, directory in steps.items()}
    known = {number: recorder for number, recorder in recorders.items() if recorder is not None}
    if len(known) < 2:
        return steps, []
    newest = max(known, key=lambda number: known[number].began)
    own = {number for number, recorder in known.items() if are_of_one_run(recorder, known[newest])}
    former = {number for number in known if number not in own}
    left_over = {number for number in former if number > min(own)}
    notes: list[Finding] = []
    place = {"path": str(run_directory)}
    if left_over:
        runs = {"run": described(known[max(left_over)]), "latest_run": described(known[newest])}
        fields = {**place, "steps": _steps(left_over), "latest": _steps([newest]), **runs}
        notes.append(Finding(RunCode.STEPS_LEFT_OUT, fields=fields))
    if before := former - left_over:
        notes.append(Finding(RunCode.EARLIER_STEPS, fields={**place, "steps": _steps(before), "later": _steps(own)}))
    return {number: path for number, path in steps.items() if number not in left_over}, notes


def _steps(numbers: Collection[int]) -> Finding:
    return Finding(RunCode.STEPS if len(numbers) > 1 else RunCode.STEP, fields={"steps": format_ranges(numbers)})


def _latest_in(step_directory: Path) -> Recorder | None:
    """Return the last recorder of a step; ``None`` if no dump in it has one."""
    try:
        units = layout.find_units(step_directory)
    except DumpError:
        return None
    recorders = [recorder_of(unit.directory) for unit in units]
    known = [recorder for recorder in recorders if recorder.identity is not None]
    return max(known, key=lambda recorder: recorder.began, default=None)


def find_unit(step_directory: Path, rank: int | None) -> tuple[Unit, Sequence[Finding]]:
    """Return the unit of an earlier run that corresponds to this process, and notes on the choice.

    A process outside of a job is rank 0 in both runs; of several such processes, the last writer is used.

    Args:
        step_directory: Step of the earlier run.
        rank: Rank of this process.

    Raises:
        DumpError: there is none.
    """
    found = units_of_step(step_directory)
    units, notes = list(found.units), list(found.notes)
    ranks = {unit.rank: unit for unit in units if unit.rank is not None}
    if ranks:
        if (rank or 0) not in ranks:
            raise MissingDumpError(
                f"{step_directory}: holds no rank{rank or 0}, but {', '.join(u.label for u in units)}"
            )
        return ranks[rank or 0], notes
    if rank:
        raise MissingDumpError(f"{step_directory}: holds no rank{rank}, but processes outside of a job")
    units.sort(key=lambda unit: _time_of(unit.directory))
    if len(units) > 1:
        fields = {"path": str(step_directory), "last": units[-1].label, "others": [unit.label for unit in units[:-1]]}
        notes.append(Finding(RunCode.SEVERAL_PROCESSES, fields=fields))
    return units[-1], notes


def _time_of(directory: Path) -> float:
    dump = directory / layout.DUMP_FILE
    return (dump if dump.exists() else directory).stat().st_mtime
