"""Run the user's program in its own process, and terminate it with everything that it has started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from msprobe_core.capture.measure import REQUEST_VARIABLE, MeasurementRequest, Reading, read_readings

Progress: TypeAlias = Callable[[int, float], None]
"""Called with the number of finished steps and the seconds since the program was started."""

_POLL_S = 0.1
_PATIENCE_S = 5.0
"""Grace period for terminated processes, and for a launcher whose processes have all measured their steps."""

_KEPT_FREE = 0.1
"""Share, to be kept free, of the disk space that was free when the run began."""

_MAX_LINES = 40


@dataclass(frozen=True, kw_only=True)
class Run:
    """How a run ended.

    Attributes:
        readings: Measurements of its processes, the lowest rank first.
        status: Its exit status; negative for a signal; ``None`` if we terminated it.
        problem: Why it was terminated early; a sentence.
        last_lines: Last lines that it printed to its standard error.
    """

    readings: Sequence[Reading]
    status: int | None
    problem: str | None
    last_lines: str


def run_program(command: Sequence[str], request: MeasurementRequest, *, timeout_s: float, progress: Progress) -> Run:
    """Run ``command`` until it ends or has measured what is requested. No process that it started is left afterwards.

    Args:
        command: The program and its arguments.
        request: What to measure. The name of its directory is unique to this run and identifies its processes.
        timeout_s: Time limit, in seconds.
        progress: Called ten times a second.
    """
    directory = Path(request.directory)
    output = directory / "stderr"
    environment = {**os.environ, REQUEST_VARIABLE: request.encoded()}
    with output.open("wb") as errors:
        program = subprocess.Popen(  # noqa: S603  # it is what the user asks for
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,  # otherwise a Ctrl-C would reach it before us
        )
    try:
        problem = _watch(program, directory, timeout_s, progress)
        status = program.poll()
    finally:
        _end(program, directory)
    return Run(readings=read_readings(directory), status=status, problem=problem, last_lines=_tail(output))


def _watch(program: subprocess.Popen[bytes], directory: Path, timeout_s: float, progress: Progress) -> str | None:
    """Return when the program has ended or must be terminated; return a sentence if that is early."""
    began = time.monotonic()
    room = shutil.disk_usage(directory).free
    complete_since: float | None = None
    while program.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            program.wait(_POLL_S)
        now = time.monotonic()
        readings = read_readings(directory)
        progress(max((reading.num_steps for reading in readings), default=0), now - began)
        if now - began > timeout_s:
            return f"was ended after {timeout_s:g} s (--timeout)"
        if shutil.disk_usage(directory).free < _KEPT_FREE * room:
            return (
                f"was ended: what a step writes would fill the disk that has the directory {directory.parent}, where "
                f"{room / 1e9:.1f} GB were free; choose another with --scratch, or leave out the mode"
            )
        started = [reading for reading in readings if reading.num_steps]
        is_complete = bool(started) and all(reading.is_complete for reading in started)
        complete_since = (complete_since or now) if is_complete else None
        if complete_since is not None and now - complete_since > _PATIENCE_S:
            return None
    return None


def _end(program: subprocess.Popen[bytes], directory: Path) -> None:
    """Terminate the program and its descendants, including those that have left its session."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _PATIENCE_S
        _send(program, directory, signal_number)
        while (program.poll() is None or _descendants(directory)) and time.monotonic() < deadline:
            time.sleep(_POLL_S / 5)


def _send(program: subprocess.Popen[bytes], directory: Path, signal_number: int) -> None:
    if program.poll() is None:  # otherwise its process id may have been reused
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(program.pid, signal_number)
    for process in _descendants(directory):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal_number)


def _descendants(directory: Path) -> list[int]:
    """Return the processes with this directory's request in their environment; none if there is no ``/proc``."""
    mark = os.fsencode(directory.name)
    found: list[int] = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # another user's process, or it has ended
            if mark in environment.read_bytes():
                found.append(int(environment.parent.name))
    return found


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 100_000))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-_MAX_LINES:])
