"""Measure a program bare and at each level and mode, in a process each, and compute the factors."""

from __future__ import annotations

import re
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from msprobe_core.capture.measure import MeasurementRequest, Reading
from msprobe_core.errors import EstimateError, StoreError
from msprobe_core.estimate.process import Progress, Run, run_program

TENSOR_MODE = "tensor"
"""The mode that selects the task ``tensor``; all others are a ``summary_mode`` of the task ``statistics``."""

_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_STEPPER = "msprobe_core.capture.stepper"


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is recorded: a level and a mode. ``level`` is ``None`` without recording."""

    level: str | None = None
    mode: str = "statistics"

    @property
    def label(self) -> str:
        """Name of the case in progress output and messages."""
        return "without recording" if self.level is None else f"{self.level} {self.mode}"


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """The measured cost of one case, or why it is not known.

    Attributes:
        case: What was recorded.
        times_s: Seconds of each measured step, of the lowest rank.
        bytes_per_step: Mean bytes on disk per step and process.
        records_per_step: Mean number of entries per step and process.
        peak_memory_bytes: Peak resident memory of any process.
        peak_device_bytes: Peak memory of a process's tensors on its devices; ``None`` without devices.
        num_processes: Number of processes that recorded.
        problem: Why nothing was measured; a sentence.
        last_lines: Last lines that the program printed to its standard error.
    """

    case: Case
    times_s: Sequence[float] = ()
    bytes_per_step: int = 0
    records_per_step: int = 0
    peak_memory_bytes: int = 0
    peak_device_bytes: int | None = None
    num_processes: int = 0
    problem: str | None = None
    last_lines: str = ""

    @property
    def time_s(self) -> float:
        """Median seconds of a step."""
        return statistics.median(self.times_s)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to measure.

    Attributes:
        target: A script's path, or ``module:function``.
        arguments: Arguments of the script.
        cases: What to record.
        num_warmup: Steps before the first measured one, at least 1.
        num_steps: Measured steps.
        timeout_s: Time limit of one case, in seconds.
        scratch: Directory for the dumps; ``None`` uses the system's temporary directory.
    """

    target: str
    arguments: Sequence[str] = ()
    cases: Sequence[Case]
    num_warmup: int = 1
    num_steps: int = 3
    timeout_s: float = 1800.0
    scratch: Path | None = None

    @property
    def is_function(self) -> bool:
        """Whether the target is a function to call, not a script to run."""
        return not Path(self.target).is_file() and _FUNCTION.fullmatch(self.target) is not None


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The cost of recording.

    ``cases`` has a result for each requested case; it is empty if the program does not even run bare.
    """

    request: Request
    bare: CaseResult
    cases: Sequence[CaseResult] = field(default_factory=list[CaseResult])

    def factor(self, result: CaseResult) -> float:
        """Return the median time of a recorded step over that of a bare one."""
        return result.time_s / self.bare.time_s


EstimateProgress: TypeAlias = Callable[[int, int, Case, int, float], None]
"""Called with the number of finished cases and of all cases, the running case, its steps and its seconds so far."""


def estimate(request: Request, progress: EstimateProgress | None = None) -> Estimate:
    """Run the program once for each case, and once without recording.

    Raises:
        EstimateError: there is no such program.
        StoreError: there is no room for the dumps.
    """
    command = _command(request)
    cases = (Case(), *request.cases)
    results: list[CaseResult] = []
    for number, case in enumerate(cases):

        def tell(num_steps: int, seconds: float, *, number: int = number, case: Case = case) -> None:
            if progress is not None:
                progress(number, len(cases), case, num_steps, seconds)

        tell(0, 0.0)
        results.append(_measure(request, command, case, tell))
        if results[0].problem is not None:
            break
    return Estimate(request=request, bare=results[0], cases=results[1:])


def _command(request: Request) -> list[str]:
    if request.is_function:
        return [sys.executable, "-m", _STEPPER, request.target]
    if not Path(request.target).is_file():
        raise EstimateError(f"{request.target}: is no file; give a Python script, or a function as module:function")
    return [sys.executable, request.target, *request.arguments]


def _measure(request: Request, command: Sequence[str], case: Case, progress: Progress) -> CaseResult:
    try:
        directory = Path(tempfile.mkdtemp(prefix="msprobe-estimate-", dir=request.scratch)).absolute()
    except OSError as error:
        raise StoreError(
            f"{request.scratch or tempfile.gettempdir()}: no directory can be made there ({error.strerror}); choose "
            "another with --scratch"
        ) from error
    is_tensor = case.mode == TENSOR_MODE
    measurement = MeasurementRequest(
        directory=str(directory),
        level=case.level,
        task="tensor" if is_tensor else "statistics",
        summary_mode=None if is_tensor else case.mode,
        num_warmup=request.num_warmup,
        num_steps=request.num_steps,
    )
    try:
        run = run_program(command, measurement, timeout_s=request.timeout_s, progress=progress)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    problem = _problem(request, case, run)
    if problem is not None:
        return CaseResult(case=case, problem=problem, last_lines=run.last_lines)
    return _result(case, _of_use(run.readings))


def _result(case: Case, readings: Sequence[Reading]) -> CaseResult:
    devices = [reading.peak_device_bytes for reading in readings if reading.peak_device_bytes is not None]
    return CaseResult(
        case=case,
        times_s=readings[0].times_s,
        bytes_per_step=round(statistics.mean(size for reading in readings for size in reading.sizes_bytes)),
        records_per_step=round(statistics.mean(number for reading in readings for number in reading.nums_records)),
        peak_memory_bytes=max(reading.peak_memory_bytes for reading in readings),
        peak_device_bytes=max(devices, default=None),
        num_processes=len(readings),
    )


def _of_use(readings: Sequence[Reading]) -> Sequence[Reading]:
    return [reading for reading in readings if reading.is_complete] or [r for r in readings if r.times_s]


def _problem(request: Request, case: Case, run: Run) -> str | None:
    """Return why the run has no usable result; ``None`` if it has."""
    name = request.target
    said = next((reading.problem for reading in run.readings if reading.problem is not None), None)
    if said is not None:
        return said
    if not any(reading.is_complete for reading in run.readings):
        if run.problem is not None:
            return f"{name} {run.problem}"
        if run.status:
            return f"{name} failed with {_status(run.status)}; what it printed last stands above"
    if not _of_use(run.readings):
        return _missing_steps(request, run.readings)
    if case.level is not None and not any(sum(reading.nums_records) for reading in _of_use(run.readings)):
        return f"{name} recorded nothing: there is no call of the model or of an API between start() and stop()"
    return None


def _missing_steps(request: Request, readings: Sequence[Reading]) -> str:
    name = request.target
    number = max((reading.num_steps for reading in readings), default=0)
    if number:
        needed = f"{request.num_warmup} to warm up and at least one that counts are needed"
        return f"{name} ended after {number} step{'s' if number > 1 else ''}; {needed}"
    if request.is_function:
        return f"{name} ended before its first step; let it return once for each step, or yield after each"
    if readings:
        return f"{name} ended and never called step() of its PrecisionDebugger; call it at the end of each step"
    return (
        f"{name} ended without a PrecisionDebugger; add start(), stop() and step() to its loop, or give a function "
        "that trains one step, as module:function"
    )


def _status(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
