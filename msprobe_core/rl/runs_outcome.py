"""``msprobe rl compare runs``: two recorded runs, stage by stage from cause to effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import polars as pl

from msprobe_core.errors import NothingInCommonError
from msprobe_core.findings import Finding as Said
from msprobe_core.judge.verdict import Verdict
from msprobe_core.rl.detail_codes import ComparedCode, LineCode, RunNoteCode
from msprobe_core.rl.headline_codes import HeadlineCode
from msprobe_core.rl.outcome import VERDICT, Finding, Outcome, listed_steps, table_of
from msprobe_core.rl.recorded import Progress, RecordedRun, chosen_steps, in_turn
from msprobe_core.rl.rl_codes import RunsCode
from msprobe_core.rl.runs import Agreement, CheckResult, check_step, recut_stage, said_of

_MAX_NAMES = 5
_VERDICTS = {
    Agreement.EQUAL: Verdict.PASS,
    Agreement.CLOSE: Verdict.PASS,
    Agreement.DIFFERENT: Verdict.ERROR,
    Agreement.ONE_SIDED: Verdict.UNMATCHED,
    Agreement.INCOMPARABLE: Verdict.WARNING,
}
_EXACT_VERDICTS = _VERDICTS | dict.fromkeys((Agreement.CLOSE, Agreement.INCOMPARABLE), Verdict.ERROR)


@dataclass(frozen=True, kw_only=True)
class RunsOptions:
    """How two runs are compared.

    Attributes:
        steps: Steps to compare; if empty, all that both have.
        is_exact: Whether everything must be bitwise equal.
    """

    steps: Collection[int] = ()
    is_exact: bool = False


def compare_runs(
    target: RecordedRun, golden: RecordedRun, options: RunsOptions | None = None, progress: Progress | None = None
) -> Outcome:
    """Compare two runs; the first difference, from cause to effect, is to blame.

    Raises:
        CompareError: they have no step in common.
        DumpError: a file cannot be read.
    """
    options = options or RunsOptions()
    steps = _common_steps(target, golden, options.steps)
    checked: list[CheckResult] = []
    for step in in_turn(steps, progress):
        checked += check_step(target, golden, step)
    if not checked:
        raise NothingInCommonError(f"{target.path} and {golden.path} have no stage in common that could be compared")
    recut = _first_recut(target, golden, steps) if options.is_exact else None
    findings = [_finding(one, _verdict(one, options, recut)) for one in checked if one.agreement is not Agreement.EQUAL]
    first = next((finding for finding in findings if finding.is_fault), None)
    lone = sorted(set(target.stages) ^ set(golden.stages))
    return Outcome(
        command="runs",
        paths=[target.path, golden.path],
        compared=Said.of(
            ComparedCode.RUNS,
            values=sum(one.num_values for one in checked),
            count=len(checked),
            steps=listed_steps(steps),
        ),
        said=_headline(checked, first, recut),
        # Warnings, such as about values that could not be compared, follow the differences.
        findings=[*_sampling(target, golden), *sorted(findings, key=lambda finding: not finding.is_fault)],
        notes=[
            *_settings(target, golden),
            *_on_recut(recut),
            *([Said.of(RunNoteCode.LONE_STAGES, stages=lone)] if lone else []),
        ],
        lines=list(_lines(checked)),
        numbers={"likeness": dict(Counter(one.agreement.value for one in checked))},
        tables={"stages": _table(checked)},
    )


_Recut = tuple[int, str]
"""Step and stage from which on two runs take their samples in another order."""


def _first_recut(target: RecordedRun, golden: RecordedRun, steps: Sequence[int]) -> _Recut | None:
    found = ((step, recut_stage(target, golden, step)) for step in steps)
    return next(((step, stage.value) for step, stage in found if stage is not None), None)


def _verdict(one: CheckResult, options: RunsOptions, recut: _Recut | None) -> Verdict:
    is_exact = options.is_exact and (recut is None or one.step < recut[0])
    return (_EXACT_VERDICTS if is_exact else _VERDICTS)[one.agreement]


def _on_recut(recut: _Recut | None) -> list[Said]:
    return [] if recut is None else [Said.of(RunNoteCode.RECUT, step=recut[0], stage=recut[1])]


def _common_steps(target: RecordedRun, golden: RecordedRun, asked: Collection[int]) -> list[int]:
    both = [{step for stage in run.stages for step in run.steps(stage)} for run in (target, golden)]
    common = both[0] & both[1]
    if not common:
        told = [", ".join(map(str, sorted(steps))) or "none" for steps in both]
        raise NothingInCommonError(
            f"{target.path} has the steps {told[0]} and {golden.path} {told[1]}; none is in both"
        )
    return chosen_steps(common, asked, "one of the runs")


def _finding(one: CheckResult, verdict: Verdict) -> Finding:
    said = Said.of(RunsCode.OF_STAGE, stage=one.stage, value=said_of(one))
    return Finding(verdict=verdict, said=said, step=one.step, place=f"{one.stage}/{one.name}")


def _headline(checked: Sequence[CheckResult], first: Finding | None, recut: _Recut | None) -> Said:
    if first is not None:
        stage, _, name = first.place.partition("/")
        return Said.of(HeadlineCode.RUNS, step=first.step, stage=stage, name=name)
    counts = Counter(one.agreement for one in checked)
    if counts[Agreement.EQUAL] == len(checked):
        return Said.of(HeadlineCode.RUNS_EQUAL, count=sum(one.num_values for one in checked))
    if recut is not None:
        return Said.of(HeadlineCode.RUNS_RECUT, step=recut[0])
    lost = counts[Agreement.INCOMPARABLE]
    but = [Said.of(HeadlineCode.NOT_COMPARED, count=lost)] if lost else []
    return Said.of(HeadlineCode.RUNS_AGREE, equal=counts[Agreement.EQUAL], total=len(checked), but=but)


def _lines(checked: Sequence[CheckResult]) -> Iterator[Said]:
    by_stage: dict[tuple[int, str], Counter[Agreement]] = {}
    for one in checked:
        by_stage.setdefault((one.step, one.stage), Counter())[one.agreement] += 1
    for (step, stage), counts in by_stage.items():
        told = [Said.of(LineCode.COUNT, count=n, kind=kind) for kind in Agreement if (n := counts[kind])]
        yield Said.of(LineCode.RUNS, step=step, stage=stage, counts=told)


def _sampling(target: RecordedRun, golden: RecordedRun) -> Iterator[Finding]:
    """Yield a warning for each setting of the sampling that differs."""
    for name in ("temperature", "top_p", "top_k", "do_sample", "logprobs_mode"):
        own, other = (getattr(run.info.sampling, name) for run in (target, golden))
        if own != other:
            said = Said.of(RunsCode.SAMPLING, name=name, own=str(own), other=str(other))
            yield Finding(verdict=Verdict.WARNING, said=said, place=name)


def _settings(target: RecordedRun, golden: RecordedRun) -> Iterator[Said]:
    """Yield notes of other settings and versions that differ."""
    own, other = (dict(_flat(run.info.config)) for run in (target, golden))
    if found := _unequal(RunNoteCode.SETTING, own, other):
        more = ["…"] if len(found) > _MAX_NAMES else []
        yield Said.of(RunNoteCode.SETTINGS, count=len(found), names=[*found[:_MAX_NAMES], *more])
    if found := _unequal(RunNoteCode.VERSION, target.info.versions, golden.info.versions):
        yield Said.of(RunNoteCode.VERSIONS, names=found[:_MAX_NAMES])


def _unequal(code: RunNoteCode, target: Mapping[str, Any], golden: Mapping[str, Any]) -> list[Said]:
    return [
        Said.of(code, name=name, own=str(target.get(name)), other=str(golden.get(name)))
        for name in {**target, **golden}
        if target.get(name) != golden.get(name)
    ]


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in cast("Mapping[Any, Any]", value).items():
            yield from _flat(part, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def _table(checked: Sequence[CheckResult]) -> pl.DataFrame:
    verdicts = pl.Series(VERDICT, [_VERDICTS[one.agreement].value for one in checked], pl.String)
    rows = table_of(CheckResult, checked).rename({"agreement": "likeness", "num_values": "values"})
    return rows.insert_column(rows.get_column_index("values"), verdicts)
