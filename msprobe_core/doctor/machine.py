"""Conditions of the machine and the process: kernels, disk, temporary files, open files, threads."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from msprobe_core.native.reductions import NATIVE_VARIABLE, kernels
from msprobe_core.protocols.checkups import Condition, Health

LITTLE_SPACE = 1 << 30
"""Free bytes below which whole tensors of a model hardly fit."""
NO_SPACE = 1 << 24
"""Free bytes below which not even statistics fit."""
FEW_FILES = 1024
_THREADS = "OMP_NUM_THREADS"


def of_machine(dump_path: Path) -> Iterator[Condition]:
    """Yield the conditions of the machine; ``dump_path`` is where runs would be recorded to."""
    yield _kernels()
    yield from _disk(dump_path.expanduser().absolute())
    yield from _temporary_files()
    yield from _open_files()
    yield _threads()


def _kernels() -> Condition:
    if kernels() is not None:
        return Condition(code="machine.kernels", health=Health.OK, state="compiled kernels reduce tensors on the CPU")
    switched_off = os.environ.get(NATIVE_VARIABLE) == "0"
    return Condition(
        code="machine.kernels",
        health=Health.NOTE,
        state=f"compiled kernels are switched off by {NATIVE_VARIABLE}=0" if switched_off else "no compiled kernels",
        why="recording large tensors on the CPU takes about twice as long; the numbers are the same",
        advice=f"unset {NATIVE_VARIABLE}" if switched_off else "install a C compiler, then msprobe-core again",
    )


def _disk(dump_path: Path) -> Iterator[Condition]:
    try:
        place = next(each for each in (dump_path, *dump_path.parents) if _exists(each))
        if not place.is_dir():
            raise NotADirectoryError(f"{place} is a file")
        with tempfile.TemporaryFile(dir=place):
            pass
    except (OSError, ValueError) as error:
        yield Condition(
            code="machine.dump-path",
            health=Health.ERROR,
            state=f"{dump_path} cannot be written ({getattr(error, 'strerror', None) or error})",
            why="a training would go on without being recorded",
            advice="set 'dump_path' to another directory, or change its permissions",
        )
        return
    yield from _space(place, f"{dump_path} can be written", "machine.dump-path", "set 'dump_path' to another disk")


def _exists(path: Path) -> bool:
    """Whether it exists; unlike `Path.exists`, raise for a name that no path can have."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _space(place: Path, state: str, code: str, advice: str) -> Iterator[Condition]:
    free = shutil.disk_usage(place).free
    state = f"{state}; {_size(free)} free"
    if free >= LITTLE_SPACE:
        yield Condition(code=code, health=Health.OK, state=state)
        return
    yield Condition(
        code=code,
        health=Health.ERROR if free < NO_SPACE else Health.WARNING,
        state=state,
        why="recording stops when the disk is full; statistics take kilobytes per call, whole tensors all their bytes",
        advice=f"free space, or {advice}",
    )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:,.1f} GiB" if num_bytes >= LITTLE_SPACE else f"{num_bytes / 2**20:,.1f} MiB"


def _temporary_files() -> Iterator[Condition]:
    try:
        place = Path(tempfile.gettempdir())
    except FileNotFoundError:
        yield Condition(
            code="machine.temporary-files",
            health=Health.ERROR,
            state="no directory for temporary files can be written",
            why="`msprobe view` and comparisons of long runs keep parts there",
            advice="set TMPDIR to a directory that you may write",
        )
        return
    yield from _space(place, f"temporary files go to {place}", "machine.temporary-files", "set TMPDIR to another disk")


def _open_files() -> Iterator[Condition]:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < FEW_FILES:
        yield Condition(
            code="machine.open-files",
            health=Health.WARNING,
            state=f"a process may open {soft} files at a time",
            why="comparisons of many ranks open several files of each",
            advice=f"ulimit -n {hard if 0 <= hard < 65536 else 65536}",
        )


def _threads() -> Condition:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given, start = os.environ.get(_THREADS, ""), multiprocessing.get_start_method()
    if not given.isdigit() or int(given) <= count:
        limit = f"{_THREADS} is {given}" if given else f"{_THREADS} is not set"
        state = f"{count} processors for this process, {limit}; processes start by {start}"
        return Condition(code="machine.threads", health=Health.OK, state=state)
    return Condition(
        code="machine.threads",
        health=Health.WARNING,
        state=f"{_THREADS} is {given}, and this process has {count} processors",
        why="threads that wait for each other make recording and training several times slower",
        advice=f"set {_THREADS} to {count} or less, divided by the number of processes",
    )
