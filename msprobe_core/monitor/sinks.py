"""What receives the steps of a monitor when their results have arrived."""

from __future__ import annotations

from msprobe_core.errors import SessionError
from msprobe_core.monitor.plan import MonitorPlan
from msprobe_core.monitor.readings import Step
from msprobe_core.protocols.monitoring import MonitorWriter


class Sink:
    """Receives complete steps, in their order. What it raises is logged, and the training goes on."""

    def add(self, step: Step) -> None:
        """Take a step."""
        raise NotImplementedError

    def close(self) -> None:
        """End; called once. Nothing is left to do by default."""


def check_writer(writer: MonitorWriter) -> None:
    """Refuse an object of a script that cannot receive values, before the training runs.

    Raises:
        SessionError: it lacks ``add(step, values)`` or ``close()``.
    """
    if not all(callable(getattr(writer, name, None)) for name in ("add", "close")):
        raise SessionError(f"add_writer() got {type(writer).__name__}, which lacks add(step, values) or close()")


class Written(Sink):
    """Passes the values of steps on to a writer."""

    def __init__(self, writer: MonitorWriter, plan: MonitorPlan) -> None:
        self._writer = writer
        self._ops_of = plan.ops_of

    def follow(self, plan: MonitorPlan) -> None:
        """Write the operations of another plan from now on."""
        self._ops_of = plan.ops_of

    def add(self, step: Step) -> None:
        """Take a step."""
        self._writer.add(step.number, step.values(self._ops_of))

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()
