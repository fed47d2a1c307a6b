"""The current step, and whether this rank records it."""

from __future__ import annotations

import logging
import os
from typing import Any

from msprobe_core.config import Config
from msprobe_core.errors import SessionError
from msprobe_core.protocols.framework import Framework

_logger = logging.getLogger(__name__)


class Schedule:
    """Counts steps and knows which of them the configuration selects."""

    def __init__(self, config: Config, framework: Framework) -> None:
        """Begin at step 0."""
        self._config = config
        self._framework = framework
        self._process = os.getpid()
        self.rank_id: int | None = None
        """The rank given to ``start``; overrides the framework's rank."""
        self.step = 0
        self.is_finished = False
        """Whether nothing will be recorded any more."""

    @property
    def rank(self) -> int | None:
        """The rank of this process; ``None`` outside of a job."""
        return self._framework.rank() if self.rank_id is None else self.rank_id

    @property
    def may_act(self) -> bool:
        """Whether this process may install anything; a forked child may not."""
        return self._config.dump_enable and os.getpid() == self._process

    @property
    def selects_rank(self) -> bool:
        """Whether steps of this process may still be recorded."""
        # The configuration treats a process outside of a job as rank 0.
        return not self.is_finished and self.may_act and self._config.selects_rank(self.rank or 0)

    @property
    def selects_step(self) -> bool:
        """Whether the current step is recorded by this process."""
        load = self._config.load
        if self.is_finished or (load is not None and not load.dump_after_load):
            return False
        return self._config.selects_step(self.step) and self.selects_rank

    def begin_at(self, step: int, *, can_record: bool) -> None:
        """Continue at ``step``; ``can_record`` is false if an error has ended recording."""
        self.step = step
        if can_record:
            last = self._config.last_step
            self.is_finished = last is not None and step > last

    def count_on(self) -> None:
        """Begin the next step."""
        self.step += 1
        last = self._config.last_step
        if last is not None and self.step > last and not self.is_finished:
            self.is_finished = True
            _logger.info("all selected steps are recorded under %s", self._config.directory)


def checked_step(step: Any) -> int:
    """Return a step number given by the user.

    Raises:
        SessionError: it is not an integer >= 0.
    """
    if not is_number(step):
        raise SessionError(f"set_init_step() got {step!r}; give an integer from 0")
    return step


def is_number(value: Any) -> bool:
    """Whether a value given by the user is an integer >= 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
