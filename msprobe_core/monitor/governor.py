"""Keeps the monitor's share of a training's time below a bound, by collecting fewer steps.

What is measured is the host's time in the monitor's own code: its hooks, the steps' ends, the files. On the CPU, where
statistics are computed at once, that is most of its cost; not in it are the interception of calls, and the time that a
device computes statistics.

Intervals are the user's, doubled as often as needed. Ranks decide by their own times and may differ, but they all count
from ``start_step``: what a rank collects at a wide interval, all others collect too.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.monitor.schedule import Schedule
from msprobe_core.store.atomic_file import write_json

_logger = logging.getLogger(__name__)

FILE = "overhead.json"

_NUM_KEPT, _LEAST_KEPT = 15, 3
"""Steps of each kind whose medians count, and how many there must be; the first, which allocates, is left out."""

_MARGIN = 0.8
"""Share of the bound below which a narrower interval must stay to be taken, so that intervals do not alternate."""

_MOST = 1 << 20


class OwnTime:
    """Adds up the time in blocks and calls; those inside of others count once."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin at zero.

        Args:
            clock: In seconds.
        """
        self.clock = clock
        self._depth = 0
        self._began = 0.0
        self._seconds = 0.0

    def __enter__(self) -> None:
        """Begin a block."""
        if not self._depth:
            self._began = self.clock()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._depth -= 1
        if not self._depth:
            self._seconds += self.clock() - self._began

    def take(self) -> float:
        """Return the seconds since the last call, those of the current block included."""
        if self._depth:
            now = self.clock()
            self._seconds += now - self._began
            self._began = now
        found, self._seconds = self._seconds, 0.0
        return found

    def count_calls(self, of: Any, *names: str) -> None:
        """Count the calls of an object's methods from now on."""
        for name in names:
            setattr(of, name, self._counted(getattr(of, name)))

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return method(*args, **kwargs)

        return run


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """An interval that was chosen.

    Attributes:
        step: From which it counts.
        interval: Distance between collected steps.
        expected_share: Share of the training's time that it should take.
    """

    step: int
    interval: int
    expected_share: float


class Overhead(msgspec.Struct, kw_only=True):
    """What ``overhead.json`` holds.

    Attributes:
        max_overhead: The bound.
        share: Share of the training's time that the monitor has taken; steps recorded after an alarm are left out.
        monitor_s: Seconds that it has taken.
        training_s: Seconds of the whole training, these included.
        num_steps: Steps of the training.
        num_collected: Of them, those that were collected.
        collected_step_s: Median duration of a collected step.
        other_step_s: Median duration of another; ``None`` if there was none.
        intervals: Those that were chosen.
    """

    max_overhead: float
    share: float = 0.0
    monitor_s: float = 0.0
    training_s: float = 0.0
    num_steps: int = 0
    num_collected: int = 0
    collected_step_s: float | None = None
    other_step_s: float | None = None
    intervals: list[Change] = []


class Governor:
    """Chooses the interval of a schedule by what steps cost."""

    def __init__(self, schedule: Schedule, own: OwnTime, max_overhead: float, directory: Path) -> None:
        """Begin with the plan's interval.

        Args:
            schedule: Whose interval is chosen.
            own: Measures the monitor.
            max_overhead: Largest share of the training's time.
            directory: Of the file.
        """
        self._schedule = schedule
        self._least = schedule.interval
        self._own = own
        self._limit = max_overhead
        self._path = directory / FILE
        self._began: float | None = None
        self._costs: deque[float] = deque(maxlen=_NUM_KEPT)  # of collected steps
        self._bare: deque[float] = deque(maxlen=_NUM_KEPT)  # all steps, without the monitor
        self._walls: dict[bool, deque[float]] = {each: deque(maxlen=_NUM_KEPT) for each in (True, False)}
        self._overhead = Overhead(max_overhead=max_overhead)

    def end_step(self, step: int, *, is_collected: bool, is_recorded: bool) -> None:
        """Take the times of a step, and choose the interval from the next one on.

        Args:
            step: That ends.
            is_collected: Whether the monitor has collected it.
            is_recorded: Whether a window of recording was open, whose cost does not count.

        Raises:
            StoreError: the file cannot be written.
        """
        now, cost = self._own.clock(), self._own.take()
        began, self._began = self._began, now
        if began is None or is_recorded:  # what came before the first step is not the training's
            return
        wall, found = now - began, self._overhead
        found.monitor_s += cost
        found.training_s += wall
        found.num_steps += 1
        found.num_collected += is_collected
        self._bare.append(wall - cost)
        self._walls[is_collected].append(wall)
        if is_collected:
            self._costs.append(cost)
            self._choose(step)

    def _choose(self, step: int) -> None:
        if len(self._costs) < _LEAST_KEPT:
            return
        cost, bare = statistics.median(self._costs), statistics.median(self._bare)
        old = interval = self._schedule.interval
        while self._share(interval, cost, bare) > self._limit and interval < _MOST:
            interval *= 2
        while interval > self._least and self._share(interval // 2, cost, bare) <= _MARGIN * self._limit:
            interval //= 2
        if interval == old:
            return
        self._schedule.interval = interval
        change = Change(step=step + 1, interval=interval, expected_share=self._share(interval, cost, bare))
        if not self._overhead.intervals:
            _logger.warning(
                "the monitor takes %.1f %% of the training, where %.1f %% are allowed: from step %d on, every %d. step "
                "is collected; %s lists all changes",
                100 * self._share(old, cost, bare), 100 * self._limit, step + 1, interval, self._path,
            )  # fmt: skip
        self._overhead.intervals.append(change)
        self._write()

    @staticmethod
    def _share(interval: int, cost: float, bare: float) -> float:
        return cost / (interval * bare + cost) if cost > 0 else 0.0

    def close(self) -> None:
        """Write the file.

        Raises:
            StoreError: it cannot be written.
        """
        if self._overhead.num_steps:
            self._write()

    def _write(self) -> None:
        found, (collected, others) = self._overhead, (self._walls[True], self._walls[False])
        found.share = found.monitor_s / found.training_s if found.training_s > 0 else 0.0
        found.collected_step_s = statistics.median(collected) if collected else None
        found.other_step_s = statistics.median(others) if others else None
        write_json(self._path, found)
