"""A program of which no step was recorded, as none of its steps, or not its rank, is selected."""

from __future__ import annotations

import logging

from msprobe_core.capture.session import Session
from msprobe_core.capture.session_factory import AnySession
from msprobe_core.config import Config
from msprobe_core.config.ranges import format_ranges
from msprobe_core.errors import clip
from msprobe_core.manifest.process import launched_size
from msprobe_core.model import Level, Task

_logger = logging.getLogger(__name__)


class SeenSteps:
    """Notes in which steps windows were open, for a warning at the end if the configuration selected none of them."""

    def __init__(self, *, is_requested: bool) -> None:
        """Begin without a window.

        Args:
            is_requested: Whether another program has requested the recording, and explains it itself.
        """
        self._is_requested = is_requested
        self._first: int | None = None
        self._last = 0
        self._rank: int | None = None
        self._has_rank_id = False
        self._has_selected = False

    def note(self, session: AnySession | None) -> None:
        """Note the step and the rank of a session whose window, or its step, is about to end."""
        if not isinstance(session, Session) or session.running_window is None or session.has_given_up:
            return
        schedule = session.schedule
        if schedule.selects_step:
            self._has_selected = True
        self._first = schedule.step if self._first is None else min(schedule.step, self._first)
        self._last = max(schedule.step, self._last)
        rank = schedule.rank  # which is not known any more when the program has ended its process group
        self._rank = self._rank if rank is None else rank
        self._has_rank_id |= schedule.rank_id is not None

    def forget(self) -> None:
        """Forget the steps until now, because another configuration counts from here on."""
        self._first, self._last = None, 0

    def warn(self, config: Config, session: AnySession | None) -> None:
        """Log what hindered the recording, if windows began and none was selected.

        Args:
            config: The configuration that counts now.
            session: The last session.
        """
        if self._first is None:
            self.note(session)  # a program that only starts
        is_own = isinstance(session, Session) and session.schedule.may_act and not session.has_given_up
        if is_own and not self._is_requested and (complaint := self._complaint(config)) is not None:
            _logger.warning("%s", complaint)

    def _complaint(self, config: Config) -> str | None:
        if self._has_selected or self._first is None:
            return None
        if config.task is Task.GRAD_PROBE or (config.load is not None and not config.load.dump_after_load):
            return None  # steps of an optimizer are counted by themselves, and who replays inputs may want no dump
        if not config.selects_rank(self._rank or 0):
            return None if self._has_rank_id else _complaint_about_rank(config, self._rank)
        # Values are saved without a window too. One process of a job says it for all.
        if not config.step or config.level is Level.DEBUG or (self._rank or 0) != min(config.rank, default=0):
            return None
        had = f"steps {self._first} to {self._last}" if self._first < self._last else f"step {self._first}"
        advice = "" if self._first < self._last else ", and call step() at the end of each"
        return (
            f"nothing was recorded: 'step' selects {_listed(config.step)}, but start() covered {had} only (steps count "
            f"from 0); select steps that the program has{advice}"
        )


def _complaint_about_rank(config: Config, rank: int | None) -> str | None:
    """Return that no process of the job is selected, once for the job; ``None`` if another process may be."""
    if rank is None:
        return (
            f"nothing was recorded: 'rank' selects {_listed(config.rank)}, but this process is in no job and counts as "
            "rank 0; leave 'rank' out, or give start() the rank as rank_id"
        )
    size = launched_size()
    if not size or rank != 0 or min(config.rank) < size:
        return None
    return (
        f"nothing was recorded: 'rank' selects {_listed(config.rank)}, but the ranks of this job are 0 to {size - 1}; "
        "select ranks that it has"
    )


def _listed(numbers: tuple[int, ...]) -> str:
    return clip(", ".join(format_ranges(numbers)), 60)
