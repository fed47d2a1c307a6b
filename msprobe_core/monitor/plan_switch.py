"""Switches collection while a training runs: its configuration is edited, and ``dynamic_on`` says what happens."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from msprobe_core.config.atomic import locked, write_whole
from msprobe_core.config.edit import text_with
from msprobe_core.config.text import read_text
from msprobe_core.config.watch import POLL_SECONDS, Stamp, stamp_if_any
from msprobe_core.errors import ConfigError
from msprobe_core.monitor.plan import MonitorPlan
from msprobe_core.monitor.plan_file import load_plan

_logger = logging.getLogger(__name__)

VARIABLE = "DYNAMIC_MONITOR"
_FIELD = "dynamic_on"

_STEPS_OF_OTHERS = 2
"""Steps that other ranks may still have to make when this one has collected its last: they see the file later."""


def is_switched() -> bool:
    """Whether the environment asks for a training whose monitor is switched by its file."""
    return os.environ.get(VARIABLE, "").lower() == "true"


class Switch:
    """Watches the file of one plan, and switches it off when everything has been collected."""

    def __init__(self, plan: MonitorPlan, rank: int, *, wall_clock: Callable[[], float] = time.time) -> None:
        """Begin with a plan that has been read.

        Args:
            plan: Names its file.
            rank: Of this process; only the first rank that collects writes to the file.
            wall_clock: Clock of file systems, in seconds.

        Raises:
            ConfigError: the plan is of no file.
        """
        if plan.source is None:
            raise ConfigError(f"{VARIABLE} switches the monitor by a file, and its plan was not read from one")
        self._path = plan.source
        self._current: MonitorPlan = plan
        self._rank = rank
        self._wall_clock = wall_clock
        self._taken: Stamp | None = None  # the first check reads the file: it may have changed since it was loaded
        self._since_done = 0
        self.is_on = plan.dynamic_on

    def poll(self, *, is_done: bool) -> MonitorPlan | None:
        """Return the plan to follow from the next step on; ``None`` to go on.

        Costs a look at the file's status as long as it is as it was.

        Args:
            is_done: Whether the current plan has been collected.

        Raises:
            StoreError: the file cannot be switched off.
        """
        if self.is_on and is_done:
            self.is_on, self._since_done = False, 1
        plan = self._edited()
        if plan is not None and plan.dynamic_on and (plan != self._current or not self.is_on):
            self._current, self.is_on, self._since_done = plan, True, 0
            return plan
        if plan is not None and self.is_on and not plan.dynamic_on:
            self.is_on = False
            return plan
        if self._since_done:
            self._since_done += 1
            if self._since_done > _STEPS_OF_OTHERS:
                self.end()
        return None

    def end(self) -> None:
        """Switch the file off if everything has been collected and it has not been done yet.

        Raises:
            StoreError: it cannot be written.
        """
        is_first = self._rank == min(self._current.module_ranks, default=0)
        if self._since_done and is_first:
            self._since_done = 0
            _switch_off(self._path)

    def _edited(self) -> MonitorPlan | None:
        """Return the plan in a file that has changed; one that cannot be used is said once."""
        stamp = stamp_if_any(self._path)
        if stamp == self._taken:
            return None
        try:
            plan = load_plan(self._path)
        except ConfigError as error:
            # What was written to just now may be incomplete.
            if self._wall_clock() - stamp.changed_ns * 1e-9 >= POLL_SECONDS:
                self._taken = stamp
                _logger.warning("%s; the monitor goes on as before", error)
            return None
        if stamp_if_any(self._path) != stamp:
            return None  # modified while it was read
        is_first, self._taken = self._taken is None, stamp
        return None if is_first and plan == self._current else plan


def _switch_off(path: Path) -> None:
    path = path.resolve()
    with locked(path):
        text = read_text(path, kind="a configuration file of the monitor", advice="it was there before")
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            return  # it is being edited
        if isinstance(fields, dict) and _FIELD in fields:
            wanted = {**cast("dict[str, Any]", fields), _FIELD: False}
            write_whole(path, text_with(text, wanted, _FIELD, path))
