"""Selection by ``scope``, ``list``, ``data_mode`` and ``tensor_list`` of the configuration."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Container, Sequence
from pathlib import Path

from msprobe_core.config import DataMode, TaskOptions
from msprobe_core.model import Phase, Role

_logger = logging.getLogger(__name__)

_DIRECTIONS = {DataMode.FORWARD: Phase.FORWARD, DataMode.BACKWARD: Phase.BACKWARD}
_SIDES = {DataMode.INPUT: Role.INPUT, DataMode.OUTPUT: Role.OUTPUT}

_NUM_SHOWN = 3

_MAX_UNMATCHED = 4096
"""Maximum number of unmatched names among which similar ones are searched."""


class Selection:
    """Decides by entry name, direction and side of the call.

    ``scope`` is an interval in time: it opens when the entry with its first name begins and closes when the entry with
    its last name has ended, so both are inside. ``list`` selects entries whose names contain one of its strings.
    """

    def __init__(self, options: TaskOptions) -> None:
        self._patterns = options.list
        self.sample: Container[str] | None = None
        """Names of the only entries to select, in place of ``list``; ``None`` for all."""
        self._tensor_patterns = options.tensor_list
        self._first, self._last = options.scope or (None, None)
        self._modes = frozenset(options.data_mode) - {DataMode.ALL}
        self._phases = _axis(self._modes, _DIRECTIONS)
        self._sides = _axis(self._modes, _SIDES)
        self._inside = self._first is None
        self.has_opened = self._inside
        self.has_closed = False
        self._has_matched = not self._patterns
        self._last_complaint: str | None = None
        self._has_said_empty = False
        self._unmatched: dict[str, None] = {}  # in the order of calls, until one matches

    @property
    def has_patterns(self) -> bool:
        """Whether ``list`` or a sample restricts the selection."""
        return bool(self._patterns) or self.sample is not None

    @property
    def is_inside(self) -> bool:
        """Whether ``scope`` is open; always true without a scope."""
        return self._inside

    def matches(self, entry: str) -> bool:
        """Whether ``list`` or the sample selects an entry by its own name."""
        if self.sample is not None:
            return entry in self.sample
        if not self._patterns:
            return True
        if any(pattern in entry for pattern in self._patterns):
            self._has_matched = True
            return True
        if not self._has_matched:
            self._note(entry)
        return False

    def keeps_tensors(self, entry: str) -> bool:
        """Whether ``tensor_list`` selects the whole tensors of an entry; true without a list."""
        return not self._tensor_patterns or any(pattern in entry for pattern in self._tensor_patterns)

    def takes(self, phase: Phase, side: Role) -> bool:
        """Whether ``data_mode`` includes this direction and side. Parameters count as inputs."""
        if phase is Phase.PARAMETERS_GRAD:
            return Phase.BACKWARD in self._phases and Role.OUTPUT in self._sides
        return phase in self._phases and (Role.INPUT if side is Role.PARAMETERS else side) in self._sides

    def takes_phase(self, phase: Phase) -> bool:
        """Whether ``data_mode`` includes any side of this direction."""
        return phase in self._phases

    def begin(self, entry: str) -> None:
        """Note that an entry begins."""
        if entry == self._first:
            self._inside = self.has_opened = True
        elif not self.has_opened:
            self._note(entry)

    def end(self, entry: str) -> None:
        """Note that an entry has ended."""
        if self._inside and entry == self._last:
            self._inside = False
            self.has_closed = True

    def restart(self) -> None:
        """Begin a new step: call indices start at 0 again, and so does the scope."""
        self._inside = self.has_opened = self._first is None
        self.has_closed = False
        self._has_matched = not self._patterns
        self._unmatched.clear()

    def report(self, step: int, directory: Path | None, *, num_calls: int) -> None:
        """Warn about a selection without effect in this step, unless the last step had the same complaint.

        Args:
            step: The step that ends.
            directory: Of its dump.
            num_calls: How many calls were seen; without any, a warning is given once: an empty dump explains nothing.
        """
        complaint = self.complaint()
        if complaint and complaint != self._last_complaint:
            _logger.warning("step %d: %s", step, complaint)
        self._last_complaint = complaint
        if num_calls == 0 and complaint is None and not self._has_said_empty:
            self._has_said_empty = True
            _logger.warning(
                "step %d: nothing was recorded to %s, as no call that the configuration selects was seen between start "
                "and stop; this is said once", step, directory,
            )  # fmt: skip

    def complaint(self) -> str | None:
        """Return a complaint about this step: a scope that did not open or close, or a list without a match."""
        if not self.has_opened:
            nearest = self._nearest([self._first or ""])
            return f"'scope' never opened: no entry was named {self._first!r}, so nothing was recorded{nearest}"
        if not self._has_matched and self._unmatched:
            nearest = self._nearest(self._patterns)
            return f"nothing was recorded: no call matched 'list' {list(self._patterns)!r}{nearest}"
        if self._first is None or self.has_closed:
            return None
        return f"'scope' never closed: no entry was named {self._last!r}, so recording went on to the end of the step"

    def _note(self, entry: str) -> None:
        if len(self._unmatched) < _MAX_UNMATCHED:
            self._unmatched[entry] = None

    def _nearest(self, wanted: Sequence[str]) -> str:
        """Return the names of calls in this step, most similar first, for a message."""
        names = list(self._unmatched)
        close = [name for each in wanted for name in difflib.get_close_matches(each, names, n=_NUM_SHOWN, cutoff=0.3)]
        shown = list(dict.fromkeys([*close, *names]))[:_NUM_SHOWN]
        return f"; calls that there were: {', '.join(shown)}" if shown else "; no call was seen"


def _axis(modes: frozenset[DataMode], axis: dict[DataMode, Phase] | dict[DataMode, Role]) -> frozenset[Phase | Role]:
    """Return the values of one axis that ``modes`` names; all of them if it names none."""
    return frozenset(value for mode, value in axis.items() if mode in modes) or frozenset(axis.values())
