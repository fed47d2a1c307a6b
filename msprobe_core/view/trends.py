"""Monitor files in the page's form: trends, and where values become non-finite or two trainings diverge."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import polars as pl

from msprobe_core.compare.pairs import Chosen
from msprobe_core.errors import CompareError, NothingInCommonError
from msprobe_core.findings import Field, Finding, Level
from msprobe_core.monitoring.divergence import DIVERGED, Divergence, first_divergence, first_non_finite, num_shared
from msprobe_core.monitoring.files import KnownFiles, find_monitored, read_monitored
from msprobe_core.monitoring.history import Monitored, Place
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.store.kernel_files import find_kernel_units
from msprobe_core.store.layout import holds_units
from msprobe_core.store.reading import is_dump
from msprobe_core.untrusted.paths import shown
from msprobe_core.view.data import (
    Counts,
    Dashboard,
    Kind,
    Made,
    Number,
    Said,
    Side,
    Sides,
    State,
    Trend,
    Verdict,
    ViewData,
    number,
    said_of,
)
from msprobe_core.view.trends_beside import beside
from msprobe_core.view.trends_codes import TrendsCode
from msprobe_core.view.trends_events import dashboard_of, events_of
from msprobe_core.view.trends_maps import Indexed, indexed

MAX_NUMBERS = 1_000_000
"""Maximum number of numbers in all trends of a page, some 10 MB of JSON. Beyond it, only norms are shown, then only the
first values."""

_PHASES = {
    Quantity.PARAM_ORIGIN.value: "",
    Quantity.ACTIVATION.value: "forward",
    Quantity.ACTIVATION_GRADIENT.value: "backward",
    Quantity.GRADIENT_UNREDUCED.value: "parameters_grad",
    Quantity.GRADIENT_REDUCED.value: "parameters_grad",
    Quantity.EXP_AVG.value: "optimizer",
    Quantity.EXP_AVG_SQ.value: "optimizer",
    Quantity.PARAM_UPDATED.value: "optimizer",
}
_NUM_DIGITS = 7
_LIMIT = 100 * DIVERGED
"""Limit of the relative difference, in percent."""
_MAX_RANKS = 4
_MAX_BEGIN = 8
"""Values of the first divergence that come before those of anomalies."""
_LEAST_STEPS = 16
"""Steps that a line must have: where there is no room for them, whole values are left out."""


@dataclass(frozen=True)
class MonitorFindings:
    """Findings from the files of one monitor, or of two.

    Attributes:
        verdict: The answer, with details.
        trends: Trends of the values that the answer and the anomalies name come first.
        dashboard: All values at a glance.
        notes: What was left out.
    """

    verdict: Verdict
    trends: list[Trend]
    dashboard: Dashboard
    notes: list[Finding]


def holds_monitored_alone(path: Path) -> bool:
    """Whether a path holds monitor files and no dump."""
    if is_dump(path) or find_monitored(path) is None:
        return False
    return not (holds_units(path) or find_kernel_units(path))


def monitored_data(target: Path, golden: Path | None, chosen: Chosen) -> ViewData:
    """Return the data of a page for monitor files; it contains trends only.

    Args:
        target: A directory with one directory for each rank, or that of one rank.
        golden: The trusted training, of the same kind; ``None`` to view one training.
        chosen: Selected steps and ranks.

    Raises:
        CompareError: the golden run has no monitor files, or the two have nothing in common.
        DumpError: a file cannot be read.
    """
    found = findings_of(target, golden, chosen)
    if found is None:
        raise CompareError(lacking(target, golden))
    return page_of(target, golden, found)


def lacking(target: Path, golden: Path | None) -> str:
    """Return the sentence that says which of two has no files of a monitor."""
    side = golden if golden is not None and find_monitored(golden) is None else target
    return (
        f"{side}: holds no files of a monitor, as the other does; "
        "give two directories that monitors have written, or two of dumps"
    )


def page_of(target: Path, golden: Path | None, found: MonitorFindings) -> ViewData:
    """Return the data of a page that has nothing but findings of monitors."""
    sides = [None if path is None else Side(shown(str(path)), "", "monitor", "") for path in (target, golden)]
    assert sides[0] is not None
    return ViewData(
        made=Made.now(),
        kind=Kind.MONITOR,
        title=target.name if golden is None else f"{target.name} and {golden.name}",
        sides=Sides(sides[0], sides[1]),
        verdict=found.verdict,
        trends=found.trends,
        monitor=found.dashboard,
        notes=list(map(said_of, found.notes)),
    )


def findings_of(
    target: Path, golden: Path | None, chosen: Chosen, units: Mapping[tuple[int | None, int | None], int] | None = None
) -> MonitorFindings | None:
    """Return findings from monitor files, with or without dumps; ``None`` if a side has no monitor files.

    Args:
        target: The training, or the run that has its files.
        golden: The trusted one.
        chosen: Selected steps and ranks.
        units: Indices of the dumps in the page, by step and rank.

    Raises:
        CompareError: the two have nothing in common.
        DumpError: a file cannot be read.
    """
    runs = read_runs(target, golden, chosen)
    if runs is None:
        return None
    analysis = analyzed(runs, target, chosen, units or {})
    divergence = analysis.divergence
    begin = [] if divergence is None else [divergence.place, *divergence.others]
    first = [*begin[:_MAX_BEGIN], *analysis.places, *begin]
    notes = list(analysis.notes)
    telling = [event.step for event in analysis.dashboard.events]
    trends = _trends(runs.target, runs.golden, first, analysis.source.places, telling, notes)
    return MonitorFindings(analysis.verdict, trends, analysis.dashboard, notes)


@dataclass(frozen=True)
class Runs:
    """One monitored training or two, and the directory of the first."""

    target: Monitored
    golden: Monitored | None
    directory: Path


def read_runs(target: Path, golden: Path | None, chosen: Chosen, files: KnownFiles | None = None) -> Runs | None:
    """Read one training or two; ``None`` if a side has no monitor files.

    Args:
        target: The training, or the run that has its files.
        golden: The trusted one.
        chosen: Selected steps and ranks.
        files: Those that were read before.

    Raises:
        DumpError: a file cannot be read.
    """
    places = [find_monitored(path) for path in (target, golden) if path is not None]
    runs = [None if place is None else read_monitored(place, chosen.steps, chosen.ranks, files) for place in places]
    own, directory = runs[0], places[0]
    other = runs[1] if golden is not None else None
    if own is None or directory is None or (golden is not None and other is None):
        return None
    return Runs(own, other, directory)


@dataclass(frozen=True)
class Analysis:
    """What one training or two say, but for the lines of single ranks.

    Attributes:
        verdict: The answer.
        divergence: Where it begins; ``None`` if it does not.
        places: Values that events name, first ones first.
        source: Of all maps.
        dashboard: All values at a glance.
        notes: What was left out.
    """

    verdict: Verdict
    divergence: Divergence | None
    places: Sequence[Place]
    source: Indexed
    dashboard: Dashboard
    notes: Sequence[Finding]


def analyzed(runs: Runs, target: Path, chosen: Chosen, units: Mapping[tuple[int | None, int | None], int]) -> Analysis:
    """Return what one training or two say.

    Raises:
        CompareError: the two have nothing in common.
    """
    own, other = runs.target, runs.golden
    notes = [
        note if other is None else Finding(TrendsCode.OF_SIDE, fields={"side": side, "note": note})
        for side, run in (("target", own), ("golden", other))
        if run is not None
        for note in run.notes
    ]
    divergence = first_non_finite(own) if other is None else first_divergence(own, other)
    verdict = _verdict_of_one(own, divergence) if other is None else _verdict_of_two(own, other, divergence)
    source = indexed(own, other)
    around = beside(target, runs.directory, chosen.steps, chosen.ranks)
    sentence = verdict.sentence if isinstance(verdict.sentence, Said) else None
    found = events_of(source, own, None if sentence is None else (divergence, sentence), around, units)
    dashboard, said = dashboard_of(source, found, around)
    verdict = _with_anomalies(verdict, dashboard)
    return Analysis(verdict, divergence, found.places, source, dashboard, [*notes, *around.notes, *said])


# --- the sentence -------------------------------------------------------------------------------------------------


def _verdict_of_one(run: Monitored, divergence: Divergence | None) -> Verdict:
    if divergence is None:
        finite = Finding(TrendsCode.FINITE, fields={"extent": _extent(run)})
        return Verdict(State.NONE, said_of(finite), counts=Counts(run.frame.height))
    return Verdict(
        State.FAULT,
        said_of(Finding(TrendsCode.NOT_FINITE, Level.ERROR, _place(divergence))),
        detail=[said_of(_others(divergence)), said_of(Finding(TrendsCode.LOOKED_AT, fields={"extent": _extent(run)}))],
        counts=Counts(run.frame.height, divergence.num_places),
    )


def _verdict_of_two(target: Monitored, golden: Monitored, divergence: Divergence | None) -> Verdict:
    total = num_shared(target, golden)
    if not total:
        raise NothingInCommonError(
            f"the two monitors have no value of a rank and step in common: the target has {_extent(target)}, "
            f"the golden run {_extent(golden)}"
        )
    compared = Finding(TrendsCode.COMPARED, fields={"count": total, "limit": _LIMIT})
    if divergence is None:
        agree = Finding(TrendsCode.AGREE, fields={"limit": _LIMIT})
        return Verdict(State.AGREE, said_of(agree), detail=[said_of(compared)], counts=Counts(total))
    detail = [_difference(divergence), _others(divergence)]
    any_first = first_divergence(target, golden, 0.0)
    if any_first is not None and any_first.step < divergence.step:
        detail.append(Finding(TrendsCode.FIRST_DIFFERENCE, fields=_place(any_first)))
    return Verdict(
        State.FAULT,
        said_of(_parting(divergence)),
        detail=[said_of(each) for each in (*detail, compared)],
        counts=Counts(total, divergence.num_places),
    )


def _with_anomalies(verdict: Verdict, dashboard: Dashboard) -> Verdict:
    """Return the answer with the first value that its own past does not explain."""
    first = next((event for event in dashboard.events if event.kind == "anomaly" and event.row >= 0), None)
    if first is None or not isinstance(first.text, Said):
        return verdict
    fields: dict[str, Field] = {
        "count": dashboard.num_anomalies,
        "place": _where(first.step, dashboard.rows.micro_step[first.row], first.ranks),
        "value": f"{dashboard.rows.name[first.row]} ({dashboard.rows.quantity[first.row]})",
        "finding": first.text.finding,
    }
    unusual = said_of(Finding(TrendsCode.UNUSUAL, Level.ERROR, fields))
    return msgspec.structs.replace(verdict, detail=[*verdict.detail, unusual])


def _place(divergence: Divergence) -> dict[str, Field]:
    """Return the fields for the location of an event: ``place`` and ``value``."""
    place = _where(divergence.step, divergence.place.micro_step, divergence.ranks)
    return {"place": place, "value": f"{divergence.place.shown} ({divergence.place.quantity})"}


def _where(step: int, micro_step: int | None, ranks: Sequence[int]) -> Finding:
    parts = [Finding(TrendsCode.STEP, fields={"step": step})]
    if micro_step:
        parts.append(Finding(TrendsCode.MICRO_STEP, fields={"micro_step": micro_step}))
    if len(ranks) == 1:
        parts.append(Finding(TrendsCode.RANK, fields={"rank": ranks[0]}))
    else:
        code = TrendsCode.RANKS if len(ranks) <= _MAX_RANKS else TrendsCode.MANY_RANKS
        parts.append(Finding(code, fields={"ranks": ranks[:_MAX_RANKS]}))
    return Finding(TrendsCode.PLACE, fields={"parts": parts})


def _parting(divergence: Divergence) -> Finding:
    fields = {**_place(divergence), "statistic": divergence.statistic}
    if divergence.relative == float("inf"):
        return Finding(TrendsCode.PART_NOT_FINITE, Level.ERROR, {**fields, "target": divergence.target})
    return Finding(TrendsCode.PART, Level.ERROR, {**fields, "percent": 100 * divergence.relative})


def _difference(divergence: Divergence) -> Finding:
    fields = {"statistic": divergence.statistic, "target": divergence.target, "golden": divergence.golden}
    return Finding(TrendsCode.DIFFERENCE, fields=fields)


def _others(divergence: Divergence) -> Finding:
    if divergence.num_places == 1:
        return Finding(TrendsCode.ONLY_VALUE)
    return Finding(TrendsCode.FIRST_OF, fields={"count": divergence.num_places})


def _extent(run: Monitored) -> Finding:
    steps = run.steps
    if not steps:
        return Finding(TrendsCode.NO_VALUES)
    of_steps = Finding(TrendsCode.STEPS, fields={"first": steps[0], "last": steps[-1]})
    if len(steps) == 1:
        of_steps = Finding(TrendsCode.STEP, fields={"step": steps[0]})
    fields = {"ranks": len(run.ranks), "steps": of_steps, "values": run.frame.height}
    return Finding(TrendsCode.EXTENT, fields=fields)


# --- trends -------------------------------------------------------------------------------------------------------


def _trends(
    target: Monitored,
    golden: Monitored | None,
    first: Sequence[Place],
    every: Sequence[Place],
    telling: Sequence[int],
    notes: list[Finding],
) -> list[Trend]:
    """Return statistics of all values over steps for each rank, as many as fit in a page.

    Args:
        target: The training.
        golden: The trusted one.
        first: Values that come first, with all their steps.
        every: All values.
        telling: Steps that all values should have, most telling first.
        notes: Gets what was left out.
    """
    runs = [run for run in (target, golden) if run is not None]
    places = list(dict.fromkeys([*first, *every]))
    steps = sorted({step for run in runs for step in run.steps})
    num_ranks = sum(len(run.ranks) for run in runs)
    shown = [name for name in target.statistics if golden is None or name in golden.statistics] or target.statistics
    if num_ranks * len(steps) * len(places) * len(shown) > MAX_NUMBERS:
        shown = shown[:1]
    room = MAX_NUMBERS // max(1, num_ranks * len(shown))  # in steps of a place
    whole, thin = list(dict.fromkeys(first))[: room // 2 // max(1, len(steps))], steps
    if len(steps) * len(places) > room:
        left = room - len(whole) * len(steps)
        thin = thinned(steps, telling, max(_LEAST_STEPS, left // max(1, len(places) - len(whole))))
    if len(thin) < len(steps):
        fitting = places[: len(whole) + (room - len(whole) * len(steps)) // len(thin)]
        fields = {"count": len(fitting) - len(whole), "total": len(places), "steps": len(thin)}
        notes.append(Finding(TrendsCode.STEPS_THINNED, fields={**fields, "all_steps": len(steps)}))
    else:
        whole, fitting = places, places[: max(1, room // max(1, len(steps)))]
    if len(fitting) < len(places):
        notes.append(Finding(TrendsCode.NO_ROOM, fields={"left_out": len(places) - len(fitting), "total": len(places)}))
    steps_of = {place: steps if place in whole else thin for place in fitting}
    found = [_histories(run, steps_of, set(steps) - set(thin), shown) for run in runs]
    return [
        Trend(
            name=place.shown,
            slot=place.quantity,
            statistic=statistic,
            phase=_PHASES.get(place.quantity, ""),
            steps=own,
            target=_series(found[0].get(place, {}), i, own),
            golden=None if golden is None else _series(found[1].get(place, {}), i, own),
            micro_step=place.micro_step,
            origin="monitor",
        )
        for place, own in steps_of.items()
        for i, statistic in enumerate(shown)
    ]


def thinned(steps: Sequence[int], telling: Sequence[int], num: int) -> list[int]:
    """Return at most as many steps as asked for: up to a half of them telling ones, the others evenly spaced."""
    if num >= len(steps):
        return list(steps)
    chosen = set(list(dict.fromkeys(step for step in telling if step in steps))[: num // 2])
    left = num - len(chosen)
    return sorted(chosen | {steps[round(i * (len(steps) - 1) / max(1, left - 1))] for i in range(left)})


_OfPlace = Mapping[int, Mapping[int, Sequence[float | None]]]
"""Statistics by rank and step."""


def _histories(
    run: Monitored, steps_of: Mapping[Place, Sequence[int]], rare: Collection[int], statistics: Sequence[str]
) -> dict[Place, dict[int, dict[int, Sequence[float | None]]]]:
    """Return the histories of some values; ``rare`` are the steps that not all of them have."""
    keys = ("quantity", "stage", "name", "micro_step")
    names = [
        (each.quantity, each.stage, each.name, each.micro_step, not {*rare}.isdisjoint(own))
        for each, own in steps_of.items()
    ]
    schema = {name: run.frame.schema[name] for name in keys} | {"_is_whole": pl.Boolean}
    wanted = pl.DataFrame(names, schema=schema, orient="row")
    frame = run.frame.join(wanted, on=keys, how="inner", nulls_equal=True, maintain_order="left")
    frame = frame.filter(pl.col("_is_whole") | ~pl.col("step").is_in(list(rare)))
    columns = [pl.col(name).round_sig_figs(_NUM_DIGITS) for name in statistics if name in run.statistics]
    found: dict[Place, dict[int, dict[int, Sequence[float | None]]]] = {}
    for quantity, stage, name, micro_step, rank, step, *values in frame.select(
        *keys, "rank", "step", *columns
    ).iter_rows():
        place = Place(quantity=quantity, stage=stage, name=name, micro_step=micro_step)
        found.setdefault(place, {}).setdefault(rank, {})[step] = values
    return found


def _series(own: _OfPlace, at: int, steps: Sequence[int]) -> dict[str, Sequence[Number]]:
    return {
        str(rank): [
            number(by_step[step][at]) if step in by_step and at < len(by_step[step]) else None for step in steps
        ]
        for rank, by_step in sorted(own.items())
    }
