"""The rule ``AnomalyUnusual``: judges values while the training runs, by the definition of `monitoring.unusual`.

The pasts of a quantity's values are arrays, so that a value costs microseconds and 900 bytes. Alarmed values enter
neither the past nor the limit; after `HISTORY` alarms in a row a value has found a new level, and begins a new past.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from msprobe_core.findings import Field, Finding, Level
from msprobe_core.monitor.alarms import Alarm
from msprobe_core.monitor.plan import Rule
from msprobe_core.monitor.readings import Reading, Step
from msprobe_core.monitoring.monitoring_codes import AnomalyCode
from msprobe_core.monitoring.quantities import Op, Quantity
from msprobe_core.monitoring.unusual import (
    BLOCKS,
    FALSE_ALARMS,
    HISTORY,
    JUDGED,
    LEAST_CHANGE,
    LEAST_LIMIT,
    LEAST_SPREAD,
    SMOOTH,
    SQUARED,
    TO_DEVIATION,
    WINDOW,
    limit_of,
    running_share,
    unsure_of,
)

_Floats: TypeAlias = NDArray[np.float64]
_Rows: TypeAlias = NDArray[np.intp]
_Mask: TypeAlias = NDArray[np.bool_]
_Place: TypeAlias = tuple[int, str, "int | None"]

_MAX_PLACES = 100_000
"""Values of one quantity that are judged, which take 90 MB; further ones are not."""

_ORDER = {quantity: number for number, quantity in enumerate(Quantity)}


@dataclass(frozen=True)
class _Judged:
    """What was made of the values of one quantity in a step.

    Attributes:
        distances: In units of what is usual; NaN without enough of a past.
        usual: Median of the past; NaN without enough of one.
        is_broken: Whether a value is no longer finite, or has become zero.
        limit: What distances are allowed; NaN before enough steps have shown it.
    """

    distances: _Floats
    usual: _Floats
    is_broken: _Mask
    limit: float

    @property
    def is_unusual(self) -> _Mask:
        return self.is_broken | (self.distances > self.limit)


class Calibrated:
    """Judges one statistic of each tensor, the first of `JUDGED` that is collected."""

    def __init__(self, rule: Rule, ops: Sequence[Op]) -> None:
        """Begin without a past.

        Args:
            rule: Has the probability of false alarms.
            ops: Those that are collected.
        """
        self._rule = rule
        self._op = next((Op(name) for name in JUDGED if Op(name) in ops), None)
        self._false_alarms = FALSE_ALARMS if rule.false_alarms is None else rule.false_alarms
        self._pasts: dict[Quantity, _Pasts] = {}
        self._num_judged = 0

    def check(self, step: Step) -> list[Alarm]:
        """Return the alarms of a step in the order of computation."""
        op = self._op
        if op is None:
            return []
        by_quantity: dict[Quantity, tuple[list[Reading], list[float]]] = {}
        for reading in step.readings.values():
            stats = reading.digest.stats
            if stats is not None and stats.l2_norm is not None:  # else without elements or numbers
                readings, values = by_quantity.setdefault(reading.quantity, ([], []))
                readings.append(reading)
                values.append(reading.value(op))
        found: list[Alarm] = []
        for quantity, (readings, values) in by_quantity.items():
            found += self._of_quantity(step.number, quantity, readings, np.array(values, dtype=np.float64), op)
        return sorted(found, key=_moment)  # sorts stably, so places keep their order

    def _of_quantity(
        self, step: int, quantity: Quantity, readings: list[Reading], values: _Floats, op: Op
    ) -> list[Alarm]:
        pasts = self._pasts.get(quantity)
        if pasts is None:
            pasts = self._pasts[quantity] = _Pasts(quantity)
        rows = pasts.rows_of(readings)
        values = values[: len(rows)]
        with np.errstate(divide="ignore", invalid="ignore"):
            judged = pasts.judge(rows, values, running_share(self._false_alarms, self._num_judged + 1))
        self._num_judged += not np.isnan(judged.distances).all()
        places: list[int] = np.flatnonzero(judged.is_unusual).tolist()
        return [_alarm(self._rule, step, readings[place], op, float(values[place]), judged, place) for place in places]


def _moment(alarm: Alarm) -> tuple[int, int]:
    """Return when a step computes a value, as `monitoring.history.in_order` sorts: the whole step comes last."""
    reading = alarm.reading
    whole = -1 if reading.quantity is Quantity.PARAM_ORIGIN else 1 << 30
    return whole if reading.micro_step is None else reading.micro_step, _ORDER[reading.quantity]


def _alarm(rule: Rule, step: int, reading: Reading, op: Op, value: float, judged: _Judged, place: int) -> Alarm:
    usual = float(judged.usual[place])
    fields: dict[str, Field] = {"statistic": op.value, "value": value if math.isfinite(value) else str(value)}
    if judged.is_broken[place]:
        code = AnomalyCode.BECAME_ZERO if value == 0 else AnomalyCode.NOT_FINITE
    else:
        code = AnomalyCode.MOVED
        fields |= {"distance": float(judged.distances[place]), "limit": judged.limit}
    history = None if math.isnan(usual) else usual
    finding = Finding(code, Level.ERROR, {**fields, "usual": history})
    return Alarm(step=step, reading=reading, op=op, rule=rule, value=value, history=history, finding=finding)


class _Pasts:
    """The pasts of the values of one quantity: a row for each."""

    def __init__(self, quantity: Quantity) -> None:
        self._is_smooth = quantity.value in SMOOTH
        self._has_distances = quantity.value != SQUARED
        self._rows: dict[_Place, int] = {}
        self._judged = np.empty((0, WINDOW))
        """What is judged of the values before, in a ring, NaN where there is none; and how far it was apart."""
        self._apart = np.empty((0, WINDOW))
        self._num_taken = np.empty(0, dtype=np.intp)
        self._num_logs = np.empty(0, dtype=np.intp)
        self._num_alarms = np.empty(0, dtype=np.intp)  # in a row
        self._before = np.empty(0)
        self._is_seen = np.empty(0, dtype=np.bool_)
        self._largest = np.full(BLOCKS, np.nan)
        self._num_largest = 0

    def rows_of(self, readings: Sequence[Reading]) -> _Rows:
        """Return the rows of readings, at most `_MAX_PLACES` in all."""
        known = self._rows
        found: list[int] = []
        for reading in readings:
            place = reading.stage, reading.name, reading.micro_step
            row = known.get(place)
            if row is None:
                if len(known) >= _MAX_PLACES:
                    break
                row = known[place] = len(known)
            found.append(row)
        if len(known) > len(self._before):
            self._grow(max(len(known), 2 * len(self._before)))
        return np.array(found, dtype=np.intp)

    def _grow(self, size: int) -> None:
        added = size - len(self._before)
        for name in ("_judged", "_apart"):
            setattr(self, name, np.concatenate([getattr(self, name), np.full((added, WINDOW), np.nan)]))
        for name in ("_num_taken", "_num_logs", "_num_alarms"):
            setattr(self, name, np.concatenate([getattr(self, name), np.zeros(added, dtype=np.intp)]))
        self._before = np.concatenate([self._before, np.full(added, np.nan)])
        self._is_seen = np.concatenate([self._is_seen, np.zeros(added, dtype=np.bool_)])

    def judge(self, rows: _Rows, values: _Floats, share: float) -> _Judged:
        """Compare values with their pasts, and take those that are usual into these.

        Args:
            rows: Of the values, each at most once.
            values: One number for each.
            share: Probability of a false alarm.
        """
        before, is_first = self._before[rows], ~self._is_seen[rows]
        logs, logs_before = _log_of(values), _log_of(before)
        self._num_logs[rows] += ~np.isnan(logs)
        has_past = self._num_logs[rows] > HISTORY
        judged = logs - logs_before if self._is_smooth else logs
        middle = _median(self._judged[rows])
        apart = np.abs(judged - middle)
        least = LEAST_CHANGE if self._is_smooth else LEAST_SPREAD
        distances = apart / np.fmax(TO_DEVIATION * _median(self._apart[rows]), least)
        distances[~has_past | (not self._has_distances)] = np.nan
        is_meant = np.isinf(values) & (is_first | np.isinf(before))
        became_zero = (values == 0) & (before != 0) & ~is_first & has_past
        found = _Judged(
            distances,
            np.abs(before) if self._is_smooth else np.exp(middle),
            (~np.isfinite(values) & ~is_meant) | became_zero,
            self._limit(share),
        )
        self._before[rows], self._is_seen[rows] = values, True
        self._take(rows, judged, apart, found)
        return found

    def _limit(self, share: float) -> float:
        if self._num_largest < HISTORY:
            return math.nan
        low, middle, high = np.quantile(self._largest[: self._num_largest], (0.25, 0.5, 0.75)).tolist()
        unsure = unsure_of(math.sqrt(self._num_largest))
        return max(limit_of(low, middle, high, share, unsure=unsure), LEAST_LIMIT)

    def _take(self, rows: _Rows, judged: _Floats, apart: _Floats, found: _Judged) -> None:
        is_unusual = found.is_unusual
        usual = found.distances[~is_unusual & ~np.isnan(found.distances)]
        if usual.size:
            self._largest[self._num_largest % BLOCKS] = usual.max()
            self._num_largest += 1
        self._num_alarms[rows] = np.where(is_unusual, self._num_alarms[rows] + 1, 0)
        taken = rows[~is_unusual]
        columns = self._num_taken[taken] % WINDOW
        self._judged[taken, columns], self._apart[taken, columns] = judged[~is_unusual], apart[~is_unusual]
        self._num_taken[taken] += 1
        renewed = rows[self._num_alarms[rows] >= HISTORY]
        self._judged[renewed] = self._apart[renewed] = np.nan
        self._num_logs[renewed] = self._num_alarms[renewed] = 0


def _log_of(values: _Floats) -> _Floats:
    return np.where(np.isfinite(values) & (values != 0), np.log(np.abs(values)), np.nan)


def _median(rings: _Floats) -> _Floats:
    """Return the median of each row, without NaN; NaN of rows with fewer than half of `HISTORY` numbers."""
    ordered = np.sort(rings, axis=1)  # NaN last
    counts = WINDOW - np.isnan(ordered).sum(axis=1)
    rows = np.arange(len(rings))
    middle = (ordered[rows, np.maximum(counts - 1, 0) // 2] + ordered[rows, counts // 2]) / 2
    return np.where(counts < HISTORY // 2, np.nan, middle)
