"""What checks in the training process write: verdicts of each step, error data, and what was covered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.api_check.online.kinds import Kind
from msprobe_core.api_check.verdict import CallVerdict, OutputVerdict
from msprobe_core.findings import Finding
from msprobe_core.store.atomic_file import whole_file, write_json
from msprobe_core.store.json_writer import finite_number

VERDICTS_FILE = "{task}.jsonl"
"""In the directory of a step and rank; one line per checked call."""

COVERAGE_FILE = "{task}_coverage_{unit}.json"
"""In the directory of the run; ``unit`` is the name of the rank's directory."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What checks of one process have found and taken.

    Attributes:
        budget: The configured bound of ``share``.
        share: Seconds of recording and checking per second of the training.
        training_s: Duration of the training since recording began, in seconds, with all that follows.
        check_s: Of it, for checks at the ends of steps.
        recording_s: Of it, for recording the sampled steps; estimated from the medians of steps with and without.
        num_steps: Number of steps.
        num_recorded: Of them, those in which calls were sampled.
        period: Distance between these at the end.
        num_calls: Number of checked calls.
        verdicts: How often each verdict was found.
        num_kinds: Number of kinds of calls that were seen.
        num_kinds_checked: Of them, those of which a call was judged.
        num_left_out: Number of calls that are not counted because there were too many kinds.
        problem: Why checking ended early; ``None`` if it did not.
    """

    budget: float
    share: float
    training_s: float
    check_s: float
    recording_s: float
    num_steps: int
    num_recorded: int
    period: int
    num_calls: int
    verdicts: dict[str, int]
    num_kinds: int
    num_kinds_checked: int
    num_left_out: int = 0
    problem: str | None = None


def write_verdicts(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write the verdicts of a step, one line each.

    Raises:
        StoreError: the file cannot be written.
    """
    with whole_file(path) as file:
        for line in lines:
            file.write(msgspec.json.encode(line) + b"\n")


def verdict_line(found: CallVerdict, kind: Kind, step: int, position: int) -> dict[str, Any]:
    """Return a verdict with its sentences, as written to `VERDICTS_FILE`; NaN and infinities are text.

    Args:
        found: The verdict.
        kind: Of the call.
        step: Of the training.
        position: Of the call among those of the step that were looked at.
    """
    return {
        "step": step,
        "call": found.entry,
        "position": position,
        "verdict": found.verdict.value,
        "tensors": kind.name.tensors,
        "seconds": round(found.seconds, 6),
        "stage": found.stage,
        "reason": _text(found.reason),
        "notes": [note.text for note in found.notes],
        "outputs": [_output_line(output) for output in found.outputs],
    }


def _output_line(output: OutputVerdict) -> dict[str, Any]:
    numbers = {
        name: finite_number(getattr(output, name))
        for name in ("error", "rounding", "condition", "own_error", "times", "amplification", "bias", "ratio")
    }
    return {
        "path": output.path, "dtype": output.dtype, "shape": output.shape, "verdict": output.verdict.value, **numbers,
        "worst_index": output.worst_index, "code": output.reason.code, "reason": output.reason.text,
    }  # fmt: skip


def write_coverage(path: Path, totals: Totals, kinds: Iterable[Kind]) -> None:
    """Write what was checked, and why other kinds were not.

    Raises:
        StoreError: the file cannot be written.
    """
    listed = [
        {
            "api": kind.name.api, "phase": kind.name.phase, "tensors": kind.name.tensors, "calls": kind.num_seen,
            "checked": kind.num_checked, "last_step": kind.last_step,
            "verdicts": {verdict.value: number for verdict, number in kind.verdicts.items()},
            "why_not": _text(kind.why_not),
        }
        for kind in kinds
    ]  # fmt: skip
    write_json(path, {"version": 1, "totals": totals, "kinds": listed})


def _text(finding: Finding | None) -> str | None:
    return None if finding is None else finding.text
