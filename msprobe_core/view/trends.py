"""Monitor files in the page's form: trends, and where values become non-finite or two trainings diverge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import polars as pl

from msprobe_core._version import __version__
from msprobe_core.compare.pairs import Chosen
from msprobe_core.errors import CompareError
from msprobe_core.findings import Field, Finding, Level
from msprobe_core.monitoring.divergence import DIVERGED, Divergence, first_divergence, first_non_finite, num_shared
from msprobe_core.monitoring.files import find_monitored, read_monitored
from msprobe_core.monitoring.history import Monitored, Place
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.store.kernel_files import find_kernel_units
from msprobe_core.store.layout import holds_units
from msprobe_core.store.reading import is_dump
from msprobe_core.untrusted.paths import shown
from msprobe_core.view.data import (
    Counts,
    Kind,
    Made,
    Number,
    Side,
    Sides,
    State,
    Trend,
    Verdict,
    ViewData,
    number,
    said_of,
)
from msprobe_core.view.trends_codes import TrendsCode

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


@dataclass(frozen=True)
class MonitorFindings:
    """Findings from the files of one monitor, or of two.

    Attributes:
        verdict: The answer, with details.
        trends: Trends of the values that the answer names come first.
        notes: What was left out.
    """

    verdict: Verdict
    trends: list[Trend]
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
        lacking = golden if golden is not None and find_monitored(golden) is None else target
        raise CompareError(
            f"{lacking}: holds no files of a monitor, as the other does; "
            "give two directories that monitors have written, or two of dumps"
        )
    sides = [None if path is None else Side(shown(str(path)), "", "monitor", "") for path in (target, golden)]
    assert sides[0] is not None
    return ViewData(
        made=Made(__version__, datetime.now(timezone.utc).isoformat(timespec="seconds")),
        kind=Kind.MONITOR,
        title=target.name if golden is None else f"{target.name} and {golden.name}",
        sides=Sides(sides[0], sides[1]),
        verdict=found.verdict,
        trends=found.trends,
        notes=list(map(said_of, found.notes)),
    )


def findings_of(target: Path, golden: Path | None, chosen: Chosen) -> MonitorFindings | None:
    """Return findings from monitor files, with or without dumps; ``None`` if a side has no monitor files.

    Raises:
        CompareError: the two have nothing in common.
        DumpError: a file cannot be read.
    """
    places = [find_monitored(path) for path in (target, golden) if path is not None]
    runs = [None if place is None else read_monitored(place, chosen.steps, chosen.ranks) for place in places]
    own = runs[0]
    other = runs[1] if golden is not None else None
    if own is None or (golden is not None and other is None):
        return None
    notes = [
        note if other is None else Finding(TrendsCode.OF_SIDE, fields={"side": side, "note": note})
        for side, run in (("target", own), ("golden", other))
        if run is not None
        for note in run.notes
    ]
    divergence = first_non_finite(own) if other is None else first_divergence(own, other)
    verdict = _verdict_of_one(own, divergence) if other is None else _verdict_of_two(own, other, divergence)
    first = [] if divergence is None else [divergence.place, *divergence.others]
    return MonitorFindings(verdict, _trends(own, other, first, notes), notes)


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
        raise CompareError(
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


def _place(divergence: Divergence) -> dict[str, Field]:
    """Return the fields for the location of an event: ``place`` and ``value``."""
    parts = [Finding(TrendsCode.STEP, fields={"step": divergence.step})]
    if divergence.place.micro_step:
        parts.append(Finding(TrendsCode.MICRO_STEP, fields={"micro_step": divergence.place.micro_step}))
    ranks = divergence.ranks
    if len(ranks) == 1:
        parts.append(Finding(TrendsCode.RANK, fields={"rank": ranks[0]}))
    else:
        code = TrendsCode.RANKS if len(ranks) <= _MAX_RANKS else TrendsCode.MANY_RANKS
        parts.append(Finding(code, fields={"ranks": ranks[:_MAX_RANKS]}))
    place = Finding(TrendsCode.PLACE, fields={"parts": parts})
    return {"place": place, "value": f"{divergence.place.shown} ({divergence.place.quantity})"}


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


def _trends(target: Monitored, golden: Monitored | None, first: Sequence[Place], notes: list[Finding]) -> list[Trend]:
    """Return statistics of all values over steps, as many as fit in a page; those of ``first`` come first."""
    found = [_histories(run) for run in (target, golden) if run is not None]
    places = list(dict.fromkeys([*first, *found[0]]))
    steps = sorted({step for run in (target, golden) if run is not None for step in run.steps})
    each = sum(len(run.ranks) for run in (target, golden) if run is not None) * len(steps)
    shown = [name for name in target.statistics if golden is None or name in golden.statistics] or target.statistics
    if each * len(places) * len(shown) > MAX_NUMBERS:
        shown = shown[:1]
    room = max(1, MAX_NUMBERS // max(1, each * len(shown)))
    if len(places) > room:
        notes.append(Finding(TrendsCode.NO_ROOM, fields={"left_out": len(places) - room, "total": len(places)}))
    return [
        Trend(
            name=place.shown,
            slot=place.quantity,
            statistic=statistic,
            phase=_PHASES.get(place.quantity, ""),
            steps=steps,
            target=_series(target, found[0].get(place, {}), statistic, steps),
            golden=None if golden is None else _series(golden, found[1].get(place, {}), statistic, steps),
            micro_step=place.micro_step,
            origin="monitor",
        )
        for place in places[:room]
        for statistic in shown
    ]


_OfPlace = Mapping[int, Mapping[int, Sequence[float | None]]]
"""Statistics by rank and step."""


def _histories(run: Monitored) -> dict[Place, dict[int, dict[int, Sequence[float | None]]]]:
    found: dict[Place, dict[int, dict[int, Sequence[float | None]]]] = {}
    columns = [pl.col(name).round_sig_figs(_NUM_DIGITS) for name in run.statistics]
    keys = ("quantity", "stage", "name", "micro_step", "rank", "step")
    for quantity, stage, name, micro_step, rank, step, *values in run.frame.select(*keys, *columns).iter_rows():
        place = Place(quantity=quantity, stage=stage, name=name, micro_step=micro_step)
        found.setdefault(place, {}).setdefault(rank, {})[step] = values
    return found


def _series(run: Monitored, own: _OfPlace, statistic: str, steps: Sequence[int]) -> dict[str, Sequence[Number]]:
    if statistic not in run.statistics:
        return {}
    at = list(run.statistics).index(statistic)
    return {
        str(rank): [number(by_step[step][at]) if step in by_step else None for step in steps]
        for rank, by_step in sorted(own.items())
    }
