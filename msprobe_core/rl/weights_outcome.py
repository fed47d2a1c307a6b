"""``msprobe rl compare weights``: whether the engine has what the trainer sent, and changes between steps."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import polars as pl

from msprobe_core.errors import CompareError
from msprobe_core.findings import Finding as Said
from msprobe_core.judge.verdict import Verdict
from msprobe_core.rl.detail_codes import ComparedCode, LineCode, RunNoteCode
from msprobe_core.rl.files import RLStage, WeightsFile
from msprobe_core.rl.headline_codes import HeadlineCode
from msprobe_core.rl.invariants import RecordedStep, export
from msprobe_core.rl.outcome import VERDICT, Finding, Outcome, listed_steps
from msprobe_core.rl.recorded import RecordedRun, chosen_steps
from msprobe_core.rl.rl_codes import TransferCode
from msprobe_core.rl.weights import Sync, Transfer, syncs

_MAX_NAMES = 5

_VERDICTS = {
    Transfer.EQUAL: Verdict.PASS,
    Transfer.PADDED: Verdict.PASS,
    Transfer.TIED: Verdict.PASS,
    Transfer.CAST: Verdict.WARNING,
    Transfer.EXTRA: Verdict.WARNING,
    Transfer.UNVERIFIED: Verdict.WARNING,
    Transfer.MISSING: Verdict.UNMATCHED,
    Transfer.OUTDATED: Verdict.ERROR,
    Transfer.DIFFERS: Verdict.ERROR,
}
_SCHEMA: dict[str, Any] = {
    "step": pl.Int64,
    "replica": pl.Int64,
    "name": pl.String,
    "transfer": pl.String,
    "relation": pl.String,
    VERDICT: pl.String,
    "error": pl.Float64,
    "sent_dtype": pl.String,
    "received_dtype": pl.String,
    "shape": pl.String,
    "sent_l2": pl.Float64,
    "received_l2": pl.Float64,
    "is_unchanged": pl.Boolean,
    "reason": pl.String,
}


def compare_weights(run: RecordedRun, steps: Collection[int] = ()) -> Outcome:
    """Compare sent with received weights, and each step with the previous one.

    Raises:
        CompareError: nothing was sent, or there is neither a receiver nor a second step to compare with.
        DumpError: a file cannot be read.
    """
    available = run.need(RLStage.WEIGHTS_SENT.value, "the weights that were sent")
    chosen = chosen_steps(available, steps, f"{RLStage.WEIGHTS_SENT.value} of {run.path}")
    sent = {step: run.weights(RLStage.WEIGHTS_SENT, step) for step in chosen}
    for step, files in sent.items():
        if not any(file.parameters for file in files.values()):
            raise CompareError(
                f"{run.path}: {RLStage.WEIGHTS_SENT.value} of step {step} names no parameter; record again"
            )
    found = {step: syncs(run, step) for step in chosen}
    if not any(found.values()) and len(available) < 2:
        raise CompareError(
            f"{run.path}: holds the weights that were sent in one step, and none that were received; record "
            f"{RLStage.WEIGHTS_RECEIVED.value} too, or a second step"
        )
    _refuse_unknown(run, [sync for own in found.values() for sync in own])
    findings: list[Finding] = []
    notes: list[Said] = []
    lines: list[Said] = []
    for step in chosen:
        findings += _disagreeing_senders(step, sent[step])
        if not found[step]:
            notes.append(Said.of(RunNoteCode.NOTHING_RECEIVED, step=step))
        for sync in found[step]:
            lines.append(_line(sync))
            findings += _findings(sync)
    findings += _stale_exports(run, chosen)
    changes, told = _changes(run, chosen)
    lines += changes
    notes += told
    parameters = [sync for own in found.values() for sync in own]
    faults = [finding for finding in findings if finding.is_fault]
    return Outcome(
        command="weights",
        paths=[run.path],
        compared=_compared(chosen, parameters),
        said=_headline(faults, parameters),
        findings=sorted(findings, key=lambda finding: (not finding.is_fault, finding.step or 0)),
        notes=notes,
        lines=lines,
        numbers={"steps": {str(step): _numbers(own) for step, own in found.items()}},
        tables={"parameters": _table(parameters)},
    )


def _refuse_unknown(run: RecordedRun, found: Sequence[Sync]) -> None:
    own = [one for sync in found for one in sync.parameters if one.sent is not None and one.received is not None]
    if own and all(one.transfer is Transfer.UNVERIFIED for one in own):
        raise CompareError(f"{run.path}: no parameter could be compared: {own[0].name}, {own[0].reason}")


def _compared(steps: Sequence[int], parameters: Sequence[Sync]) -> Said:
    replicas = len({sync.replica for sync in parameters})
    most = max((len(sync.parameters) for sync in parameters), default=0)
    return Said.of(ComparedCode.WEIGHTS, steps=listed_steps(steps), parameters=most, replicas=replicas)


def _line(sync: Sync) -> Said:
    counts = Counter(one.transfer for one in sync.parameters)
    told = [Said.of(HeadlineCode.KIND, count=counts[kind], kind=kind) for kind in Transfer if counts[kind]]
    return Said.of(LineCode.TRANSFER, step=sync.step, replica=sync.replica, counts=told)


def _findings(sync: Sync) -> list[Finding]:
    found = [
        Finding(
            verdict=_VERDICTS[one.transfer],
            said=Said.of(TransferCode.NOT_AS_SENT, replica=sync.replica, name=one.name, reason=one.reason),
            step=sync.step,
            place=one.name,
        )
        for one in sync.faults
    ]
    casts = [one for one in sync.parameters if one.transfer is Transfer.CAST]
    if casts:
        said = Said.of(TransferCode.CAST, count=len(casts), replica=sync.replica, reason=casts[0].reason)
        found.append(Finding(verdict=Verdict.WARNING, said=said, step=sync.step, place=casts[0].name))
    unknown = [one for one in sync.parameters if one.transfer is Transfer.UNVERIFIED]
    if unknown:
        said = Said.of(TransferCode.NOT_COMPARED, count=len(unknown), replica=sync.replica, reason=unknown[0].reason)
        found.append(Finding(verdict=Verdict.WARNING, said=said, step=sync.step, place=unknown[0].name))
    extra = [one.name for one in sync.parameters if one.transfer is Transfer.EXTRA]
    if extra:
        said = Said.of(TransferCode.EXTRA, replica=sync.replica, names=_names(extra))
        found.append(Finding(verdict=Verdict.WARNING, said=said, step=sync.step, place=extra[0]))
    return found


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMES]) + (f", … ({len(names):,})" if len(names) > _MAX_NAMES else "")


def _disagreeing_senders(step: int, sent: Mapping[int, WeightsFile]) -> list[Finding]:
    """Return findings for parameters that ranks sent differently; those that some ranks do not send are ignored."""
    found: list[Finding] = []
    first_rank = min(sent, default=0)
    first = {weight.name: weight for weight in sent[first_rank].parameters} if sent else {}
    for rank, file in sorted(sent.items()):
        other = [
            weight.name
            for weight in file.parameters
            if weight.name in first and weight.identity != first[weight.name].identity
        ]
        if other:
            said = Said.of(TransferCode.SENDERS, first=first_rank, rank=rank, names=_names(other))
            found.append(Finding(verdict=Verdict.ERROR, said=said, step=step, place=other[0]))
    return found


def _stale_exports(run: RecordedRun, steps: Sequence[int]) -> list[Finding]:
    """Return findings for steps after whose update, by the trainer's metrics, nothing new was sent."""
    known = [step for step in run.steps(RLStage.TRAINER.value) if step in steps]
    return [finding for step in known for finding in export(RecordedStep(run, step, *run.batch(step)))]


def _changes(run: RecordedRun, steps: Sequence[int]) -> tuple[list[Said], list[Said]]:
    """Return how many parameters changed from each step to the next, and which ones did not."""
    lines: list[Said] = []
    notes: list[Said] = []
    available = run.steps(RLStage.WEIGHTS_SENT.value)
    for before, step in itertools.pairwise(available):
        if step not in steps:
            continue
        files = [run.weights(RLStage.WEIGHTS_SENT, number) for number in (before, step)]
        if not all(files):
            continue
        old, new = ({w.name: w.identity for w in file[min(file)].parameters} for file in files)
        same = [name for name, crc in new.items() if old.get(name) == crc]
        both = {"before": before, "step": step}
        lines.append(Said.of(LineCode.CHANGED, **both, count=len(new) - len(same), total=len(new)))
        if len(same) == len(new):
            notes.append(Said(RunNoteCode.NO_CHANGE, fields=both))
        elif same:
            notes.append(Said.of(RunNoteCode.UNCHANGED, **both, names=_names(same)))
    return lines, notes


def _headline(faults: Sequence[Finding], found: Sequence[Sync]) -> Said:
    if not found and not faults:
        return Said(HeadlineCode.NOTHING_RECEIVED)
    if not faults:
        unknown = max(sum(one.transfer is Transfer.UNVERIFIED for one in sync.parameters) for sync in found)
        if unknown:
            return Said.of(HeadlineCode.OTHERS_AGREE, count=unknown)
        return Said(HeadlineCode.WEIGHTS_AGREE)
    first = faults[0]
    others = len({fault.place for fault in faults}) - 1
    more = [Said.of(HeadlineCode.MORE, count=others)] if others else []
    return Said.of(HeadlineCode.WEIGHTS, step=first.step, place=first.place, others=more)


def _numbers(own: Sequence[Sync]) -> dict[str, Any]:
    return {
        str(sync.replica): {
            **{transfer.value: sum(one.transfer is transfer for one in sync.parameters) for transfer in Transfer},
            "unsynchronised": [one.name for one in sync.faults],
        }
        for sync in own
    }


def _table(parameters: Sequence[Sync]) -> pl.DataFrame:
    rows = [
        {
            "step": sync.step,
            "replica": sync.replica,
            "name": one.name,
            "transfer": one.transfer.value,
            "relation": one.relation.value,
            VERDICT: _VERDICTS[one.transfer].value,
            "error": one.error,
            "sent_dtype": None if one.sent is None else one.sent.dtype,
            "received_dtype": None if one.received is None else one.received.dtype,
            "shape": str(list((one.sent or one.received).shape)) if (one.sent or one.received) else "",  # pyright: ignore[reportOptionalMemberAccess]
            "sent_l2": None if one.sent is None else one.sent.l2,
            "received_l2": None if one.received is None else one.received.l2,
            "is_unchanged": one.is_unchanged,
            "reason": "" if one.reason is None else one.reason.text,
        }
        for sync in parameters
        for one in sync.parameters
    ]
    return pl.DataFrame(rows, schema=_SCHEMA)
