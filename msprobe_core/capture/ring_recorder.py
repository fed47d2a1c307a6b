"""The flight recorder: a light, always-on ring of the last steps' extremes, written when something goes wrong.

Of each tensor it keeps the largest and the smallest element, which are NaN or Inf if any element is. They stay
on the tensor's device until the step ends, are copied without synchronisation, and are checked once they have arrived.
Steps are written as dumps of modules that every command can read. `FlightRing` is independent of frameworks.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Protocol

from msprobe_core import names
from msprobe_core.capture.identity import own_identity
from msprobe_core.errors import ConfigError, MsprobeError
from msprobe_core.model import (
    Batch,
    Digest,
    Ending,
    EndState,
    Entry,
    Level,
    Phase,
    Role,
    RunHeader,
    Site,
    SiteKind,
    Stats,
    TensorMeta,
    TensorValue,
    Value,
)
from msprobe_core.store import layout
from msprobe_core.store.json_writer import JsonWriter

_logger = logging.getLogger(__name__)

MAX_WRITTEN = 3
"""Maximum number of dumps for NaN and Inf; a training that continues with them shows nothing new."""


class Tape(Protocol):
    """Holds the extremes of one step's tensors on their devices."""

    def put(self, tensor: Any) -> int | None:
        """Enqueue the reduction of a tensor, and return its index; ``None`` if the tensor has no extremes."""
        ...

    def seal(self) -> None:
        """Begin the copy to the host; no tensor is put afterwards."""
        ...

    def extremes(self, *, waits: bool) -> Sequence[tuple[float, float]] | None:
        """Return maximum and minimum by index; ``None`` if they have not arrived and ``waits`` is false."""
        ...


class Seen(NamedTuple):
    """One observation of a tensor at a call of a module.

    Attributes:
        module: Dotted path of the module; empty for the root.
        type_name: Its class.
        phase: Forward, backward or gradients of parameters.
        number: Index of the module's call in the step.
        role: Input, output, or parameter.
        name: Name of a parameter; empty otherwise.
        place: Index on the tape.
        meta: Describes the tensor.
    """

    module: str
    type_name: str
    phase: Phase
    number: int
    role: Role
    name: str
    place: int
    meta: TensorMeta


class FlightStep:
    """One step in the ring."""

    __slots__ = ("counts", "num_bad", "number", "seen", "tape")

    def __init__(self, number: int, tape: Tape) -> None:
        self.number = number
        self.tape = tape
        self.seen: list[Seen] = []
        self.counts: dict[Hashable, int] = {}
        self.num_bad: int | None = None  # unknown until the extremes have arrived


_open: weakref.WeakSet[FlightRing] = weakref.WeakSet()


def open_rings() -> list[FlightRing]:
    """Return the rings of this process that record, for those who want them written."""
    return list(_open)


class FlightRing:
    """The last steps, and the decision when to write them."""

    def __init__(
        self,
        directory: Path,
        make_tape: Callable[[], Tape],
        *,
        framework: str,
        prefix: str,
        rank: Callable[[], int | None],
        size: int,
    ) -> None:
        """Begin with an empty ring.

        Args:
            directory: Directory of the written steps, laid out as a run.
            make_tape: Returns a tape for one step.
            framework: Name of the framework.
            prefix: First part of the names of its modules' calls: ``Module`` or ``Cell``.
            rank: Returns the rank of this process, ``None`` outside of a job.
            size: Number of steps to keep.

        Raises:
            ConfigError: ``size`` is not positive.
        """
        if size < 1:
            raise ConfigError(f"'steps' is {size}, but at least the running step is kept; give a number from 1 on")
        self._directory = directory
        self._make_tape = make_tape
        self._framework = framework
        self._prefix = prefix
        self._rank = rank
        self._size = size
        self._steps: deque[FlightStep] = deque(maxlen=size)
        self._lock = threading.RLock()
        self._num_written = 0
        self._was_bad = False
        self._says_failure = True
        self.step = self._begin(0)
        _open.add(self)

    def _begin(self, number: int) -> FlightStep:
        step = FlightStep(number, self._make_tape())
        self._steps.append(step)
        return step

    @property
    def steps(self) -> Sequence[FlightStep]:
        """The steps in the ring, oldest first."""
        return list(self._steps)

    def end_step(self) -> None:
        """End a step, and check steps whose extremes have arrived; does not wait for a device."""
        self.step.tape.seal()
        self._look(waits=False)
        with self._lock:
            self.step = self._begin(self.step.number + 1)

    def _look(self, *, waits: bool) -> None:
        for step in list(self._steps):
            if step.num_bad is not None:
                continue
            extremes = step.tape.extremes(waits=waits)
            if extremes is None:
                continue
            step.num_bad = sum(not _are_finite(extremes[seen.place]) for seen in step.seen)
            if step.num_bad and not self._was_bad and self._num_written < MAX_WRITTEN:
                self._num_written += 1
                self.write(f"NaN or Inf in {step.num_bad:,} of {len(step.seen):,} tensors of step {step.number}")
            self._was_bad = bool(step.num_bad)

    def write(self, reason: str, *, waits: bool = False) -> Path | None:
        """Write all steps whose extremes have arrived, and return the directory; ``None`` after a logged failure.

        Args:
            reason: The reason, for the log.
            waits: Whether to wait for extremes that are still on a device.
        """
        try:
            with self._lock:
                written = [step for step in self._steps if self._write_step(step, waits=waits)]
        except (MsprobeError, OSError, RuntimeError) as error:  # RuntimeError: a lost device
            self.note_failure("the flight recorder", error)
            return None
        if written:
            first, last = written[0].number, written[-1].number
            _logger.warning(
                "%s: steps %d to %d are in %s; run: msprobe overflow_check %s",
                reason, first, last, self._directory, self._directory,
            )  # fmt: skip
        return self._directory

    def _write_step(self, step: FlightStep, *, waits: bool) -> bool:
        if step is self.step:
            step.tape.seal()
        extremes = step.tape.extremes(waits=waits)
        if extremes is None or not step.seen:
            return False
        directory = layout.unit_directory(self._directory, step.number, self._rank())
        layout.make_unit_directory(directory)
        header = RunHeader(task="statistics", level=Level.L0.value, framework=self._framework, run=own_identity())
        writer = JsonWriter(directory, header)
        try:
            writer.write(_batch_of(step, extremes, self._prefix))
            is_over = step is not self.step
            state, reason = (EndState.COMPLETE, "") if is_over else (EndState.EARLY, "the step was still running")
            writer.end(Ending(state=state, reason=reason, ended=time.time()))
        finally:
            writer.close()
        return True

    def retire(self) -> None:
        """Leave `open_rings`: nothing more is recorded."""
        _open.discard(self)

    def finish(self) -> None:
        """Check all steps a last time, and wait for their extremes: the training has ended."""
        self.retire()
        self.step.tape.seal()
        self._look(waits=True)

    def note_failure(self, where: str, error: Exception) -> None:
        """Log the first failure to record; the training continues."""
        if self._says_failure:
            self._says_failure = False
            _logger.warning("%s: not recorded (%s: %s); training goes on", where, type(error).__name__, error)


def _are_finite(extremes: tuple[float, float]) -> bool:
    return math.isfinite(extremes[0]) and math.isfinite(extremes[1])


def _batch_of(step: FlightStep, extremes: Sequence[tuple[float, float]], prefix: str) -> Batch:
    """Return the calls of a step in the order of their completion."""
    calls: dict[tuple[str, str, Phase, int], Entry] = {}
    ends: dict[tuple[str, str, Phase, int], int] = {}
    for moment, seen in enumerate(step.seen):
        key = seen.module, seen.type_name, seen.phase, seen.number
        entry = calls.get(key)
        if entry is None:
            site = Site(
                kind=SiteKind.MODULE, prefix=prefix, path=seen.module, type_name=seen.type_name, phase=seen.phase,
                index=seen.number,
            )  # fmt: skip
            entry = calls[key] = Entry(name=names.format_entry(site), phase=seen.phase)
            ends[key] = moment
        # A module's inputs are observed before its inner calls, so they do not set its end.
        if seen.role is Role.OUTPUT:
            ends[key] = moment
        high, low = extremes[seen.place]
        _add(entry, seen, TensorValue(seen.meta, Digest(stats=Stats(max=high, min=low))))
    entries = [calls[key] for key in sorted(calls, key=ends.__getitem__)]
    for number, entry in enumerate(entries):
        entry.sequence = number
    return Batch(entries, dict(_parents_of(calls)))


def _add(entry: Entry, seen: Seen, value: TensorValue) -> None:
    if seen.role is Role.OUTPUT:
        entry.outputs = [*(entry.outputs or []), value]
    elif seen.role is Role.INPUT:
        entry.inputs = [*(entry.inputs or []), value]
    else:
        own: Value = [value] if seen.phase is Phase.PARAMETERS_GRAD else value
        entry.parameters = (entry.parameters or {}) | {seen.name: own}


def _parents_of(calls: Mapping[tuple[str, str, Phase, int], Entry]) -> Mapping[str, str | None]:
    """Return each call's parent: the call with the same number of the nearest enclosing module that was called."""
    by_path: dict[tuple[str, Phase], list[str]] = {}
    for (path, _, phase, _), entry in calls.items():
        by_path.setdefault((path, phase), []).append(entry.name)
    parents: dict[str, str | None] = {}
    for (path, _, phase, index), entry in calls.items():
        around = path
        parents[entry.name] = None
        while around and phase is not Phase.PARAMETERS_GRAD:
            around = around.rpartition(".")[0]
            found = by_path.get((around, phase))
            if found is not None:
                parents[entry.name] = found[min(index, len(found) - 1)]
                break
    return parents


class Emergency:
    """Writes the ring when the process gets a termination signal, fails, or gets a signal from the user."""

    def __init__(self, ring: FlightRing, signals: Sequence[int], *, at_exit: bool) -> None:
        """Prepare the handlers.

        Args:
            ring: The ring to write.
            signals: Signals to handle; in the main thread only, the one that receives them.
            at_exit: Whether to write at a normal exit too.
        """
        self._ring = ring
        self._signals = signals
        self._at_exit = at_exit
        self._before: dict[int, Any] = {}
        self._excepthook: Callable[..., Any] | None = None

    def install(self) -> None:
        """Install the handlers."""
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                self._before[number] = signal.signal(number, self._on_signal)
        self._excepthook, sys.excepthook = sys.excepthook, self._on_exception
        if self._at_exit:
            atexit.register(self._on_exit)

    def remove(self) -> None:
        """Restore the previous handlers, unless other code has replaced ours since."""
        for number, before in self._before.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, before)
        self._before.clear()
        if sys.excepthook == self._on_exception and self._excepthook is not None:
            sys.excepthook = self._excepthook
        self._excepthook = None
        atexit.unregister(self._on_exit)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Do not wait for the device: users send signals to jobs that hang, where extremes may never arrive.
        self._ring.write(f"signal {signal.Signals(number).name}")
        before = self._before.get(number)
        if callable(before):
            before(number, frame)
        elif before is signal.SIG_DFL and number != getattr(signal, "SIGUSR1", None):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, Exception):
            self._ring.write(f"{kind.__name__} in the training", waits=True)
        (self._excepthook or sys.__excepthook__)(kind, error, trace)

    def _on_exit(self) -> None:
        self._ring.write("the program ends", waits=True)


DEFAULT_SIGNALS = tuple(int(getattr(signal, name)) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
"""SIGTERM, which job schedulers send before they kill, and SIGUSR1, for a request of the user."""
