"""Which steps are to be recorded because of alarms, known to all ranks of a training without communication.

A request is the directory of the step's dump: it is created at once or exists already, and other ranks find it when the
time of the directory around it has changed, which costs one call of the system a step. Ranks run apart by less than
`NOTICE` steps in a training that exchanges gradients, so a requested step is that many steps ahead of the alarm.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from msprobe_core.errors import StoreError
from msprobe_core.store.layout import make_directory

NOTICE = 2
"""Steps between the one after an alarm and the one that is recorded, in a training of several processes."""

_STEP = re.compile(r"step([0-9]{1,12})")


class RecordingRequests:
    """The requests of one training."""

    def __init__(
        self,
        directory: Path,
        *,
        most: int,
        cooldown_s: float,
        is_shared: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without requests: directories that exist are of earlier trainings.

        Args:
            directory: Of the dumps; may not exist yet.
            most: How many requests there may be.
            cooldown_s: Seconds between two of them.
            is_shared: Whether other processes of the training look at the directory too.
            clock: In seconds.
        """
        self._directory = directory
        self._room = most
        self._cooldown_s = cooldown_s
        self._notice = NOTICE if is_shared else 0
        self._is_shared = is_shared
        self._clock = clock
        self._next_s = 0.0
        self._changed_ns = 0
        self._known = set(self._listed())

    def ask(self, step: int) -> int | None:
        """Ask for a step to be recorded, and return which one it will be; ``None`` if it is too early or too often.

        Args:
            step: The next one.

        Raises:
            StoreError: the directory cannot be created.
        """
        if self._room <= 0 or self._clock() < self._next_s:
            return None
        wanted = step + self._notice
        make_directory(self._directory)
        while wanted in self._known:  # of an earlier training
            wanted += 1
        path = self._directory / f"step{wanted}"
        try:
            path.mkdir(mode=0o700, exist_ok=True)  # another rank may just have asked for it
        except OSError as error:
            raise StoreError(f"{path}: cannot be created ({error.strerror}); check the directory") from error
        self._note(wanted)
        return wanted

    def poll(self) -> list[int]:
        """Return the steps that other processes have asked for since the last call."""
        if not self._is_shared:
            return []
        try:
            changed_ns = self._directory.stat().st_mtime_ns
        except OSError:  # nothing has been asked for
            return []
        if changed_ns == self._changed_ns:
            return []
        found = [step for step in self._listed() if step not in self._known]
        for step in found:
            self._note(step)
        # A directory that has just changed may change again within the resolution of its time.
        self._changed_ns = changed_ns if time.time_ns() - changed_ns > _RESOLUTION_NS else 0
        return sorted(found)

    def _note(self, step: int) -> None:
        self._known.add(step)
        self._room -= 1
        self._next_s = self._clock() + self._cooldown_s

    def _listed(self) -> list[int]:
        try:
            names = [path.name for path in self._directory.iterdir()]
        except OSError:
            return []
        return [int(match[1]) for name in names if (match := _STEP.fullmatch(name))]


_RESOLUTION_NS = 2_000_000_000
