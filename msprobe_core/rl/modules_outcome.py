"""Comparisons of modules, sample by sample: ``layers``, ``actor-vs-ref`` and ``onpolicy``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from msprobe_core.errors import CompareError
from msprobe_core.findings import Finding as Said
from msprobe_core.judge.noise.model import NoiseSource
from msprobe_core.judge.verdict import Verdict
from msprobe_core.rl.detail_codes import ComparedCode, LineCode, RunNoteCode
from msprobe_core.rl.files import RLStage
from msprobe_core.rl.floors import Floor
from msprobe_core.rl.headline_codes import HeadlineCode
from msprobe_core.rl.invariants import has_updated
from msprobe_core.rl.module_outputs import StageTensors, StatisticsOnlyError
from msprobe_core.rl.modules import Baseline, ModuleDifference, StageDifference, compare_modules, is_given_wrong
from msprobe_core.rl.outcome import Finding, Outcome, listed_steps, table_of
from msprobe_core.rl.recorded import Progress, RecordedRun, chosen_steps, policy_versions, rollouts_of, trainer_version
from msprobe_core.rl.rl_codes import ModuleCode
from msprobe_core.rl.stage_statistics import StatisticsDifference, ValueDifference, compare_statistics

_EXPERTS = ("num_experts_per_tok", "moe_topk", "moe_router_topk", "num_experts_per_token")
"""Names in configurations for the number of experts that a router chooses."""

_MAX_LINES = 4


@dataclass(frozen=True, kw_only=True)
class ModulesOptions:
    """How modules are compared.

    Attributes:
        steps: Steps to compare; if empty, all that both stages have.
        training: The stage of training.
        experts: Number of experts that a router chooses; ``None`` for that of the configuration, or else 1.
        baseline: A healthy run of the same engines, whose differences are the floors.
    """

    steps: Collection[int] = ()
    training: str = RLStage.ACTOR_LOG_PROB.value
    experts: int | None = None
    baseline: RecordedRun | None = None


@dataclass(frozen=True, kw_only=True)
class _Compared:
    """The comparison of two stages of one step, without their tensors.

    Attributes:
        difference: Result of the comparison.
        batch_sizes: For the golden stage and the one under test, the number of samples by size of their micro-batch.
        firsts: Where each phase diverges first, earliest first, and whether the inputs of that module already differ;
            ``None`` if that is unknown.
    """

    difference: StageDifference
    batch_sizes: tuple[Counter[int], Counter[int]]
    firsts: Sequence[tuple[ModuleDifference, bool | None]]


def compare_layers(
    run: RecordedRun, options: ModulesOptions | None = None, progress: Progress | None = None
) -> Outcome:
    """Compare modules of training and of the rollout engine, for the same samples; prompts and decoding separately.

    Raises:
        CompareError: a stage was not recorded, or they have nothing in common.
        DumpError: a file cannot be read.
    """
    options = options or ModulesOptions()
    stages = RLStage.ROLLOUT.value, options.training
    chosen = _steps_of_both(run, stages[::-1], options.steps)
    experts, note = _experts(run, options.experts)
    baseline = None if options.baseline is None else _baseline(options.baseline, stages, experts)
    found = [_stages(run, stages, step, experts, progress, baseline=baseline) for step in chosen]
    findings = [_part_finding(one, first, given, is_of_phase=True) for one in found for first, given in one.firsts]
    first = next(iter(findings), None)
    said = (
        Said(HeadlineCode.LAYERS_AGREE) if first is None
        else Said.of(HeadlineCode.LAYERS, step=first.step, place=first.place)
    )  # fmt: skip
    own_notes = [*_older_policies(run, chosen), *_notes(found), *_on_routers(found, note)]
    return _outcome("layers", run, found, " and ".join(stages[::-1]), said, findings, own_notes, is_of_phase=True)


def _older_policies(run: RecordedRun, steps: Sequence[int]) -> list[Said]:
    """Return a note for each step with samples that were drawn by an older policy than the trainer's."""
    notes: list[Said] = []
    for step in steps:
        if step not in run.steps(RLStage.TRAINER.value):
            continue
        batch, _ = run.batch(step)
        newest = trainer_version(run, step)
        old = [
            v for v in policy_versions(run, step, batch) or () if v is not None and newest is not None and v < newest
        ]
        if old:
            versions = {"oldest": min(old), "newest": newest}
            notes.append(Said.of(RunNoteCode.OLDER_POLICY, step=step, count=len(old), total=batch.rows, **versions))
    return notes


def _stages(
    run: RecordedRun,
    stages: tuple[str, str],
    step: int,
    experts: int,
    progress: Progress | None = None,
    *,
    minis: Collection[int] | None = None,
    baseline: Baseline | None = None,
) -> _Compared:
    """Compare the first stage, which is golden, with the second, of which ``minis`` may select mini-batches."""
    target = StageTensors(run, stages[1], step, minis=minis)
    golden = StageTensors(run, stages[0], step, also=_earlier(run, stages[0], step, target))
    found = compare_modules(target, golden, step, experts=experts, baseline=baseline, progress=progress)
    of_phases = [found.first(phase) for phase in found.phases]
    firsts = sorted((first for first in of_phases if first is not None), key=lambda first: first.order)
    given = [is_given_wrong(found, first, target, golden) for first in firsts]
    return _Compared(
        difference=found,
        batch_sizes=(_batch_sizes(golden, target), _batch_sizes(target, golden)),
        firsts=list(zip(firsts, given, strict=True)),
    )


def _earlier(run: RecordedRun, stage: str, step: int, target: StageTensors) -> list[int]:
    """Return the earlier steps under which rollouts of a stage's samples are recorded: generation may run ahead."""
    return rollouts_of(run, step, list(target.places)) if stage == RLStage.ROLLOUT.value else []


def _batch_sizes(stage: StageTensors, other: StageTensors) -> Counter[int]:
    return Counter(max(own) for sample, own in stage.micro_batches().items() if sample in other.places)


def _steps_of_both(run: RecordedRun, stages: Sequence[str], asked: Collection[int]) -> list[int]:
    both = [set(run.need(stage, "which is to be compared")) for stage in stages]
    if stages[-1] == RLStage.ROLLOUT.value:  # rollouts of a step may be of an earlier policy
        both[1] |= {step for step in both[0] if min(both[1], default=step) <= step}
    what = " and ".join(stages)
    if not both[0] & both[1]:
        raise CompareError(f"{run.path}: no step has both {what}")
    return chosen_steps(both[0] & both[1], asked, f"{what} of {run.path}")


def _experts(run: RecordedRun, given: int | None) -> tuple[int, list[Said]]:
    found = _search(run.info.config) if given is None else given
    return (1, [Said(RunNoteCode.ONE_EXPERT)]) if found is None else (found, [])


def _search(config: Any) -> int | None:
    if isinstance(config, dict):
        fields = cast("dict[str, Any]", config)
        for key, value in fields.items():
            if key in _EXPERTS and isinstance(value, int) and value > 0:
                return value
        return next((found for value in fields.values() if (found := _search(value)) is not None), None)
    if isinstance(config, list):
        return next((found for value in cast("list[Any]", config) if (found := _search(value)) is not None), None)
    return None


def _baseline(run: RecordedRun, stages: tuple[str, str], experts: int) -> Baseline:
    """Return the largest errors over all steps of a healthy run as floors; at least one rounding."""
    sizes: dict[tuple[str, str, str], float] = {}
    for step in _steps_of_both(run, stages[::-1], ()):
        target = StageTensors(run, stages[1], step)
        golden = StageTensors(run, stages[0], step, also=_earlier(run, stages[0], step, target))
        found = compare_modules(target, golden, step, experts=experts)
        for module in found.modules:
            value = found.pairs[module.order][0]
            key = value.path, value.place, module.phase
            sizes[key] = max(sizes.get(key, 0.0), module.error, float(np.finfo(np.float32).eps) / 2)
    floors = {key: Floor(size=size, source=NoiseSource.BASELINE) for key, size in sizes.items()}
    return {key: floor for key, floor in floors.items() if np.isfinite(floor.size)}


def _part_finding(one: _Compared, first: ModuleDifference, was_given: bool | None, *, is_of_phase: bool) -> Finding:
    code = ModuleCode.WAS_GIVEN if was_given else ModuleCode.WAS_NOT_GIVEN
    how = [] if was_given is None else [Said(code)]
    phase = [Said.of(ModuleCode.OF_PHASE, phase=first.phase)] if is_of_phase else []
    said = Said.of(ModuleCode.FIRST, phase=phase, module=first.module, reason=first.reason, how=how)
    return Finding(verdict=Verdict.ERROR, said=said, step=one.difference.step, place=first.module)


def _outcome(
    command: str,
    run: RecordedRun,
    found: Sequence[_Compared],
    what: str,
    said: Said,
    findings: Sequence[Finding],
    notes: Sequence[Said],
    *,
    is_of_phase: bool,
) -> Outcome:
    differences = [one.difference for one in found]
    outputs = max((one.modules for one in differences), key=len)
    return Outcome(
        command=command,
        paths=[run.path],
        compared=Said.of(
            ComparedCode.MODULES,
            what=what,
            outputs=len({(m.module, m.output) for m in outputs}),
            samples=sum(one.samples for one in differences),
            steps=listed_steps([one.step for one in differences]),
        ),
        said=said,
        findings=findings,
        notes=notes,
        lines=[line for one in differences for line in _lines(one, is_of_phase=is_of_phase)],
        numbers={"steps": {str(one.step): _numbers(one) for one in differences}},
        tables={"modules": table_of(ModuleDifference, [module for one in differences for module in one.modules])},
    )


def _lines(one: StageDifference, *, is_of_phase: bool) -> list[Said]:
    lines: list[Said] = []
    for phase in one.phases:
        own = [m for m in one.modules if m.phase == phase]
        worst = max(own, key=lambda m: m.error)
        fields = {
            "step": one.step, "phase": [Said.of(LineCode.PHASE, phase=phase)] if is_of_phase else [],
            "error": worst.error, "module": worst.module, "count": sum(m.is_over for m in own), "total": len(own),
        }  # fmt: skip
        lines += [Said(LineCode.MODULES, fields=fields), *_growth_lines(own)]
    if one.flipped_tokens is not None:
        worst = max((m for m in one.modules if m.flip_rate is not None), key=lambda m: m.flip_rate or 0.0)
        most = {"module": worst.module, "most": 100 * (worst.flip_rate or 0.0)}
        fields = {"step": one.step, "experts": one.experts, "share": 100 * one.flipped_tokens, **most}
        lines.append(Said(LineCode.FLIPPED, fields=fields))
    return lines


def _growth_lines(modules: Sequence[ModuleDifference]) -> list[Said]:
    """Return the error at the end of each block of layers, to show whether it grows or jumps."""
    layers = [(number, m) for m in modules if (number := m.module.rpartition(".")[2]).isdigit()]
    if len(layers) < 2:
        return []
    shown = [*layers[: -1 : max(1, (len(layers) - 1) // 7)], layers[-1]]
    errors = [Said.of(LineCode.LAYER, layer=number, error=m.error) for number, m in shown]
    return [Said.of(LineCode.LAYERS, errors=errors)]


def _notes(found: Sequence[_Compared]) -> list[Said]:
    notes: list[Said] = []
    for one in (one.difference for one in found):
        if one.lone_target or one.lone_golden:
            notes.append(Said.of(RunNoteCode.NO_PARTNER, step=one.step, target=one.lone_target, golden=one.lone_golden))
        if one.unmatched:
            names = list(dict.fromkeys(one.unmatched[:_MAX_LINES]))
            notes.append(Said.of(RunNoteCode.LONE_OUTPUTS, step=one.step, count=len(one.unmatched), names=names))
    return notes


def _on_routers(found: Sequence[_Compared], notes: Sequence[Said]) -> Sequence[Said]:
    return notes if any(one.difference.flipped_tokens is not None for one in found) else []


def _numbers(one: StageDifference) -> dict[str, Any]:
    firsts = {phase: one.first(phase) for phase in one.phases}
    return {
        "samples": one.samples,
        "is_equal": one.is_equal,
        "first": {phase: m and {"module": m.module, "error": m.error} for phase, m in firsts.items()},
        "largest": {phase: max(m.error for m in one.modules if m.phase == phase) for phase in one.phases},
        "flipped_tokens": one.flipped_tokens,
        "experts": one.experts if one.flipped_tokens is not None else None,
    }


# --- two stages of training ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _TrainingPair:
    """Two stages of training with the same weights: the golden one, and the one under test.

    Attributes:
        command: Name of the comparison.
        stages: Names of the stages.
        what: Description of the two in sentences.
        minis: Mini-batches of the latter to use; all if ``None``.
    """

    command: str
    stages: tuple[str, str]
    what: str
    minis: tuple[int, ...] | None = None


_ACTOR_REF = _TrainingPair(
    "actor-vs-ref", (RLStage.ACTOR_LOG_PROB.value, RLStage.REF_LOG_PROB.value), "actor and reference"
)
_ON_POLICY = _TrainingPair(
    "onpolicy",
    (RLStage.ACTOR_LOG_PROB.value, RLStage.ACTOR_UPDATE.value),
    "log-probs and first mini-batch of the update",
    (0,),
)


def compare_actor_ref(
    run: RecordedRun, options: ModulesOptions | None = None, progress: Progress | None = None
) -> Outcome:
    """Compare the actor with the reference policy, by default in the first step, where both have the same weights.

    Raises:
        CompareError: a stage was not recorded, or they have nothing in common.
        DumpError: a file cannot be read.
    """
    options = options or ModulesOptions()
    first = _steps_of_both(run, _ACTOR_REF.stages, ())[:1]
    chosen = _steps_of_both(run, _ACTOR_REF.stages, options.steps) if options.steps else first
    notes = [Said(RunNoteCode.TRAINED)] if chosen != first else []
    outcome = _training_outcome(_ACTOR_REF, run, chosen, notes, options, progress)
    return _with_aliases(outcome, run, chosen)


def _with_aliases(outcome: Outcome, run: RecordedRun, steps: Sequence[int]) -> Outcome:
    """Add findings for steps in which the reference equals the actor to the bit although that was updated before."""
    equal = [step for step in steps if outcome.numbers["steps"][str(step)]["is_equal"] and _was_updated(run, step)]
    found = [
        Finding(
            verdict=Verdict.ERROR, step=step, place="reference", said=Said(ModuleCode.ALIASED),
        )
        for step in equal
    ]  # fmt: skip
    if not found:
        return outcome
    said = Said.of(HeadlineCode.ALIASED, step=equal[0])
    return replace(outcome, findings=[*found, *outcome.findings], said=said)


def _was_updated(run: RecordedRun, step: int) -> bool:
    """Whether the actor was updated before a step: by the metrics of the step before, or by the weights it sent."""
    before = [other for other in run.steps(RLStage.TRAINER.value) if other < step]
    known = has_updated(run.batch(before[-1])[0]) if before else None
    sent = [run.weights(RLStage.WEIGHTS_SENT, other) for other in run.steps(RLStage.WEIGHTS_SENT.value) if other < step]
    if known is None and len(sent) > 1:
        first, last = ([weight.identity for weight in files[min(files)].parameters] for files in (sent[0], sent[-1]))
        return first != last
    return known is True


def compare_on_policy(
    run: RecordedRun, options: ModulesOptions | None = None, progress: Progress | None = None
) -> Outcome:
    """Compare the forwards that computed the log-probs with those of the update's first mini-batch: equal weights.

    Raises:
        CompareError: a stage was not recorded, or they have nothing in common.
        DumpError: a file cannot be read.
    """
    options = options or ModulesOptions()
    chosen = _steps_of_both(run, _ON_POLICY.stages, options.steps)
    return _training_outcome(_ON_POLICY, run, chosen, [], options, progress)


def _training_outcome(
    pair: _TrainingPair,
    run: RecordedRun,
    steps: Sequence[int],
    notes: Sequence[Said],
    options: ModulesOptions,
    progress: Progress | None,
) -> Outcome:
    """Compare two stages of training by tensors, or by statistics if there are no tensors."""
    command, what = pair.command, pair.what
    experts, note = _experts(run, options.experts)
    try:
        found = [_stages(run, pair.stages, step, experts, progress, minis=pair.minis) for step in steps]
    except StatisticsOnlyError:
        by_statistics = [compare_statistics(run, pair.stages, step, minis=pair.minis) for step in steps]
        return _statistics_outcome(command, run, by_statistics, what, notes)
    findings = [finding for one in found for finding in _training_findings(one)]
    fault = next((finding for finding in findings if finding.is_fault), None)
    said = (
        _diverged(fault, what) if fault is not None
        else Said.of(HeadlineCode.STAGES_EQUAL, what=what) if all(one.difference.is_equal for one in found)
        else Said.of(HeadlineCode.STAGES_AGREE, what=what)
    )  # fmt: skip
    shapes = [note for one in found for note in _shapes(one)] if pair.minis is not None else []
    own_notes = [*notes, *shapes, *_on_routers(found, note), *_notes(found)]
    return _outcome(command, run, found, what, said, findings, own_notes, is_of_phase=False)


def _diverged(fault: Finding, what: str) -> Said:
    return Said.of(HeadlineCode.STAGES, step=fault.step, what=what, place=fault.place)


def _training_findings(one: _Compared) -> list[Finding]:
    if one.firsts:
        return [_part_finding(one, first, given, is_of_phase=False) for first, given in one.firsts]
    unequal = next((m for m in one.difference.modules if not m.is_equal), None)
    if unequal is None:
        return []
    said = Said.of(ModuleCode.UNEQUAL, module=unequal.module, error=unequal.error)
    return [Finding(verdict=Verdict.WARNING, said=said, step=unequal.step, place=unequal.module)]


def _shapes(one: _Compared) -> list[Said]:
    """Return a note if the sizes of micro-batches differ between the update and the log-probs."""
    if one.batch_sizes[0] == one.batch_sizes[1]:
        return []
    log_probs, update = map(sorted, one.batch_sizes)
    return [Said.of(RunNoteCode.MICRO_BATCHES, step=one.difference.step, log_probs=log_probs, update=update)]


def _statistics_outcome(
    command: str, run: RecordedRun, found: Sequence[StatisticsDifference], what: str, notes: Sequence[Said]
) -> Outcome:
    findings = [finding for one in found for finding in _statistics_findings(one)]
    fault = next((finding for finding in findings if finding.is_fault), None)
    are_checksums = all(one.by_checksum for one in found)
    if fault is not None:
        said = _diverged(fault, what)
    elif not all(one.is_equal for one in found):
        said = Said.of(HeadlineCode.STATISTICS_AGREE, what=what)
    else:
        code = HeadlineCode.CHECKSUMS_EQUAL if are_checksums else HeadlineCode.STATISTICS_EQUAL
        said = Said.of(code, what=what)
    others = sum(one.num_others for one in found)
    return Outcome(
        command=command,
        paths=[run.path],
        compared=Said(
            ComparedCode.STATISTICS,
            fields={
                "what": what, "outputs": sum(len(one.values) for one in found),
                "calls": sum(one.num_calls for one in found), "samples": sum(one.samples for one in found),
                "steps": listed_steps([one.step for one in found]),
            },
        ),
        said=said,
        findings=findings,
        notes=[
            *notes,
            Said(RunNoteCode.CHECKSUMS if are_checksums else RunNoteCode.STATISTICS),
            *([Said.of(RunNoteCode.OTHER_SAMPLES, count=others)] if others else []),
        ],
        lines=[
            Said(
                LineCode.STATISTICS,
                fields={
                    "step": one.step, "equal": sum(value.is_equal for value in one.values), "total": len(one.values),
                    "over": sum(value.is_over for value in one.values),
                },
            )
            for one in found
        ],
        numbers={
            "by": "checksums" if are_checksums else "statistics",
            "steps": {
                str(one.step): {
                    "samples": one.samples, "micro_batches": one.num_calls, "other_micro_batches": one.num_others,
                    "is_equal": one.is_equal, "first": None if one.first is None else one.first.module,
                }
                for one in found
            },
        },
        tables={"modules": table_of(ValueDifference, [value for one in found for value in one.values])},
    )  # fmt: skip


def _statistics_findings(one: StatisticsDifference) -> list[Finding]:
    """Return the first output that rounding does not explain, or else the first that is not equal."""
    value = one.first or next((value for value in one.values if not value.is_equal), None)
    if value is None:
        return []
    fields = {"call": value.call, "rank": value.rank, "error": value.error, "floor": value.floor}
    how = Said(ModuleCode.CHECKSUM if value.error is None else ModuleCode.STATISTICS, fields=fields)
    verdict = Verdict.ERROR if value.is_over else Verdict.WARNING
    begin = [] if value.is_over else [Said(ModuleCode.NOT_EQUAL)]
    said = Said.of(ModuleCode.FIRST, phase=begin, module=value.module, reason=how, how=[])
    return [Finding(verdict=verdict, said=said, step=one.step, place=value.module)]
