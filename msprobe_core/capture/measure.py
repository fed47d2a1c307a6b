"""Measurement of the cost of one configuration inside a training program, on behalf of ``msprobe estimate``.

The request is passed in an environment variable, so that the program is started as usual, and so that child processes
inherit it. The debugger then records what the request says instead of the program's own settings, and ends the process
when enough steps are measured. Each process writes a `Reading` after every step.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from msprobe_core.config import Config, load_config
from msprobe_core.errors import ConfigError
from msprobe_core.protocols.capabilities import DeviceGauge
from msprobe_core.protocols.framework import Framework
from msprobe_core.store.manifest_file import DATA_ROWS_FILE, MANIFEST_FILE

REQUEST_VARIABLE = "MSPROBE_ESTIMATE"

_PEAK = re.compile(r"^VmHWM:\s*(\d+) kB", re.MULTILINE)


class MeasurementRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a process has to measure.

    Attributes:
        directory: Existing directory for readings and dumps.
        level: Level to record; ``None`` records nothing.
        task: Task to record.
        summary_mode: Digest to record; ``None`` uses the program's configuration.
        num_warmup: Steps before the first measured one.
        num_steps: Steps to measure.
    """

    directory: str
    level: str | None
    task: str = "statistics"
    summary_mode: str | None = None
    num_warmup: int = 1
    num_steps: int = 3

    def encoded(self) -> str:
        """Return the value of the environment variable."""
        return msgspec.json.encode(self).decode()

    @property
    def settings(self) -> dict[str, Any]:
        """Common fields of a configuration that override those of the program."""
        settings: dict[str, Any] = {"dump_enable": self.level is not None, "step": [], "rank": []}
        return settings if self.level is None else {**settings, "task": self.task, "level": self.level}


class Reading(msgspec.Struct, kw_only=True):
    """Measurements of one process so far.

    Attributes:
        rank: Rank of the process; ``None`` outside of a job.
        times_s: Seconds of each measured step, from the end of the previous step to its own end.
        sizes_bytes: Bytes on disk of each measured step.
        nums_records: Entries of each measured step.
        num_warmup: Warm-up steps that have ended.
        peak_memory_bytes: Peak resident memory of the process.
        peak_device_bytes: Peak device memory of its tensors; ``None`` without a device.
        is_complete: Whether all requested steps are measured.
        problem: A sentence on why measuring failed.
    """

    rank: int | None = None
    times_s: list[float] = msgspec.field(default_factory=list[float])
    sizes_bytes: list[int] = msgspec.field(default_factory=list[int])
    nums_records: list[int] = msgspec.field(default_factory=list[int])
    num_warmup: int = 0
    peak_memory_bytes: int = 0
    peak_device_bytes: int | None = None
    is_complete: bool = False
    problem: str | None = None

    @property
    def num_steps(self) -> int:
        """Number of steps that have ended, with warm-up."""
        return self.num_warmup + len(self.times_s)

    def write(self, directory: Path) -> None:
        """Replace the reading that this process wrote before."""
        name = f"reading-{os.getpid()}"
        part = directory / f"{name}.part"
        part.write_bytes(msgspec.json.encode(self))
        part.replace(directory / f"{name}.json")


def read_readings(directory: Path) -> list[Reading]:
    """Return the readings that all processes have written so far, sorted by rank."""
    readings = [msgspec.json.decode(path.read_bytes(), type=Reading) for path in directory.glob("reading-*.json")]
    return sorted(readings, key=lambda reading: -1 if reading.rank is None else reading.rank)


def requested_measurement() -> MeasurementRequest | None:
    """Return the request for this process; ``None`` in a process that ``msprobe estimate`` has not started.

    Raises:
        ConfigError: the variable has other content.
    """
    value = os.environ.get(REQUEST_VARIABLE)
    if not value:
        return None
    try:
        return msgspec.json.decode(value, type=MeasurementRequest)
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"the environment variable {REQUEST_VARIABLE} holds no request of `msprobe estimate` ({error}); unset it"
        ) from error


class Measurement:
    """Wraps a debugger's session in a process that is measured."""

    def __init__(
        self, request: MeasurementRequest, config_path: str | os.PathLike[str] | None, given: Mapping[str, Any]
    ) -> None:
        """Read the program's configuration, override it with the request, and start the clock.

        Raises:
            ConfigError: the configuration is wrong, or conflicts with the request.
        """
        self._request = request
        self._directory = Path(request.directory)
        self._dumps = Path(tempfile.mkdtemp(prefix="dump-", dir=self._directory))
        settings: dict[str, Any] = {**given, **request.settings, "dump_path": str(self._dumps)}
        config = load_config(config_path, **settings)
        if request.summary_mode is not None:
            options = msgspec.structs.replace(config.options, summary_mode=request.summary_mode)
            config = msgspec.structs.replace(config, options=options)
        self.config: Config = config
        """The configuration that the session records."""
        self.framework: Framework | None = None
        """The framework that the session records, once there is one."""
        self._reading = Reading()
        self._reading.write(self._directory)
        self._began = time.perf_counter()

    def end_step(self, num_records: int, *, has_given_up: bool) -> None:
        """Record the measurements of the step that has just been written; ends the process after the last step.

        Args:
            num_records: Number of its entries.
            has_given_up: Whether the session has stopped recording for good.
        """
        if isinstance(self.framework, DeviceGauge):
            self.framework.wait_for_devices()
        ended = time.perf_counter()
        reading = self._reading
        size = _size_of(self._dumps)
        if has_given_up:
            reading.problem = "recording ended by itself; what the program printed last says why"
        elif reading.num_warmup < self._request.num_warmup:
            reading.num_warmup += 1
        else:
            reading.times_s.append(ended - self._began)
            reading.sizes_bytes.append(size)
            reading.nums_records.append(num_records)
        reading.rank = None if self.framework is None else self.framework.rank()
        reading.peak_memory_bytes = _peak_memory()
        if isinstance(self.framework, DeviceGauge):
            reading.peak_device_bytes = self.framework.peak_device_bytes()
        is_last = has_given_up or len(reading.times_s) >= self._request.num_steps
        reading.is_complete = is_last and not has_given_up
        shutil.rmtree(self._dumps, ignore_errors=True)  # bounds the disk space to that of one step
        reading.write(self._directory)
        if is_last:
            end_process()
        self._began = time.perf_counter()


def end_process() -> NoReturn:
    """End this process at once, without exit handlers: the program's own shutdown is not part of a step."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)


def _size_of(directory: Path) -> int:
    """Return the bytes of a step's files.

    Without the manifest, which is written once in a run, and the rows of data, which it has of the first step: a few
    hundred bytes.
    """
    others = (MANIFEST_FILE, DATA_ROWS_FILE)
    files = (path for path in directory.rglob("*") if path.is_file() and path.name not in others)
    return sum(path.lstat().st_size for path in files)


def _peak_memory() -> int:
    """Return the peak resident memory of this process, in bytes.

    On Linux, ``ru_maxrss`` survives exec and so includes the process's previous program. Where available, VmHWM of
    proc(5) is read instead.
    """
    with suppress(OSError):
        if found := _PEAK.search(Path("/proc/self/status").read_text()):
            return int(found.group(1)) * 1024
    try:
        import resource
    except ImportError:  # on Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # getrusage(2): bytes there, kilobytes elsewhere
