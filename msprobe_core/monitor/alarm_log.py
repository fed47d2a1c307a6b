"""Alarms while a training runs: logged, and written to ``anomaly.json``."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msprobe_core.monitor.alarm_action import AlarmAction, Answer
from msprobe_core.monitor.alarm_dump import next_step_without_dump
from msprobe_core.monitor.alarms import Alarm, Alarms
from msprobe_core.monitor.calibrated import Calibrated
from msprobe_core.monitor.plan import MonitorPlan
from msprobe_core.monitor.readings import Step
from msprobe_core.monitor.sinks import Sink
from msprobe_core.monitoring.quantities import Op
from msprobe_core.store.atomic_file import write_json

_logger = logging.getLogger(__name__)

_MAX_SAID, _MAX_KEPT = 10, 1000
"""Alarms that are logged, and that are in the file: a training that has gone wrong alarms in every step."""


@dataclass(frozen=True)
class _Answered:
    """An alarm, and what is recorded because of it, if anything is."""

    alarm: Alarm
    answer: Answer | None


class AlarmLog(Sink):
    """Checks each step, and reports its alarms."""

    def __init__(self, plan: MonitorPlan, rank: int, action: AlarmAction | None = None) -> None:
        """Begin without alarms.

        Args:
            plan: Has the rules.
            rank: Of this process.
            action: Records something; ``None`` if alarms have nothing recorded.
        """
        self._action = action
        self._checks = _checks_of(plan)
        self._path = plan.output / "anomaly_detected" / f"rank{rank}" / "anomaly.json"
        self._is_written = plan.writes_alarms
        self._rank = rank
        self._num_found = 0
        self._kept: list[_Answered] = []

    def follow(self, plan: MonitorPlan) -> None:
        """Apply the rules of another plan from now on; what was found stays."""
        self._checks = _checks_of(plan)
        self._is_written = plan.writes_alarms

    def add(self, step: Step) -> None:
        """Report the alarms of a step.

        Raises:
            StoreError: the file cannot be written, or nothing can be recorded.
        """
        alarms = _first_of_each([alarm for check in self._checks for alarm in check(step)])
        if not alarms:
            return
        answer = None if self._action is None else self._action.ask()
        for alarm in alarms[: max(_MAX_SAID - self._num_found, 0)]:
            _logger.warning("%s %s", sentence_of(alarm, self._rank), _capitalised(next_step(alarm, answer)))
        self._num_found += len(alarms)
        room = _MAX_KEPT - len(self._kept)
        if room > 0 and self._is_written:
            self._kept += [_Answered(alarm, answer) for alarm in alarms[:room]]
            self._write(self._kept)

    def _write(self, alarms: Sequence[_Answered]) -> None:
        write_json(self._path, dict(_record_of(alarm, self._rank) for alarm in alarms))


def _checks_of(plan: MonitorPlan) -> list[Callable[[Step], list[Alarm]]]:
    """Return what finds the alarms of a step: the established rules in their order, then our own."""
    own = [rule for rule in plan.rules if rule.rule_name == "AnomalyUnusual"]
    established = [rule for rule in plan.rules if rule not in own]
    found = [Alarms(established, plan.ops).check] if established else []
    return [*found, *(Calibrated(rule, plan.ops).check for rule in own[:1])]


def _first_of_each(alarms: Sequence[Alarm]) -> list[Alarm]:
    """Return the first alarm of each value."""
    found: dict[tuple[int, Op], Alarm] = {}
    for alarm in alarms:
        found.setdefault((id(alarm.reading), alarm.op), alarm)
    return list(found.values())


def sentence_of(alarm: Alarm, rank: int) -> str:
    """Return an alarm as the established monitor words it; of our own rule, with what the value does."""
    where = f"({alarm.reading.tag(rank)!r}, {alarm.op.value!r}) at step {alarm.step}"
    said = f"Rule {alarm.rule.rule_name} reports anomaly signal in {where}"
    if alarm.finding is not None:
        return f"{said}: {alarm.finding.text}."
    compared = "" if alarm.history is None else f", history mean {alarm.history}"
    return f"{said}, current value {alarm.value}{compared}."


def next_step(alarm: Alarm, answer: Answer | None) -> str:
    """Return what to do about an alarm.

    Args:
        alarm: Any.
        answer: What is recorded because of it; ``None`` if nothing is.
    """
    return next_step_without_dump(alarm.step, alarm.reading.name) if answer is None else answer.next_step


def _capitalised(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _record_of(answered: _Answered, rank: int) -> tuple[str, dict[str, Any]]:
    """Return the key and the record of an alarm in ``anomaly.json``; the operation is part of the key."""
    alarm, answer = answered.alarm, answered.answer
    tag = alarm.reading.tag(rank)
    record = {
        "rank": rank,
        "step": alarm.step,
        "micro_step": alarm.reading.micro_step or 0,
        "pp_stage": 0,
        "vpp_stage": alarm.reading.stage,
        "call_id": 0,
        "tag_name": tag,
        "op": alarm.op.value,
        "value": alarm.value if json.dumps(alarm.value).lstrip("-")[:1].isdigit() else str(alarm.value),
        "message": sentence_of(alarm, rank),
        "group_mates": [rank],
        "dump": None if answer is None else str(answer.directory),
        "next": next_step(alarm, answer),
    }
    return f"{tag}_step_{alarm.step}_{alarm.op.value}", record
