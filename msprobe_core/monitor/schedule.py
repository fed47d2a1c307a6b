"""Which steps of a training are collected."""

from __future__ import annotations

from msprobe_core.monitor.plan import MonitorPlan


class Schedule:
    """Chooses steps by the plan's interval and count."""

    def __init__(self, plan: MonitorPlan, rank: int) -> None:
        """Begin with no step collected.

        Args:
            plan: Names the steps and ranks.
            rank: Of this process.
        """
        self._plan = plan
        self._is_of_rank = not plan.module_ranks or rank in plan.module_ranks
        self.num_collected = 0

    def selects(self, step: int) -> bool:
        """Whether to collect a step."""
        plan = self._plan
        since = step - plan.start_step
        is_due = since >= 0 and since % plan.step_interval == 0
        return self._is_of_rank and is_due and self.num_collected < plan.collect_times

    def note_collected(self) -> None:
        """Count a collected step."""
        self.num_collected += 1
