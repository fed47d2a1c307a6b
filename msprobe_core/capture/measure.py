"""What one configuration costs, measured from inside of a training program, by order of ``msprobe estimate``.

The order comes in an environment variable, so that the program runs as it always does, and reaches the processes that
it starts. The debugger then records what is ordered, instead of what the program says, and ends the process when
enough steps are measured. Each process writes a `Reading` after every step.
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
from msprobe_core.model import Batch, Ending, RunHeader
from msprobe_core.protocols.capabilities import DeviceGauge
from msprobe_core.protocols.framework import Framework
from msprobe_core.protocols.storage import EndingWriter, Writer, WriterFactory

ORDER_VARIABLE = "MSPROBE_ESTIMATE"

_PEAK = re.compile(r"^VmHWM:\s*(\d+) kB", re.MULTILINE)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is to measure.

    Attributes:
        directory: Where readings and dumps go; exists.
        level: Level to record; ``None`` records nothing.
        task: Task to record.
        summary_mode: What is kept of a tensor; ``None`` leaves it to the configuration.
        num_warmup: Steps before the first that counts.
        num_steps: Steps that count.
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
        """Common fields of a configuration that win over those of the program."""
        settings: dict[str, Any] = {"dump_enable": self.level is not None, "step": [], "rank": []}
        return settings if self.level is None else {**settings, "task": self.task, "level": self.level}


class Reading(msgspec.Struct, kw_only=True):
    """What one process has measured so far.

    Attributes:
        rank: Of the process; ``None`` outside of a job.
        times_s: Seconds of each measured step, from the end of the one before to its own.
        sizes_bytes: Bytes that each measured step has left on disk.
        nums_records: Entries of each measured step.
        num_warmup: Steps before those.
        peak_memory_bytes: Most memory that the process has had resident.
        peak_device_bytes: Most memory that its tensors have had on a device; ``None`` without one.
        is_complete: Whether all steps that were ordered are measured.
        problem: Why there is nothing to measure; a sentence.
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
        """Steps that have ended, those for warming up too."""
        return self.num_warmup + len(self.times_s)

    def write(self, directory: Path) -> None:
        """Put this in the place of what this process wrote before."""
        name = f"reading-{os.getpid()}"
        part = directory / f"{name}.part"
        part.write_bytes(msgspec.json.encode(self))
        part.replace(directory / f"{name}.json")


def read_readings(directory: Path) -> list[Reading]:
    """Return what the processes of a measurement have written so far, the lowest rank first."""
    readings = [msgspec.json.decode(path.read_bytes(), type=Reading) for path in directory.glob("reading-*.json")]
    return sorted(readings, key=lambda reading: -1 if reading.rank is None else reading.rank)


def current_order() -> Order | None:
    """Return what this process is to measure; ``None`` in any process that ``msprobe estimate`` has not started.

    Raises:
        ConfigError: the variable holds something else.
    """
    value = os.environ.get(ORDER_VARIABLE)
    if not value:
        return None
    try:
        return msgspec.json.decode(value, type=Order)
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"the environment variable {ORDER_VARIABLE} is none of `msprobe estimate` ({error}); unset it"
        ) from error


class Measurement:
    """Stands between a debugger and its session in a process that is measured."""

    def __init__(self, order: Order, config_path: str | os.PathLike[str] | None, given: Mapping[str, Any]) -> None:
        """Read the program's configuration with what is ordered in its place, and start the clock.

        Raises:
            ConfigError: the configuration is wrong, or does not go with what is ordered.
        """
        self._order = order
        self._directory = Path(order.directory)
        self._dumps = Path(tempfile.mkdtemp(prefix="dump-", dir=self._directory))
        settings: dict[str, Any] = {**given, **order.settings, "dump_path": str(self._dumps)}
        config = load_config(config_path, **settings)
        if order.summary_mode is not None:
            options = msgspec.structs.replace(config.options, summary_mode=order.summary_mode)
            config = msgspec.structs.replace(config, options=options)
        self.config: Config = config
        """What the session records."""
        self.num_records = 0
        """Entries of the running step."""
        self._framework: Framework | None = None
        self._reading = Reading()
        self._reading.write(self._directory)
        self._began = time.perf_counter()

    def open(self, framework: Framework, writers: Mapping[str, WriterFactory]) -> dict[str, WriterFactory]:
        """Take note of what is recorded, and return writers that count."""
        self._framework = framework
        return {name: _CountingFactory(writer, self) for name, writer in writers.items()}

    def end_step(self, *, has_given_up: bool) -> None:
        """Take the measures of the step that has just been written; ends the process after the last one.

        Args:
            has_given_up: Whether the session records no more.
        """
        if isinstance(self._framework, DeviceGauge):
            self._framework.wait_for_devices()
        ended = time.perf_counter()
        reading = self._reading
        size = _size_of(self._dumps)
        if has_given_up:
            reading.problem = "recording ended by itself; what the program printed last says why"
        elif reading.num_warmup < self._order.num_warmup:
            reading.num_warmup += 1
        else:
            reading.times_s.append(ended - self._began)
            reading.sizes_bytes.append(size)
            reading.nums_records.append(self.num_records)
        reading.rank = None if self._framework is None else self._framework.rank()
        reading.peak_memory_bytes = _peak_memory()
        if isinstance(self._framework, DeviceGauge):
            reading.peak_device_bytes = self._framework.peak_device_bytes()
        is_last = has_given_up or len(reading.times_s) >= self._order.num_steps
        reading.is_complete = is_last and not has_given_up
        shutil.rmtree(self._dumps, ignore_errors=True)  # one step's room on the disk is enough
        reading.write(self._directory)
        if is_last:
            end_process()
        self.num_records = 0
        self._began = time.perf_counter()


def end_process() -> NoReturn:
    """End this process at once: nothing that the program does at its end is part of a step."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)


class _CountingFactory:
    def __init__(self, factory: WriterFactory, measurement: Measurement) -> None:
        self.name = factory.name
        self._factory = factory
        self._measurement = measurement

    def check(self) -> None:
        """Raise if something that the writer needs is not installed."""
        self._factory.check()

    def open(self, directory: Path, header: RunHeader) -> Writer:
        writer = self._factory.open(directory, header)
        if isinstance(writer, EndingWriter):
            return _CountingEndingWriter(writer, self._measurement)
        return _CountingWriter(writer, self._measurement)


class _CountingWriter:
    def __init__(self, writer: Writer, measurement: Measurement) -> None:
        self._writer = writer
        self._measurement = measurement

    def write(self, batch: Batch) -> None:
        self._measurement.num_records += len(batch.entries)
        self._writer.write(batch)

    def close(self) -> None:
        self._writer.close()


class _CountingEndingWriter(_CountingWriter):
    def end(self, ending: Ending) -> None:
        if isinstance(self._writer, EndingWriter):
            self._writer.end(ending)


def _size_of(directory: Path) -> int:
    return sum(path.lstat().st_size for path in directory.rglob("*") if path.is_file())


def _peak_memory() -> int:
    """Return the most bytes that this process has had resident.

    Linux's ``ru_maxrss`` also counts what the process was before it became this program, so its own number is taken
    where there is one (proc(5), VmHWM).
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
