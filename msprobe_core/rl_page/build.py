"""Build the page of a whole run of an RL trainer, or of two."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from msprobe_core.errors import CompareError, DumpError
from msprobe_core.findings import Field, Finding
from msprobe_core.judge.verdict import Verdict as Level
from msprobe_core.rl.files import RLStage
from msprobe_core.rl.log_prob_steps import LogProbOptions
from msprobe_core.rl.log_probs_outcome import compare_log_probs
from msprobe_core.rl.outcome import Outcome
from msprobe_core.rl.recorded import Progress, RecordedRun
from msprobe_core.rl.runs import ORDER
from msprobe_core.rl_page.curves import curves_of, scale_of
from msprobe_core.rl_page.sightings import Examined, Sighting, examine, faults_in_order
from msprobe_core.rl_page.worst_tokens import tokenizer_of, worst_tokens
from msprobe_core.untrusted.paths import shown
from msprobe_core.view.data import (
    Counts,
    Kind,
    Made,
    RLFinding,
    RLToken,
    RLTraining,
    Severity,
    Side,
    Sides,
    State,
    Text,
    Verdict,
    ViewData,
    said_of,
    severity_of,
)
from msprobe_core.view.view_codes import ViewCode

MOST_FINDINGS = 2000
_OF_WARNING = 0.5
_LEAST_OF_FAULT = 0.55
"""Severities of a warning, which is at the limit, and of the least fault, which is beyond it."""


@dataclass(frozen=True, kw_only=True)
class RLPageOptions:
    """What to show.

    Attributes:
        steps: Steps; all that were recorded if empty.
        reads_tensors: Whether modules are compared, which reads all recorded tensors.
        tokenizer: ``tokenizer.json`` or its directory; ``None`` for that of the run's model.
    """

    steps: Collection[int] = ()
    reads_tensors: bool = True
    tokenizer: Path | None = None


def page_of(
    run: RecordedRun,
    golden: RecordedRun | None = None,
    options: RLPageOptions | None = None,
    progress: Progress | None = None,
) -> ViewData:
    """Return the data of the page of a run.

    Args:
        run: The run.
        golden: A trusted run of the same trainer; ``None`` if there is none.
        options: What to show.
        progress: Called before each comparison.

    Raises:
        CompareError: the run has none of the steps.
        DumpError: a file cannot be read.
    """
    options = options or RLPageOptions()
    steps = _steps(run, options.steps)
    found = examine(run, golden, steps, progress or _tell_nobody, reads_tensors=options.reads_tensors)
    rows = _rows(run, found)
    sightings = list(faults_in_order(found.sightings, rows))
    severity = [[_severity(run, row, step, found) for step in steps] for row in rows]
    notes: list[Text] = [said_of(each) for each in found.left_out]
    tokens = _tokens(run, found, options, notes)
    log_probs = (found.log_probs, None if golden is None else _log_probs_of(golden))
    training = RLTraining(
        steps=steps,
        rows=rows,
        severity=severity,
        findings=[
            RLFinding(
                rows.index(each.row),
                each.step,
                "error" if each.is_fault else "warning",
                shown(each.place),
                said_of(_shown(each.said)),
                each.command,
            )
            for each in sightings[:MOST_FINDINGS]
        ],
        curves=list(curves_of(run, golden, steps, log_probs, found)),
        tokens=tokens,
        scale=scale_of(found.log_probs),
    )
    incomplete = [said_of(_shown(one)) for each in (run, golden) if each is not None for one in each.incomplete]
    return ViewData(
        made=Made.now(),
        kind=Kind.DUMP if golden is None else Kind.COMPARISON,
        title=shown(run.path.resolve().name),
        sides=Sides(_side(run), None if golden is None else _side(golden)),
        verdict=_verdict(sightings, training, found, incomplete),
        rl=training,
        notes=notes,
    )


def _tell_nobody(done: int, total: int, label: str) -> None:
    del done, total, label


def _steps(run: RecordedRun, asked: Collection[int]) -> list[int]:
    available = sorted({step for stage in run.stages for step in run.steps(stage)})
    chosen = [step for step in available if not asked or step in asked]
    if not chosen:
        raise CompareError(
            f"{run.path}: has the steps {', '.join(map(str, available)) or 'none'}, none of those asked for"
        )
    return chosen


def _rows(run: RecordedRun, found: Examined) -> list[str]:
    """Return stages and hops, causes before effects; whatever has a finding has a row."""
    told = {each.row for each in found.sightings}
    # What an engine received is a hop, if it could be compared with what was sent.
    shown_rows = {*run.stages, *found.hops} - ({RLStage.WEIGHTS_RECEIVED.value} if found.hops else set()) | told
    first, *later = ORDER
    order = [stage.value for stage in (first, RLStage.ROUTING, *later, RLStage.WEIGHTS_SENT)] + [*found.hops]
    others = [row for row in dict.fromkeys([*run.stages, *sorted(told)]) if row not in order]
    return [row for row in (*order, *others) if row in shown_rows]


def _severity(run: RecordedRun, row: str, step: int, found: Examined) -> Severity:
    own = [each for each in found.sightings if (each.row, each.step) == (row, step)]
    faults = [each for each in own if each.is_fault]
    if faults:
        sizes = [1.0 if each.excess is None else severity_of(each.excess) or 0.0 for each in faults]
        return max(_LEAST_OF_FAULT, *sizes)
    recorded = step in found.hops[row] if row in found.hops else step in run.steps(row)
    level = found.levels.get((row, step))
    if not recorded and level is None and not own:
        return None
    least = _OF_WARNING if any(each.verdict is Level.WARNING for each in own) else 0.0
    return max(least, 0.0 if level is None else min(0.5, severity_of(level) or 0.0))


def _tokens(run: RecordedRun, found: Examined, options: RLPageOptions, notes: list[Text]) -> list[RLToken]:
    if found.log_probs is None:
        return []
    try:
        texts = tokenizer_of(run, options.tokenizer)
    except DumpError as error:
        if options.tokenizer is not None:
            raise
        texts = None
        notes.append(said_of(Finding(ViewCode.RL_NO_TEXT, fields={"why": shown(str(error))})))
    return list(worst_tokens(run, found.log_probs.tables["tokens"], LogProbOptions().rollout, texts))


def _log_probs_of(golden: RecordedRun) -> Outcome | None:
    try:
        return compare_log_probs(golden)
    except (CompareError, DumpError):  # such as of a run without rollouts' log-probs: its curves are left out
        return None


def _shown(said: Finding) -> Finding:
    return replace(said, fields={name: _shown_field(value) for name, value in said.fields.items()})


def _shown_field(value: Field) -> Field:
    if isinstance(value, Finding):
        return _shown(value)
    if isinstance(value, str):
        return value if isinstance(value, Enum) else shown(value)
    return value if value is None or isinstance(value, (int, float)) else [_shown_field(each) for each in value]


def _side(run: RecordedRun) -> Side:
    return Side(shown(str(run.path)), "", "", "")


def _verdict(
    sightings: Sequence[Sighting], training: RLTraining, found: Examined, incomplete: Sequence[Text]
) -> Verdict:
    cells = [each for row in training.severity for each in row if each is not None]
    flagged = sum(isinstance(each, float) and each > _OF_WARNING for each in cells)
    counts = Counts(len(cells), flagged)
    faults = [each for each in sightings if each.is_fault]
    if not faults:
        if not found.examined:
            return Verdict(
                State.INSUFFICIENT, said_of(Finding(ViewCode.RL_UNCHECKED)), counts=counts, incomplete=incomplete
            )
        fields = {"count": len(training.steps)}
        return Verdict(
            State.AGREE, said_of(Finding(ViewCode.RL_AGREE, fields=fields)), counts=counts, incomplete=incomplete
        )
    first = faults[0]
    sentence = Finding(ViewCode.RL_FAULT, fields={"step": first.step, "row": first.row, "sentence": _shown(first.said)})
    count = Finding(ViewCode.RL_COUNT, fields={"count": len(sightings), "cells": flagged, "total": len(cells)})
    return Verdict(State.FAULT, said_of(sentence), detail=[said_of(count)], counts=counts, incomplete=incomplete)
