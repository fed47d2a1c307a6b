"""The state of the current step: its complete entries, the order of reports, and the lock that all parts share."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from msprobe_core.capture.recorded_call import RecordedCall
from msprobe_core.model import Entry

_logger = logging.getLogger(__name__)

Finished = tuple[int, Entry, RecordedCall | None]
"""Time of completion, the complete entry, and the enclosing call."""

BACKLOG_ENTRIES, BACKLOG_SECONDS = 4096, 1.0
"""Maximum number of entries, and seconds, between two offers for writing: the most that a killed process loses."""

MAX_WAITING = 16384
"""Maximum number of complete entries that wait for a preceding one; beyond it, they are written out of order."""


class StepRecord:
    """Complete entries that are not written yet, in the order of completion."""

    __slots__ = (
        "_last_offer", "_max_waiting", "_num_late", "_num_since_offer", "clock", "finished", "floor", "is_open",
        "lock", "number", "on_backlog",
    )  # fmt: skip

    def __init__(self) -> None:
        """Begin without entries."""
        self.lock = threading.RLock()
        self.number = 0  # step number, counted by the recorder
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
        """Drop entries that are not written, and begin a new step."""
        self.number += 1
        self._reset()

    def add(self, entry: Entry, around: RecordedCall | None = None) -> None:
        """Add an entry that is complete now; its call is inside ``around``."""
        self.clock += 1
        self.finished.append((self.clock, entry, around))

    @property
    def is_overfull(self) -> bool:
        """Whether so many entries are complete that they must not wait any longer."""
        return len(self.finished) >= MAX_WAITING

    def offer_backlog(self) -> None:
        """Offer complete entries for writing, if there are many or the last offer was long ago."""
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
            # Entries that wait for a device stay; without a higher limit, each call would offer them again.
            num_waiting = len(self.finished)
            self._max_waiting = MAX_WAITING if num_waiting < MAX_WAITING else num_waiting + BACKLOG_ENTRIES

    def note_late(self, entry: str) -> None:
        """Count a gradient that arrived too late to be recorded; the first of a step is logged."""
        self._num_late += 1
        if self._num_late == 1:
            _logger.warning(
                "%s: a gradient came a second time in one backward pass or after its step was over, and is not "
                "recorded; this is said once a step, whatever the number of such gradients",
                entry,
            )
