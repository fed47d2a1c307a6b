"""Keeps the share of a training's time that checks take below a bound, by choosing the steps that are recorded.

A step that is not recorded costs next to nothing, because nothing is attached in it. What recording costs besides the
checks, whose time is measured, is the median by which such steps take longer than those right before them: the speed of
a machine changes with what else it does.

Recorded are steps whose number is a multiple of a power of two, which each rank chooses by its own times. So what a
rank records at a wide distance, the others record too, and the delays of ranks that wait for each other do not add up.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager

_NUM_KEPT = 15
"""Number of durations of each kind whose median counts."""

_LEAST_PLAIN = 3
"""Number of steps without recording that a recorded step is compared with, and that must precede the second one."""

_MAX_PERIOD = 1 << 20


class StepBudget:
    """Decides which steps are recorded, and how long calls may be checked at the end of one.

    Args:
        share: The bound: seconds of recording and checking per second of the whole training.
        clock: In seconds.
    """

    def __init__(self, share: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.share = share
        self.clock = clock
        self.period = 1
        """Distance between recorded steps."""
        self._check_s = 0.0
        self._checking_since: float | None = None
        self.num_steps = 0
        self.num_recorded = 0
        self._began = self._mark = clock()
        self._check_s_at_mark = 0.0
        self._plain: deque[float] = deque(maxlen=_NUM_KEPT)
        self._excess: deque[float] = deque(maxlen=_NUM_KEPT)
        self._plain_s = 0.0
        self._overhead = 0.0  # of recording one step, in seconds; 0 as long as it is not known

    @property
    def training_s(self) -> float:
        """Seconds since the beginning, those of checks included."""
        return self.clock() - self._began

    @property
    def check_s(self) -> float:
        """Seconds of all checks, with the current one."""
        since = self._checking_since
        return self._check_s + (0.0 if since is None else self.clock() - since)

    @contextmanager
    def checking(self) -> Generator[None, None, None]:
        """Count the time of the block as that of checks."""
        self._checking_since = self.clock()
        try:
            yield
        finally:
            self._check_s, self._checking_since = self.check_s, None

    @property
    def recording_s(self) -> float:
        """Seconds that recording has taken, besides the checks."""
        return self.num_recorded * self._overhead

    @property
    def allowance(self) -> float:
        """Seconds that may be spent now; negative if too many were."""
        return self.share * self.training_s - self.check_s - self.recording_s

    @property
    def left(self) -> float:
        """Seconds that may be spent in the step that ends, whose recording is not counted yet."""
        return self.allowance - self._overhead

    @property
    def next_allowance(self) -> float:
        """Seconds that checks may take at the end of the next recorded step."""
        return self.left + self.share * self._plain_s * self.period

    def wants(self, number: int) -> bool:
        """Return whether to record a step.

        Args:
            number: Of the step among those that the configuration selects, from 0.
        """
        if not self.num_recorded or self.share >= 1:
            return True
        if len(self._plain) < _LEAST_PLAIN or number % self.period:
            return False
        return self.allowance > self._overhead

    def end_step(self, *, was_recorded: bool) -> None:
        """Note the end of a step, after its checks."""
        now = self.clock()
        duration = now - self._mark - (self.check_s - self._check_s_at_mark)
        self._mark, self._check_s_at_mark = now, self.check_s
        self.num_steps += 1
        self.num_recorded += was_recorded
        if self.num_steps == 1:  # in the first step, frameworks allocate and compile
            return
        if not was_recorded:
            self._plain.append(duration)
            self._plain_s = statistics.median(self._plain)
        elif self._plain:
            self._excess.append(duration - statistics.median(list(self._plain)[-_LEAST_PLAIN:]))
            self._overhead = max(0.0, statistics.median(self._excess))
        self._choose_period()

    def _choose_period(self) -> None:
        """Choose a period for which recording takes at most half of what may be spent; the rest is for checks."""
        if not self._plain:
            return
        in_one = self.share * self._plain_s
        self.period = 1
        while in_one * self.period < 2 * self._overhead and self.period < _MAX_PERIOD:
            self.period *= 2
