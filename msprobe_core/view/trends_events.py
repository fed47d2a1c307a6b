"""What to look at in a monitored training: where it diverges, anomalies, and alarms, each with its cell in the maps."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msprobe_core.findings import Finding
from msprobe_core.monitoring.anomalies import Anomaly, find_anomalies
from msprobe_core.monitoring.divergence import Divergence
from msprobe_core.monitoring.history import Monitored, Place
from msprobe_core.view.data import Dashboard, MonitorEvent, Said, said_of
from msprobe_core.view.trends_beside import AlarmSaid, Beside
from msprobe_core.view.trends_codes import TrendsCode
from msprobe_core.view.trends_maps import MAX_CELLS, Indexed, columns_of, worst_map

MAX_EVENTS = 50
"""Of each kind that a page lists."""

_MAX_ANOMALIES = 20_000
"""Anomalies that are gathered into events."""

_Units = Mapping[tuple[int | None, int | None], int]
"""Indices of dumps in the page, by step and rank."""


@dataclass
class _Gathered:
    """One event, of which more ranks and steps may be found."""

    text: Said
    row: int
    statistic: str
    step: int
    last: int
    ranks: set[int]
    count: int = 1


@dataclass(frozen=True)
class Events:
    """What to look at.

    Attributes:
        listed: Divergence, anomalies and alarms, as many as a page lists.
        places: Values that they name, first ones first.
        num_anomalies: How many there are in all.
        num_judged: Values that were judged.
        num_alarms: How many there are in all.
    """

    listed: Sequence[MonitorEvent]
    places: Sequence[Place] = field(default_factory=tuple)
    num_anomalies: int = 0
    num_judged: int = 0
    num_alarms: int = 0


def events_of(
    source: Indexed, run: Monitored, first: tuple[Divergence | None, Said] | None, around: Beside, units: _Units
) -> Events:
    """Return what to look at.

    Args:
        source: Of the maps.
        run: The training under test.
        first: Where it diverges from golden or stops being finite, and the sentence that says so; ``None`` if unknown.
        around: Alarms, and dumps of steps.
        units: Dumps in the page.
    """
    rows = {place: i for i, place in enumerate(source.places)}
    anomalies = find_anomalies(run, most=_MAX_ANOMALIES)
    of_anomalies = _gathered(((each.place, rows.get(each.place, -1), each) for each in anomalies.found), run.steps)
    alarms = [(_row_of(each, rows), each) for each in around.alarms]
    of_alarms = _gathered(
        (((row, each.statistic, each.name if row < 0 else ""), row, each) for row, each in alarms), run.steps
    )
    found = [("anomaly", each) for each in of_anomalies[:MAX_EVENTS]] + [
        ("alarm", each) for each in of_alarms[:MAX_EVENTS]
    ]
    divergence = None if first is None else first[0]
    is_known = divergence is not None and any(
        (source.places[each.row], each.step) == (divergence.place, divergence.step)
        for each in of_anomalies
        if each.row >= 0
    )
    if first is not None and divergence is not None and (source.has_golden or not is_known):
        parted = _Gathered(
            text=first[1],
            row=rows.get(divergence.place, -1),
            statistic=divergence.statistic,
            step=divergence.step,
            last=divergence.step,
            ranks=set(divergence.ranks),
        )
        at = 0 if source.has_golden else sum(each.step < parted.step for each in of_anomalies[:MAX_EVENTS])
        found.insert(at, ("divergence" if source.has_golden else "not-finite", parted))
    return Events(
        listed=[_event(kind, each, around, units) for kind, each in found],
        places=list(dict.fromkeys(source.places[each.row] for _, each in found if each.row >= 0)),
        num_anomalies=anomalies.num_found,
        num_judged=anomalies.num_judged,
        num_alarms=len(around.alarms),
    )


def _gathered(found: Iterable[tuple[Hashable, int, Anomaly | AlarmSaid]], steps: Sequence[int]) -> list[_Gathered]:
    """Put events of one value together if they are of several ranks or follow each other.

    Args:
        found: Each with what identifies its value, and its row; of one value in order.
        steps: Of the training.
    """
    at = {step: i for i, step in enumerate(steps)}
    gathered: list[_Gathered] = []
    latest: dict[Hashable, _Gathered] = {}
    for value, row, each in found:
        own = latest.get(value)
        if own is not None and (each.step == own.last or at.get(each.step, -2) == at.get(own.last, -4) + 1):
            own.last, own.count = each.step, own.count + 1
            own.ranks.add(each.rank)
        else:
            own = _Gathered(said_of(each.finding), row, each.statistic, each.step, each.step, {each.rank})
            latest[value] = own
            gathered.append(own)
    return gathered


def _row_of(alarm: AlarmSaid, rows: Mapping[Place, int]) -> int:
    """Return the row that an alarm is of, -1 without one. Alarms say 0 where a value has no stage or micro step."""
    stages = (alarm.stage, None) if alarm.stage == 0 else (alarm.stage,)
    for stage in stages:
        for micro_step in (alarm.micro_step, None):
            row = rows.get(Place(quantity=alarm.quantity, stage=stage, name=alarm.name, micro_step=micro_step))
            if row is not None:
                return row
    return -1


def _event(kind: str, own: _Gathered, around: Beside, units: _Units) -> MonitorEvent:
    ranks = sorted(own.ranks)
    unit = next((units[own.step, rank] for rank in (*ranks, None) if (own.step, rank) in units), None)
    if unit is None:
        unit = next((unit for (step, _), unit in units.items() if step == own.step), None)
    return MonitorEvent(
        kind=kind,
        text=own.text,
        row=own.row,
        statistic=own.statistic,
        step=own.step,
        ranks=ranks,
        count=own.count,
        unit=unit,
        command="" if unit is not None else around.command(own.step),
    )


def dashboard_of(source: Indexed, events: Events, around: Beside) -> tuple[Dashboard, list[Finding]]:
    """Return all values at a glance, and what was left out."""
    notes: list[Finding] = []
    statistics = list(source.statistics)
    if len(source.places) * len(source.steps) * len(statistics) > MAX_CELLS and len(statistics) > 1:
        statistics = statistics[:1]
        fields = {"statistic": statistics[0], "count": len(source.places), "steps": len(source.steps)}
        notes.append(Finding(TrendsCode.ONLY_STATISTIC, fields=fields))
    columns = columns_of(source, len(statistics))
    if len(columns) < len(source.steps):
        notes.append(Finding(TrendsCode.STEPS_BINNED, fields={"count": -(-len(source.steps) // len(columns))}))
    dashboard = Dashboard(
        ranks=source.ranks,
        steps=source.steps,
        columns=columns,
        rows=source.rows,
        maps=[worst_map(source, statistic, columns) for statistic in statistics],
        events=events.listed,
        num_anomalies=events.num_anomalies,
        num_judged=events.num_judged,
        num_alarms=events.num_alarms,
        coverage=around.coverage,
    )
    return dashboard, notes
