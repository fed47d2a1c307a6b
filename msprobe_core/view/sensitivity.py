"""Pages of what a step is sensitive to: reactions of the task ``free_benchmark``, and bisections of modules."""

from __future__ import annotations

from pathlib import Path

from msprobe_core.findings import Finding
from msprobe_core.free_benchmark.bisect_files import BISECT_FILE, read_bisect
from msprobe_core.free_benchmark.ranking import ConditionMap, holds_reactions, read_conditions
from msprobe_core.free_benchmark.reaction_codes import ReactionCode
from msprobe_core.untrusted.paths import shown
from msprobe_core.view.data import (
    Kind,
    Made,
    RaisedPart,
    SensitiveCall,
    Sensitivity,
    Side,
    Sides,
    State,
    Verdict,
    ViewData,
    number,
    said_of,
)

MOST_CALLS = 5000
"""Calls of one map; of more, those that amplify most are shown."""


def sensitivity_data(target: Path) -> ViewData | None:
    """Return the page of a ``bisect.json``, or of a run of the task ``free_benchmark``; ``None`` for anything else.

    Raises:
        CompareError: the ``bisect.json`` is damaged, or of a later version.
        DumpError: a file of the run cannot be read.
    """
    if target.name == BISECT_FILE and target.is_file():
        return _page(target, _bisected(target))
    if target.is_dir() and holds_reactions(target) and (found := read_conditions(target)) is not None:
        return _page(target, _map_of(found))
    return None


def _bisected(path: Path) -> Sensitivity:
    found = read_bisect(path)
    parts = [
        RaisedPart(shown(part.label), number(part.share), number(part.times), number(part.loss), part.is_joint)
        for part in found.parts
    ]
    notes = list(map(said_of, found.notes))
    return Sensitivity(said_of(found.headline), notes, parts=parts, num_pairs=found.num_pairs)


def _map_of(found: ConditionMap) -> Sensitivity:
    largest = found.largest
    headline = Finding(
        ReactionCode.CONDITIONS,
        fields={
            "call": shown(largest.call), "times": largest.amplification, "step": found.step, "unit": shown(found.unit),
            "count": len(found.calls),
        },
    )  # fmt: skip
    kept = sorted(range(len(found.calls)), key=lambda i: -found.calls[i].amplification)[:MOST_CALLS]
    calls = [
        SensitiveCall(
            shown(call.call), shown(call.tensors), call.verdict.value, number(call.amplification), number(call.times)
        )
        for call in (found.calls[i] for i in sorted(kept))
    ]
    return Sensitivity(said_of(headline), calls=calls)


def _page(target: Path, found: Sensitivity) -> ViewData:
    return ViewData(
        made=Made.now(),
        kind=Kind.DUMP,
        title=shown(target.parent.name if target.is_file() else target.name),
        sides=Sides(Side(shown(str(target)), "", "", "")),
        verdict=Verdict(State.NONE, found.headline),
        sensitivity=found,
    )
