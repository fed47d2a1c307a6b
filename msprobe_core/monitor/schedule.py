"""Which steps of a training are collected."""

from __future__ import annotations

from msprobe_core.monitor.plan import MonitorPlan


class Schedule:
    """Chooses steps by the plan's interval and count."""

    def __init__(self, plan: MonitorPlan, rank: int, *, is_on: bool = True) -> None:
        """Begin with no step collected.

        Args:
            plan: Names the steps and ranks.
            rank: Of this process.
            is_on: Whether to collect at all.
        """
        self._plan = plan
        self._is_of_rank = plan.selects_rank(rank)
        self.is_on = is_on
        self.num_collected = 0
        self.interval = plan.step_interval
        """Distance between steps to collect; a `msprobe_core.monitor.governor.Governor` widens it."""

    @property
    def is_done(self) -> bool:
        """Whether as many steps have been collected as the plan asks for."""
        return self.num_collected >= self._plan.collect_times

    def selects(self, step: int) -> bool:
        """Whether to collect a step."""
        plan = self._plan
        since = step - plan.start_step
        is_due = since >= 0 and since % self.interval == 0 and (plan.stop_step is None or step < plan.stop_step)
        return self.is_on and self._is_of_rank and is_due and not self.is_done

    def note_collected(self) -> None:
        """Count a collected step."""
        self.num_collected += 1
