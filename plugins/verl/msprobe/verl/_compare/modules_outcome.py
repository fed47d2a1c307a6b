"""Comparisons of modules, sample by sample: ``layers``, ``actor-vs-ref`` and ``onpolicy``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from msprobe.verl._compare.floors import Floor
from msprobe.verl._compare.modules import (
    DECODE,
    PREFILL,
    Baseline,
    Progress,
    StageDifference,
    compare_modules,
    is_given_wrong,
    reason_of,
    table_of,
)
from msprobe.verl._compare.outcome import Finding, Outcome
from msprobe.verl._compare.recorded import RecordedRun, chosen_steps
from msprobe.verl._compare.stage_statistics import StatisticsDifference, compare_statistics
from msprobe.verl._compare.stage_statistics import table_of as statistics_table
from msprobe.verl._compare.stage_tensors import StageTensors, StatisticsOnlyError, common_samples
from msprobe.verl._files import Stage
from msprobe_core.judge.noise import NoiseSource
from msprobe_core.judge.verdict import Verdict
from msprobe_core.plugin import CompareError

_EXPERTS = ("num_experts_per_tok", "moe_topk", "moe_router_topk", "num_experts_per_token")
"""What configurations call the number of experts that a router chooses."""

_MAX_LINES = 4


@dataclass(frozen=True, kw_only=True)
class ModulesOptions:
    """How modules are compared.

    Attributes:
        steps: Which steps; all that both stages have if empty.
        training: The stage of training.
        experts: How many experts a router chooses; ``None`` for what the configuration says, else 1.
        baseline: A healthy run of the same engines, whose differences are rounding.
    """

    steps: Collection[int] = ()
    training: str = Stage.ACTOR_LOG_PROB.value
    experts: int | None = None
    baseline: RecordedRun | None = None


def compare_layers(
    run: RecordedRun, options: ModulesOptions | None = None, progress: Progress | None = None
) -> Outcome:
    """Compare modules of training and of the rollout engine, for the same samples; prompts and decoding apart.

    Raises:
        CompareError: a stage was not recorded, or they have nothing in common.
        DumpError: a file cannot be read.
    """
    options = options or ModulesOptions()
    chosen = _steps_of_both(run, options.training, Stage.ROLLOUT.value, options.steps)
    experts, note = _experts(run, options.experts)
    floors = None if options.baseline is None else _baseline(options.baseline, options, experts)
    differences: list[StageDifference] = []
    findings: list[Finding] = []
    for step in chosen:
        rollout = StageTensors(run, Stage.ROLLOUT.value, step)
        training = StageTensors(run, options.training, step)
        found = compare_modules(training, rollout, step, experts=experts, baseline=floors, progress=progress)
        differences.append(found)
        findings += _findings(found, training, rollout)
    has_routers = any(one.flipped_tokens is not None for one in differences)
    first = next((finding for finding in findings if finding.is_fault), None)
    return Outcome(
        command="layers",
        paths=[run.path],
        compared=_compared(differences, f"{options.training} and {Stage.ROLLOUT.value}"),
        headline=(
            "AGREE: every module is within what rounding explains." if first is None
            else f"DIFFERENT: step {first.step}: training and rollout part first at {first.place}."
        ),
        findings=findings,
        notes=[*_notes(differences), *([note] if note and has_routers else [])],
        lines=[line for one in differences for line in _lines(one)],
        numbers={"steps": {str(one.step): _numbers(one) for one in differences}},
        tables={"modules": table_of(differences)},
    )  # fmt: skip


def _steps_of_both(run: RecordedRun, first: str, second: str, asked: Collection[int]) -> list[int]:
    both = [set(run.need(stage, "which is to be compared")) for stage in (first, second)]
    common = both[0] & both[1]
    if not common:
        raise CompareError(f"{run.path}: no step has both {first} and {second}")
    return chosen_steps(common, asked, f"{first} and {second} of {run.path}")


def _experts(run: RecordedRun, given: int | None) -> tuple[int, str]:
    if given is not None:
        return given, ""
    found = _search(run.info.config)
    if found is not None:
        return found, ""
    return 1, "nobody recorded how many experts a router chooses, so the first alone is compared; --experts says more"


def _search(config: Any) -> int | None:
    if isinstance(config, dict):
        for key, value in config.items():
            if key in _EXPERTS and isinstance(value, int) and value > 0:
                return value
        return next((found for value in config.values() if (found := _search(value)) is not None), None)
    if isinstance(config, list):
        return next((found for value in config if (found := _search(value)) is not None), None)
    return None


def _baseline(run: RecordedRun, options: ModulesOptions, experts: int) -> Baseline:
    """Return the largest errors of the steps of a healthy run as floors; never below one rounding."""
    sizes: dict[tuple[str, str, str], float] = {}
    for step in _steps_of_both(run, options.training, Stage.ROLLOUT.value, ()):
        rollout = StageTensors(run, Stage.ROLLOUT.value, step)
        training = StageTensors(run, options.training, step)
        for module in compare_modules(training, rollout, step, experts=experts).modules:
            key = module.target.path, module.target.place, module.phase
            sizes[key] = max(sizes.get(key, 0.0), module.score.value, float(np.finfo(np.float32).eps) / 2)

    def floor(path: str, place: str, phase: str) -> Floor | None:
        size = sizes.get((path, place, phase))
        return None if size is None or not np.isfinite(size) else Floor(size=size, source=NoiseSource.BASELINE)

    return floor


def _findings(one: StageDifference, training: StageTensors, rollout: StageTensors) -> list[Finding]:
    """Return where each phase parts first; the earlier first."""
    found: list[Finding] = []
    samples = common_samples(training, rollout)
    firsts = sorted((m for phase in one.phases if (m := one.first(phase)) is not None), key=lambda m: m.order)
    for module in firsts:
        was_given = is_given_wrong(module, training, rollout, samples)
        how = (
            "; what it was given is off already, so the fault is between it and the modules before" if was_given
            else "; what it was given is not" if was_given is False else ""
        )  # fmt: skip
        found.append(
            Finding(
                verdict=Verdict.ERROR,
                sentence=f"{module.phase}: first at {module.name}, {reason_of(module)}{how}",
                step=one.step,
                place=module.name,
            )
        )
    return found


def _compared(differences: Sequence[StageDifference], what: str) -> str:
    steps = ", ".join(str(one.step) for one in differences)
    most = max(differences, key=lambda one: len(one.modules))
    outputs = len({(m.target.path, m.target.place) for m in most.modules})
    return (
        f"Compared {what}: {outputs:,} outputs of modules, {sum(one.samples for one in differences):,} samples, "
        f"step{'s' * (len(differences) > 1)} {steps}."
    )


def _lines(one: StageDifference) -> list[str]:
    lines: list[str] = []
    for phase in one.phases:
        own = [m for m in one.modules if m.phase == phase]
        worst = max(own, key=lambda m: m.score.value)
        lines.append(
            f"  step {one.step}, {phase}: largest error {worst.score.value:.2g} at {worst.name}; "
            f"{sum(m.score.is_over for m in own):,} of {len(own):,} outputs over their limits"
        )
        lines += _growth_lines(one, phase)
    if one.flipped_tokens is not None:
        routers = [m for m in one.modules if m.flip_rate is not None]
        worst = max(routers, key=lambda m: m.flip_rate or 0.0)
        lines.append(
            f"  step {one.step}, routing (top {one.experts}): other experts for {one.flipped_tokens:.2%} of tokens in "
            f"one layer at least; most at {worst.name}, {worst.flip_rate:.2%}"
        )
    return lines


def _growth_lines(one: StageDifference, phase: str) -> list[str]:
    """Return the error at the end of each block of layers, so that one sees it grow, or jump."""
    layers = [m for m in one.modules if m.phase == phase and m.target.path.rpartition(".")[2].isdigit()]
    if len(layers) < 2:
        return []
    step = max(1, (len(layers) - 1) // 7)
    shown = [*layers[:-1:step], layers[-1]]
    told = [f"{m.target.path.rpartition('.')[2]}: {m.score.value:.1g}" for m in shown]
    return [f"    error by layer: {', '.join(told)}"]


def _notes(differences: Sequence[StageDifference]) -> list[str]:
    notes: list[str] = []
    for one in differences:
        if one.lone_target or one.lone_golden:
            notes.append(
                f"step {one.step}: {one.lone_target} samples of the first and {one.lone_golden} of the second have no "
                "partner with the same token ids, and were not compared"
            )
        if one.unmatched:
            names = ", ".join(dict.fromkeys(one.unmatched[:_MAX_LINES]))
            notes.append(f"step {one.step}: {len(one.unmatched)} outputs are on one side only, such as {names}")
    return list(dict.fromkeys(notes))


def _numbers(one: StageDifference) -> dict[str, Any]:
    firsts = {
        phase: None if (m := one.first(phase)) is None else {"module": m.name, "error": m.score.value}
        for phase in one.phases
    }
    return {
        "samples": one.samples,
        "is_equal": one.is_equal,
        "first": firsts,
        "largest": {
            phase: max(m.score.value for m in one.modules if m.phase == phase) for phase in one.phases
        },
        "flipped_tokens": one.flipped_tokens,
        "experts": one.experts if one.flipped_tokens is not None else None,
    }  # fmt: skip


# --- two stages of training ------------------------------------------------------------------------------------------


def compare_actor_ref(
    run: RecordedRun, options: ModulesOptions | None = None, progress: Progress | None = None
) -> Outcome:
    """Compare the actor with the reference policy, by default in the first step, where both have the same weights.

    Raises:
        CompareError: a stage was not recorded, or they have nothing in common.
        DumpError: a file cannot be read.
    """
    options = options or ModulesOptions()
    stages = Stage.ACTOR_LOG_PROB.value, Stage.REF_LOG_PROB.value
    first = _steps_of_both(run, *stages, ())[:1]
    chosen = _steps_of_both(run, *stages, options.steps) if options.steps else first
    what = "actor and reference"
    notes = ["the actor is trained from the first step on: only there must both be equal"] if chosen != first else []
    experts, note = _experts(run, options.experts)
    try:
        found = [_training_stages(run, stages, step, progress, experts=experts) for step in chosen]
    except StatisticsOnlyError:
        by_statistics = [compare_statistics(run, stages, step) for step in chosen]
        return _statistics_outcome("actor-vs-ref", run, by_statistics, what, notes)
    return _training_outcome("actor-vs-ref", run, found, what, [*notes, *_on_routers(found, note)])


def compare_on_policy(
    run: RecordedRun, options: ModulesOptions | None = None, progress: Progress | None = None
) -> Outcome:
    """Compare the forward passes of the log-probs with those of the first mini-batch of the update: the same weights.

    Raises:
        CompareError: a stage was not recorded, or they have nothing in common.
        DumpError: a file cannot be read.
    """
    options = options or ModulesOptions()
    stages = Stage.ACTOR_LOG_PROB.value, Stage.ACTOR_UPDATE.value
    chosen = _steps_of_both(run, *stages, options.steps)
    what = "log-probs and first mini-batch of the update"
    experts, note = _experts(run, options.experts)
    try:
        found = [_training_stages(run, stages, step, progress, experts=experts, minis=(0,)) for step in chosen]
    except StatisticsOnlyError:
        by_statistics = [compare_statistics(run, stages, step, minis=(0,)) for step in chosen]
        return _statistics_outcome("onpolicy", run, by_statistics, what, [])
    notes = [note for one, first, second in found for note in _shapes(one.step, first, second)]
    return _training_outcome("onpolicy", run, found, what, [*notes, *_on_routers(found, note)])


def _on_routers(found: Sequence[tuple[StageDifference, StageTensors, StageTensors]], note: str) -> list[str]:
    return [note] if note and any(one.flipped_tokens is not None for one, _, _ in found) else []


def _shapes(step: int, first: StageTensors, second: StageTensors) -> list[str]:
    sizes = [Counter(max(own) for sample, own in stage.micro_batches().items() if sample in both) for stage, both in (
        (first, second.places), (second, first.places)
    )]  # fmt: skip
    if sizes[0] == sizes[1]:
        return []
    told = [", ".join(str(size) for size in sorted(own)) for own in sizes]
    text = f"step {step}: micro-batches have {told[0]} samples for the log-probs and {told[1]} in the update"
    return [f"{text}; kernels may add in another order for another shape"]


def _training_stages(
    run: RecordedRun,
    stages: tuple[str, str],
    step: int,
    progress: Progress | None,
    *,
    experts: int,
    minis: Collection[int] | None = None,
) -> tuple[StageDifference, StageTensors, StageTensors]:
    first = StageTensors(run, stages[0], step)
    second = StageTensors(run, stages[1], step, minis=minis)
    return compare_modules(second, first, step, experts=experts, progress=progress), first, second


def _training_outcome(
    command: str,
    run: RecordedRun,
    found: Sequence[tuple[StageDifference, StageTensors, StageTensors]],
    what: str,
    notes: Sequence[str],
) -> Outcome:
    differences = [one for one, _, _ in found]
    findings: list[Finding] = []
    for one, first, second in found:
        findings += [
            Finding(
                verdict=finding.verdict,
                sentence=finding.sentence.removeprefix(f"{PREFILL}: ").removeprefix(f"{DECODE}: "),
                step=finding.step,
                place=finding.place,
            )
            for finding in _findings(one, second, first)
        ]
        unequal = next((m for m in one.modules if not m.is_equal), None)
        if unequal is not None and not any(finding.step == one.step for finding in findings):
            sentence = f"not equal to the bit, first at {unequal.name} ({unequal.score.value:.2g}), within rounding"
            findings.append(Finding(verdict=Verdict.WARNING, sentence=sentence, step=one.step, place=unequal.name))
    fault = next((finding for finding in findings if finding.is_fault), None)
    is_equal = all(one.is_equal for one in differences)
    headline = (
        f"DIFFERENT: step {fault.step}: {what} part first at {fault.place}." if fault is not None
        else f"AGREE: {what} are equal to the bit." if is_equal
        else f"AGREE: {what} are within what rounding explains, but not equal to the bit."
    )  # fmt: skip
    return Outcome(
        command=command,
        paths=[run.path],
        compared=_compared(differences, what),
        headline=headline,
        findings=findings,
        notes=[*notes, *_notes(differences)],
        lines=[line.replace(f", {PREFILL}", "") for one in differences for line in _lines(one)],
        numbers={"steps": {str(one.step): _numbers(one) for one in differences}},
        tables={"modules": table_of(differences)},
    )


def _statistics_outcome(
    command: str, run: RecordedRun, found: Sequence[StatisticsDifference], what: str, notes: Sequence[str]
) -> Outcome:
    findings: list[Finding] = []
    for one in found:
        first = one.first
        if first is not None:
            sentence = f"first at {first.name}, {first.reason}"
            findings.append(Finding(verdict=Verdict.ERROR, sentence=sentence, step=one.step, place=first.name))
            continue
        unequal = next((value for value in one.values if not value.is_equal), None)
        if unequal is not None:
            sentence = f"not equal, first at {unequal.name}, {unequal.reason}"
            findings.append(Finding(verdict=Verdict.WARNING, sentence=sentence, step=one.step, place=unequal.name))
    fault = next((finding for finding in findings if finding.is_fault), None)
    are_checksums = all(one.by_checksum for one in found)
    headline = (
        f"DIFFERENT: step {fault.step}: {what} part first at {fault.place}." if fault is not None
        else f"AGREE: statistics of {what} are within what rounding explains." if not all(one.is_equal for one in found)
        else f"AGREE: {what} are equal to the bit, by checksums." if are_checksums
        else f"AGREE: {what} have equal statistics."
    )  # fmt: skip
    steps = ", ".join(str(one.step) for one in found)
    strength = (
        "checksums are of whole micro-batches: equal means equal to the bit, another one says neither how far off nor "
        "for which sample" if are_checksums
        else "statistics are of whole micro-batches: what cancels in a norm, a mean and the extremes does not show, "
        "nor which sample it is"
    )  # fmt: skip
    others = sum(one.num_others for one in found)
    return Outcome(
        command=command,
        paths=[run.path],
        compared=(
            f"Compared statistics of {what}: {sum(len(one.values) for one in found):,} outputs of modules in "
            f"{sum(one.num_calls for one in found):,} micro-batches, {sum(one.samples for one in found):,} samples, "
            f"step{'s' * (len(found) > 1)} {steps}."
        ),
        headline=headline,
        findings=findings,
        notes=[
            *notes,
            f'{strength}; tensors ("task": "tensor") show it',
            *([f"{others:,} micro-batches hold other samples in the two stages, and are left out"] if others else []),
        ],
        lines=[
            f"  step {one.step}: {sum(value.is_equal for value in one.values):,} of {len(one.values):,} outputs equal, "
            f"{sum(value.is_over for value in one.values):,} over their limits"
            for one in found
        ],
        numbers={
            "by": "checksums" if are_checksums else "statistics",
            "steps": {
                str(one.step): {
                    "samples": one.samples, "micro_batches": one.num_calls, "other_micro_batches": one.num_others,
                    "is_equal": one.is_equal, "first": None if one.first is None else one.first.name,
                }
                for one in found
            },
        },
        tables={"modules": statistics_table(found)},
    )  # fmt: skip
