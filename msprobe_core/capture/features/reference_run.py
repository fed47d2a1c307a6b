"""The run that calls are compared with while they are recorded: an earlier one, or one that is still going on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from msprobe_core.errors import DumpError
from msprobe_core.findings import Finding
from msprobe_core.store.following import Growth, Progress, growth_of
from msprobe_core.store.layout import Unit
from msprobe_core.store.runs import find_unit, steps_of_run

_PAUSE_S = 0.02


@dataclass(frozen=True)
class ReferenceRun:
    """Finds the dump of the other run that belongs to a step of this one.

    Attributes:
        root: Directory of the other run.
        offset: Its step that corresponds to step 0 of this one.
        wait_s: How long `await_unit` waits at most, in seconds.
        clock: In seconds.
        sleep: Waits for some seconds.
    """

    root: Path
    offset: int = 0
    wait_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def directory(self, step: int) -> Path:
        """Return the directory of the other run's step, which may not exist yet."""
        return self.root / f"step{step + self.offset}"

    def unit(self, step: int, rank: int | None) -> tuple[Unit, Sequence[Finding]]:
        """Return the unit that corresponds to this process, and notes on the choice; see `find_unit`.

        Raises:
            DumpError: there is none.
        """
        return find_unit(self.directory(step), rank)

    def growth(self, step: int, rank: int | None) -> Growth:
        """Return how far the other run's dump of a step has come."""
        try:
            unit, _ = self.unit(step, rank)
        except (DumpError, OSError):
            return Growth(Progress.MISSING)
        return growth_of(unit.directory)

    def await_unit(self, step: int, rank: int | None) -> bool:
        """Return whether the other run's step is over, after waiting for that no longer than ``wait_s``."""
        end = self.clock() + self.wait_s
        while self.growth(step, rank).progress is not Progress.OVER:
            left = end - self.clock()
            if left <= 0:
                return False
            self.sleep(min(_PAUSE_S, left))
        return True

    def is_own(self, step: int) -> bool:
        """Whether the other run's step is of its latest run, not what an earlier one has left in its directory."""
        return step + self.offset in self._numbers()

    def is_past(self, step: int) -> bool:
        """Whether the other run has begun a later step."""
        return any(number > step + self.offset for number in self._numbers())

    def _numbers(self) -> Iterable[int]:
        try:
            return steps_of_run(self.root)[0]
        except (DumpError, OSError):
            return ()
