"""What a step has recorded so far: its complete entries, the order of reports, and the lock that all parts share."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from msprobe_core.capture.recorded_call import RecordedCall
from msprobe_core.model import Entry

_logger = logging.getLogger(__name__)

Finished = tuple[int, Entry, RecordedCall | None]
"""An entry that is complete, when it was, and the call that encloses its own."""

BACKLOG_ENTRIES, BACKLOG_SECONDS = 4096, 1.0
"""How much may be recorded, and for how long, before it is offered for writing: what a killed process loses."""

MAX_WAITING = 16384
"""So many complete entries may wait for one that precedes them; then they are written out of order."""


class StepRecord:
    """Entries that are complete and not written yet, in the order in which they became complete."""

    __slots__ = (
        "_last_offer", "_max_waiting", "_num_late", "_num_since_offer", "clock", "finished", "floor", "is_open",
        "lock", "number", "on_backlog",
    )  # fmt: skip

    def __init__(self) -> None:
        """Begin with nothing recorded."""
        self.lock = threading.RLock()
        self.number = 0  # of the step, counted by the recorder
        self.is_open = True
        self.on_backlog: Callable[[], None] | None = None
        self.floor: int | None = None  # see `CallRecorder.set_clock`
        self._last_offer = time.monotonic()
        self._num_since_offer = 0
        self._reset()

    def _reset(self) -> None:
        self.clock = 0
        self.finished: list[Finished] = []
        self._num_late = 0
        self._max_waiting = MAX_WAITING

    def next_step(self) -> None:
        """Forget what has not been written, and begin a new step."""
        self.number += 1
        self._reset()

    def add(self, entry: Entry, around: RecordedCall | None = None) -> None:
        """Take an entry that is complete now, of a call inside of ``around``."""
        self.clock += 1
        self.finished.append((self.clock, entry, around))

    @property
    def is_overfull(self) -> bool:
        """Whether so much is complete that it must not wait any longer."""
        return len(self.finished) >= MAX_WAITING

    def offer_backlog(self) -> None:
        """Offer what is complete for writing, if it is much or the last offer was long ago."""
        if self.on_backlog is None:
            return
        self._num_since_offer += 1
        if (
            self._num_since_offer >= BACKLOG_ENTRIES
            or len(self.finished) >= self._max_waiting
            or time.monotonic() - self._last_offer >= BACKLOG_SECONDS
        ):
            self._num_since_offer = 0
            self.on_backlog()
            self._last_offer = time.monotonic()
            # What waits for a device is not offered again with each call.
            num_waiting = len(self.finished)
            self._max_waiting = MAX_WAITING if num_waiting < MAX_WAITING else num_waiting + BACKLOG_ENTRIES

    def note_late(self, entry: str) -> None:
        """Count a gradient that is not recorded because it came too late."""
        self._num_late += 1
        if self._num_late == 1:
            _logger.warning(
                "%s: a gradient came a second time in one backward pass or after its step was over, and is not "
                "recorded; this is said once a step, whatever the number of such gradients",
                entry,
            )
