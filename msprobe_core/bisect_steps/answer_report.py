"""What a search over steps has found: the answer in a sentence, its table, its cost, and the file for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msprobe_core.bisect_steps.journal import Journal
from msprobe_core.bisect_steps.search import Answer, Outcome
from msprobe_core.bisect_steps.step_codes import StepCode
from msprobe_core.config.ranges import format_ranges
from msprobe_core.findings import Finding, Level, text_and_content
from msprobe_core.store.atomic_file import write_json
from msprobe_core.store.results import OwnFiles

RESULT_FILE = "bisect_steps.json"
STEPS_RESULT = OwnFiles("msprobe bisect-steps", {RESULT_FILE: ("version", "verdict", "looked_at", "cost")})
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that was looked at.

    Attributes:
        step: Step of the checkpoint or window.
        what: ``checkpoints`` or ``window``.
        begin: Step from which the window was replayed; ``None`` of checkpoints.
        distance: Relative distance of the weights of checkpoints; ``None`` of windows.
        num_different: Number of values in a window that differ at all; ``None`` of checkpoints.
        is_fault: Whether rounding does not explain a window; ``None`` of checkpoints.
        entry: First suspected call of a window.
        ranks: The ranks that show it; empty outside of a job.
    """

    step: int
    what: str
    begin: int | None = None
    distance: float | None = None
    num_different: int | None = None
    is_fault: bool | None = None
    entry: str = ""
    ranks: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a search has cost, the work before an interruption included.

    Attributes:
        num_checkpoints: Compared pairs of checkpoints.
        num_windows: Recorded windows of all replays, both sides and repetitions together.
        num_replays: Started trainings.
        num_steps: Steps that these made.
        seconds: Wall time of all that.
    """

    num_checkpoints: int
    num_windows: int
    num_replays: int
    num_steps: int
    seconds: float


def rows_of(journal: Journal) -> list[Row]:
    """Return what was looked at, in order."""
    rows: list[Row] = []
    for line in journal.lines:
        question = line.question
        if question[0] == "distance":
            rows.append(Row(step=question[1], what="checkpoints", distance=float(line.answer)))
        elif question[0] == "judge":
            found = line.answer
            rows.append(
                Row(
                    step=question[3], what="window", begin=question[1], num_different=found["num_different"],
                    is_fault=found["is_fault"], entry=found["entry"], ranks=found.get("ranks", ()),
                )
            )  # fmt: skip
    return rows


def cost_of(journal: Journal) -> Cost:
    """Return the cost of the work in a journal."""
    replays = [line for line in journal.lines if line.question[0] in ("record", "repeat")]
    return Cost(
        num_checkpoints=sum(line.question[0] == "distance" for line in journal.lines),
        num_windows=sum(len(line.question[-1]) for line in replays),
        num_replays=len(replays),
        num_steps=sum(int(line.answer) for line in replays),
        seconds=sum(line.seconds for line in journal.lines),
    )


def headline_of(answer: Answer, end: int) -> Finding:
    """Return the answer in a sentence."""
    place = answer.place
    if place is not None:
        fields = {"step": place.step, "entry": place.judgement.entry, "begin": place.begin}
        if module := place.judgement.module:
            return Finding(StepCode.FOUND, Level.ERROR, {**fields, "module": module})
        return Finding(StepCode.FOUND_OUTSIDE, Level.ERROR, fields)
    if answer.outcome is Outcome.OTHER_START:
        return Finding(StepCode.OTHER_START, Level.ERROR)
    if answer.outcome is Outcome.NOT_REPEATED:
        fields = {"begin": answer.last_equal, "end": answer.first_apart}
        return Finding(StepCode.NOT_REPEATED, Level.WARNING, fields)
    return Finding(StepCode.AGREE, fields={"end": end})


def cost_in_words(cost: Cost) -> Finding:
    """Return the cost in a sentence."""
    fields = {
        "checkpoints": cost.num_checkpoints, "windows": cost.num_windows, "replays": cost.num_replays,
        "steps": cost.num_steps, "seconds": cost.seconds,
    }  # fmt: skip
    return Finding(StepCode.COST, fields=fields)


def write_result(answer: Answer, end: int, journal: Journal, directory: Path) -> Path:
    """Write ``bisect_steps.json``; return its path.

    Raises:
        StoreError: it cannot be written.
    """
    place, cost = answer.place, cost_of(journal)
    content: dict[str, Any] = {
        "version": VERSION,
        "verdict": answer.outcome.value,
        **text_and_content("headline", headline_of(answer, end)),
        "step": None if place is None else place.step,
        "module": None if place is None else place.judgement.module,
        "entry": None if place is None else place.judgement.entry,
        "ranks": None if place is None else list(place.judgement.ranks),
        "begin": None if place is None else place.begin,
        "is_measured": None if place is None else place.is_measured,
        "last_equal_checkpoint": answer.last_equal,
        "first_apart_checkpoint": answer.first_apart,
        "looked_at": [_content(row) for row in rows_of(journal)],
        "cost": {
            "checkpoints": cost.num_checkpoints, "windows": cost.num_windows, "replays": cost.num_replays,
            "steps": cost.num_steps, "seconds": round(cost.seconds, 3),
        },
    }  # fmt: skip
    path = directory / RESULT_FILE
    write_json(path, content)
    return path


def _content(row: Row) -> dict[str, Any]:
    distance = row.distance
    return {
        "step": row.step, "what": row.what, "begin": row.begin,
        "distance": "Infinity" if distance is not None and math.isinf(distance) else distance,
        "different": row.num_different, "is_fault": row.is_fault, "entry": row.entry or None, "ranks": list(row.ranks),
    }  # fmt: skip


def table_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each thing that was looked at, under a head."""
    yield f"{'step':>8}  {'what':<11}  {'from':>6}  {'result':<34}  first suspect"
    for row in rows:
        if row.distance is not None:
            result = "equal" if row.distance == 0 else f"{row.distance:.2g} apart"
        elif row.is_fault:
            result = f"more than rounding, {row.num_different:,} differ"
        else:
            result = f"within rounding, {row.num_different:,} differ" if row.num_different else "equal"
        begin = "" if row.begin is None else str(row.begin)
        ranks = f" on rank {', '.join(format_ranges(row.ranks))}" if row.ranks else ""
        yield f"{row.step:>8}  {row.what:<11}  {begin:>6}  {result:<34}  {row.entry}{ranks}".rstrip()
