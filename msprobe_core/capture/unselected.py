"""A program of which no step was recorded, as none of its steps, or not its rank, is selected."""

from __future__ import annotations

from msprobe_core.capture.session import Session
from msprobe_core.config import Config
from msprobe_core.config.ranges import format_ranges
from msprobe_core.errors import clip
from msprobe_core.manifest.process import launched_size
from msprobe_core.model import Task


class SeenSteps:
    """Notes in which steps windows began, for a warning at the end if the configuration selected none of them."""

    def __init__(self) -> None:
        """Begin without a window."""
        self._first: int | None = None
        self._last = 0
        self._rank: int | None = None
        self._has_selected = False

    def note(self, session: Session) -> None:
        """Note a window that has begun."""
        if session.is_selected:
            self._has_selected = True
        step = session.step_number
        self._first = step if self._first is None else min(step, self._first)
        self._last = max(step, self._last)
        rank = session.rank  # which is not known any more when the program has ended its process group
        self._rank = self._rank if rank is None else rank

    def forget(self) -> None:
        """Forget the steps until now, because another configuration counts from here on."""
        self._first, self._last = None, 0

    def complaint(self, config: Config, session: Session) -> str | None:
        """Return what hindered the recording, if windows began and none was selected; ``None`` otherwise.

        Args:
            config: The configuration that counts now.
            session: The last session.
        """
        if self._has_selected or self._first is None or not session.may_act or session.has_given_up:
            return None
        if config.task is Task.GRAD_PROBE or (config.load is not None and not config.load.dump_after_load):
            return None  # steps of an optimizer are counted by themselves, and who replays inputs may want no dump
        if not config.selects_rank(self._rank or 0):
            return _complaint_about_rank(config, self._rank)
        if not config.step:
            return None
        had = f"steps {self._first} to {self._last}" if self._first < self._last else f"step {self._first}"
        advice = "" if self._first < self._last else ", and call step() at the end of each"
        return (
            f"nothing was recorded: 'step' selects {_listed(config.step)}, but start() was called in {had} only (steps "
            f"count from 0); select steps that the program has{advice}"
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
