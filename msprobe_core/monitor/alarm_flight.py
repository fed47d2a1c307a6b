"""What an alarm writes of the past: the last steps that the program's flight recorders keep."""

from __future__ import annotations

import logging
import time

from msprobe_core.capture.ring_recorder import open_rings
from msprobe_core.monitor.alarm_action import Answer
from msprobe_core.monitor.plan import MonitorPlan

_logger = logging.getLogger(__name__)


class AlarmFlight:
    """Has flight recorders write; see `msprobe_core.monitor.alarm_action.AlarmAction`."""

    def __init__(self, plan: MonitorPlan) -> None:
        """Begin with nothing written.

        Args:
            plan: Says how often alarms may write, and how far apart.
        """
        self._room = plan.extensions.max_windows
        self._cooldown_s = plan.extensions.cooldown_s
        self._next_s = 0.0
        self._has_said = False

    def ask(self) -> Answer | None:
        """Have the steps written that have arrived on the host; the host waits for no device."""
        rings = open_rings()
        if not rings and not self._has_said:
            self._has_said = True
            _logger.warning(
                "an alarm should have a flight recorder write its steps, but the program has none: with "
                "FlightRecorder(model, 'flight'), and its step() after that of the optimizer, there is one"
            )
        if not rings or self._room <= 0 or time.monotonic() < self._next_s:
            return None
        self._room -= 1
        self._next_s = time.monotonic() + self._cooldown_s
        written = [path for ring in rings if (path := ring.write("an alarm of the monitor")) is not None]
        if not written:
            return None
        return Answer(written[0], f"the last steps are recorded: msprobe overflow_check {written[0]}")
