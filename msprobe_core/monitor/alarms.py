"""Alarms of the established monitor, checked while a training runs, by the same rules.

``AnomalyTurbulence`` compares a norm or mean with the exponential mean of its own magnitudes, of weight 0.99: it holds
if the magnitude is more than ``1 + threshold`` times as large. ``AnomalyNan`` holds of NaN and Inf, and of a magnitude
above a threshold if one is given. Values that alarm do not enter the mean, so that one NaN does not end the watch.
``AnomalyUnusual`` is a rule of our own; see `msprobe_core.monitor.calibrated`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from msprobe_core.findings import Finding
from msprobe_core.monitor.plan import Rule
from msprobe_core.monitor.readings import Reading, Step
from msprobe_core.monitoring.quantities import Op

_WEIGHT = 0.99
_JUDGED = (Op.NORM, Op.MEAN)


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A value that a rule reports.

    Attributes:
        step: Of the value.
        reading: Of which it is.
        op: Which number.
        rule: That holds.
        value: The number.
        history: What it was compared with; ``None`` without one.
        finding: What the value does, of ``AnomalyUnusual``.
    """

    step: int
    reading: Reading
    op: Op
    rule: Rule
    value: float
    history: float | None
    finding: Finding | None = None


class Alarms:
    """Checks steps against rules, and keeps the history that these need."""

    def __init__(self, rules: Sequence[Rule], ops: Sequence[Op]) -> None:
        """Begin without a history.

        Args:
            rules: In the order in which they are tried; the first that holds is reported.
            ops: Those that are collected.
        """
        self._rules = rules
        self._ops = [op for op in ops if op in _JUDGED]
        self._means: dict[tuple[object, ...], float] = {}

    def check(self, step: Step) -> list[Alarm]:
        """Return the alarms of a step in the order of its readings."""
        if not self._rules:
            return []
        found = [self._of(step.number, reading, op) for reading in step.readings.values() for op in self._ops]
        return [alarm for alarm in found if alarm is not None]

    def _of(self, step: int, reading: Reading, op: Op) -> Alarm | None:
        stats = reading.digest.stats
        if stats is None or stats.l2_norm is None:  # a tensor without elements or numbers
            return None
        value = float(reading.value(op))
        key = (reading.quantity, reading.stage, reading.name, reading.micro_step, op)
        mean = self._means.get(key)
        for rule in self._rules:
            if _holds(rule, value, mean):
                return Alarm(step=step, reading=reading, op=op, rule=rule, value=value, history=mean)
        if math.isfinite(value):
            size = abs(value)
            self._means[key] = size if mean is None else _WEIGHT * mean + (1 - _WEIGHT) * size
        return None


def _holds(rule: Rule, value: float, mean: float | None) -> bool:
    if rule.rule_name == "AnomalyNan":
        return not math.isfinite(value) or (rule.threshold is not None and abs(value) > rule.threshold)
    return mean is not None and rule.threshold is not None and abs(value) > mean * (1 + rule.threshold)
