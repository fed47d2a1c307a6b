"""``msprobe verl compare runs``: two recorded runs, stage by stage in the order of cause and effect."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import polars as pl

from msprobe.verl._compare.modules import compare_modules
from msprobe.verl._compare.outcome import VERDICT, Finding, Outcome
from msprobe.verl._compare.recorded import Array, RecordedRun, chosen_steps
from msprobe.verl._compare.stage_tensors import StageTensors
from msprobe.verl._compare.weights import coarser_of
from msprobe.verl._files import BatchFile, Stage, StageSamples, WeightsFile, load_rewards
from msprobe_core.compare.engine import compare_dumps
from msprobe_core.compare.reading import is_dump
from msprobe_core.compare.result import UnitResult
from msprobe_core.compare.unit import CompareOptions
from msprobe_core.judge.limits import UNIT_ROUNDOFF, Precision, conventional
from msprobe_core.judge.verdict import Verdict, differs
from msprobe_core.plugin import CompareError, DumpError

Progress = Callable[[int, int, str], None]

BEFORE = (
    "prompts", "input_ids", "responses", "attention_mask", "position_ids", "response_mask", "rollout_log_probs",
    "routed_experts",
)  # fmt: skip
"""Tensors of the batch that are there when the rollout has ended."""

_STAGE_OF = (
    (("token_level_scores", "rm_scores"), Stage.REWARD),
    (("old_log_probs", "entropys"), Stage.ACTOR_LOG_PROB),
    (("ref_log_prob",), Stage.REF_LOG_PROB),
    (("values",), Stage.VALUES),
)
"""Tensors of the batch, by the stage that makes them."""

_DUMPS = (
    Stage.ROLLOUT, Stage.ACTOR_LOG_PROB, Stage.REF_LOG_PROB, Stage.VALUES, Stage.CRITIC_UPDATE, Stage.ACTOR_UPDATE,
)  # fmt: skip
_METRICS = ("loss", "grad_norm", "kl", "entropy", "reward", "score", "advantages", "returns", "values")
"""What a metric is named after that is no time, throughput or memory."""
_NO_METRICS = ("timing", "perf", "time", "memory", "throughput", "mfu", "global_seqlen")
_SMALL = 1e-3
"""Metrics below this count as this: divergences and losses of nothing are nothing but rounding."""
_MAX_NAMES = 5


class Agreement(str, Enum):
    """How alike two values are."""

    EQUAL = "equal"
    CLOSE = "within limit"
    DIFFERENT = "differs"
    ONE_SIDED = "on one side"
    INCOMPARABLE = "not comparable"


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One thing of one step that both runs were asked for.

    Attributes:
        step: Of the trainer.
        stage: What made it.
        name: Which thing.
        agreement: How alike.
        num_values: How many values were compared.
        error: The largest relative error; ``None`` where there is none.
        limit: What it may be.
        reason: More about it.
    """

    step: int
    stage: str
    name: str
    agreement: Agreement
    num_values: int = 0
    error: float | None = None
    limit: float | None = None
    reason: str = ""


_VERDICTS = {
    Agreement.EQUAL: Verdict.PASS,
    Agreement.CLOSE: Verdict.PASS,
    Agreement.DIFFERENT: Verdict.ERROR,
    Agreement.ONE_SIDED: Verdict.UNMATCHED,
    Agreement.INCOMPARABLE: Verdict.WARNING,
}


@dataclass(frozen=True, kw_only=True)
class RunsOptions:
    """How two runs are compared.

    Attributes:
        steps: Which steps; all that both have if empty.
        is_exact: Whether all must be equal to the bit.
    """

    steps: Collection[int] = ()
    is_exact: bool = False


def compare_runs(
    target: RecordedRun, golden: RecordedRun, options: RunsOptions | None = None, progress: Progress | None = None
) -> Outcome:
    """Compare two runs; what differs first, in the order of cause and effect, is to blame.

    Raises:
        CompareError: they have no step in common.
        DumpError: a file cannot be read.
    """
    options = options or RunsOptions()
    steps = _common_steps(target, golden, options.steps)
    checked: list[CheckResult] = []
    for number, step in enumerate(steps):
        if progress is not None:
            progress(number, len(steps), f"step {step}")
        checked += _of_step(target, golden, step)
    lone = sorted(set(target.stages) ^ set(golden.stages))
    if not checked:
        raise CompareError(f"{target.path} and {golden.path} have no stage in common that could be compared")
    unlike = [one for one in checked if one.agreement is not Agreement.EQUAL]
    findings = [_finding(one, options) for one in unlike]
    # Warnings, such as what could not be compared, do not come before what differs.
    findings.sort(key=lambda finding: not finding.is_fault)
    sampling, configuration = _settings(target, golden)
    findings = [*sampling, *findings]
    return Outcome(
        command="runs",
        paths=[target.path, golden.path],
        compared=(
            f"Compared {sum(one.num_values for one in checked):,} values of {len(checked):,} things, "
            f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}."
        ),
        headline=_headline(checked, options),
        findings=findings,
        notes=[*configuration, *([f"recorded on one side only: {', '.join(lone)}"] if lone else [])],
        lines=list(_lines(checked, steps)),
        numbers={"likeness": dict(Counter(one.agreement.value for one in checked))},
        tables={"stages": _table(checked)},
    )


def _common_steps(target: RecordedRun, golden: RecordedRun, asked: Collection[int]) -> list[int]:
    both = [{step for stage in run.stages for step in run.steps(stage)} for run in (target, golden)]
    common = both[0] & both[1]
    if not common:
        told = [", ".join(map(str, sorted(steps))) or "none" for steps in both]
        raise CompareError(f"{target.path} has the steps {told[0]} and {golden.path} {told[1]}; none is in both")
    return chosen_steps(common, asked, "one of the runs")


def _finding(one: CheckResult, options: RunsOptions) -> Finding:
    verdict = _VERDICTS[one.agreement]
    if one.agreement in {Agreement.CLOSE, Agreement.INCOMPARABLE} and options.is_exact:
        verdict = Verdict.ERROR
    size = "" if one.error is None else f", {one.error:.2g} off, relative"
    limit = "" if one.limit is None else f" (limit {one.limit:.2g})"
    reason = f": {one.reason}" if one.reason else ""
    return Finding(
        verdict=verdict,
        sentence=f"{one.stage}, {one.name}: {one.agreement.value}{size}{limit}{reason}",
        step=one.step,
        place=f"{one.stage}/{one.name}",
    )


def _headline(checked: Sequence[CheckResult], options: RunsOptions) -> str:
    bad = {Agreement.DIFFERENT, Agreement.ONE_SIDED} | (
        {Agreement.CLOSE, Agreement.INCOMPARABLE} if options.is_exact else set()
    )
    first = next((one for one in checked if one.agreement in bad), None)
    if first is not None:
        return f"DIFFERENT: step {first.step}: first in {first.stage}, {first.name}."
    equal = sum(one.agreement is Agreement.EQUAL for one in checked)
    values = sum(one.num_values for one in checked)
    if equal == len(checked):
        return f"AGREE: equal to the bit, all {values:,} values."
    lost = sum(one.agreement is Agreement.INCOMPARABLE for one in checked)
    but = f"; {lost:,} could not be compared" if lost else ""
    return f"AGREE: {equal:,} of {len(checked):,} things equal to the bit, the others within their limits{but}."


def _lines(checked: Sequence[CheckResult], steps: Sequence[int]) -> Iterator[str]:
    for step in steps:
        stages = list(dict.fromkeys(one.stage for one in checked if one.step == step))
        for stage in stages:
            own = [one for one in checked if (one.step, one.stage) == (step, stage)]
            counts = Counter(one.agreement for one in own)
            told = ", ".join(f"{counts[kind]} {kind.value}" for kind in Agreement if counts[kind])
            yield f"  step {step}, {stage}: {told}"


def _settings(target: RecordedRun, golden: RecordedRun) -> tuple[list[Finding], list[str]]:
    """Return how sampling differs, as warnings, and other settings, as notes."""
    found: list[Finding] = []
    for name in ("temperature", "top_p", "top_k", "do_sample", "logprobs_mode"):
        own, other = (getattr(run.info.sampling, name) for run in (target, golden))
        if own != other:
            sentence = f"sampling differs: {name} is {own} and {other}"
            found.append(Finding(verdict=Verdict.WARNING, sentence=sentence, place=name))
    flat = [dict(_flat(run.info.config)) for run in (target, golden)]
    keys = [key for key in {**flat[0], **flat[1]} if flat[0].get(key, None) != flat[1].get(key, None)]
    notes = []
    if keys:
        shown = ", ".join(f"{key} ({flat[0].get(key)} and {flat[1].get(key)})" for key in keys[:_MAX_NAMES])
        notes.append(f"{len(keys)} settings differ: {shown}{', …' if len(keys) > _MAX_NAMES else ''}")
    versions = target.info.versions, golden.info.versions
    other = [name for name in {**versions[0], **versions[1]} if versions[0].get(name) != versions[1].get(name)]
    if other:
        shown = ", ".join(f"{name} {versions[0].get(name)} and {versions[1].get(name)}" for name in other[:_MAX_NAMES])
        notes.append(f"versions differ: {shown}")
    return found, notes


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(part, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


# --- one step --------------------------------------------------------------------------------------------------------


def _of_step(target: RecordedRun, golden: RecordedRun, step: int) -> list[CheckResult]:
    """Return what both runs have of a step, causes before effects."""
    has_batch = all(step in run.steps(Stage.TRAINER.value) for run in (target, golden))
    found: list[CheckResult] = []
    rollouts = [run.samples(Stage.ROLLOUT.value, step) for run in (target, golden)]
    if all(rollouts):
        found.append(_same_samples(step, Stage.ROLLOUT.value, [_ids(own) for own in rollouts]))
    tensors: list[CheckResult] = []
    metrics: list[CheckResult] = []
    if has_batch:
        batches = target.batch(step), golden.batch(step)
        dtypes = _dtypes(target) | _dtypes(golden)
        identity, tensors, metrics = _batches(step, *batches, dtypes)
        found.append(identity)
    are_other = any(one.agreement is Agreement.DIFFERENT for one in found)
    by_stage = {stage: [one for one in tensors if one.stage == stage.value] for stage in Stage}
    found += by_stage.pop(Stage.ROLLOUT)
    for stage in (*_DUMPS[:1], Stage.REWARD, *_DUMPS[1:4]):
        found += (
            _rewards(target, golden, step)
            if stage is Stage.REWARD
            else _dumps(target, golden, stage, step, are_other=are_other)
        )
        found += by_stage.pop(stage, [])
    if are_other:  # sums over other samples are other sums
        metrics = []
    for stage in (Stage.TRAINER, *_DUMPS[4:]):
        found += _dumps(target, golden, stage, step, are_other=are_other) if stage is not Stage.TRAINER else []
        found += by_stage.pop(stage, [])
        found += [one for one in metrics if one.stage == stage.value]
    for stage in (Stage.WEIGHTS_SENT, Stage.WEIGHTS_RECEIVED):
        found += _weights(step, stage, target.weights(stage, step), golden.weights(stage, step))
    return found


def _rewards(target: RecordedRun, golden: RecordedRun, step: int) -> list[CheckResult]:
    """Compare the scores of the samples that both have; a run whose rollouts are replayed may compute none."""
    own, other = ({reward.id: reward.score for reward in load_rewards(run.path, step)} for run in (target, golden))
    common = [sample for sample in own if sample in other]
    if not common:
        return []
    unequal = [sample for sample in common if own[sample] != other[sample]]
    first = "" if not unequal else f"{own[unequal[0]]} and {other[unequal[0]]} for sample {unequal[0][:12]}"
    return [
        CheckResult(
            step=step, stage=Stage.REWARD.value, name="scores", num_values=len(common),
            agreement=Agreement.DIFFERENT if unequal else Agreement.EQUAL,
            reason=f"{len(unequal)} of {len(common)} differ, {first}" if unequal else "",
        )
    ]  # fmt: skip


def _ids(samples: Mapping[int, StageSamples]) -> list[str]:
    return sorted({row.id for own in samples.values() for call in own.micro_batches for row in call.rows})


def _same_samples(step: int, stage: str, ids: Sequence[Sequence[str]]) -> CheckResult:
    both = set(ids[0]) & set(ids[1])
    most = max(len(set(own)) for own in ids)
    is_same = set(ids[0]) == set(ids[1])
    return CheckResult(
        step=step,
        stage=stage,
        name="samples",
        agreement=Agreement.EQUAL if is_same else Agreement.DIFFERENT,
        num_values=most,
        reason="" if is_same else f"{len(both)} of {most} samples have the same token ids; were rollouts replayed?",
    )


def _batches(
    step: int,
    target: tuple[BatchFile, dict[str, Array]],
    golden: tuple[BatchFile, dict[str, Array]],
    dtypes: Collection[str],
) -> tuple[CheckResult, list[CheckResult], list[CheckResult]]:
    ids = [[row.id for row in batch.samples] for batch, _ in (target, golden)]
    identity = _same_samples(step, Stage.TRAINER.value, ids)
    pairs = _row_pairs(*ids)
    names = [*target[1], *(name for name in golden[1] if name not in target[1])]
    order = [name for names_, _ in _STAGE_OF for name in names_]
    names.sort(key=lambda name: (*_place(name, BEFORE), *_place(name, order), name))
    tensors = [_tensor(step, name, target[1].get(name), golden[1].get(name), pairs, dtypes) for name in names]
    metrics = [
        _number(step, name, target[0].metrics.get(name), golden[0].metrics.get(name), _limit("float32", *dtypes))
        for name in target[0].metrics
        if name in golden[0].metrics and _is_result(name)
    ]
    return identity, tensors, [one for one in metrics if one is not None]


def _dtypes(run: RecordedRun) -> set[str]:
    """Return the dtypes of the parameters, as far as they are recorded."""
    found: set[str] = set()
    for stage in (Stage.WEIGHTS_SENT, Stage.WEIGHTS_RECEIVED):
        for step in run.steps(stage.value)[:1]:
            found |= {weight.dtype for file in run.weights(stage, step).values() for weight in file.parameters}
    return found


def _place(name: str, order: Sequence[str]) -> tuple[int]:
    return (order.index(name),) if name in order else (len(order),)


def _row_pairs(target: Sequence[str], golden: Sequence[str]) -> list[tuple[int, int]]:
    """Return which rows belong together: those of one id, in their order."""
    rows: dict[str, list[int]] = {}
    for number, sample in enumerate(golden):
        rows.setdefault(sample, []).append(number)
    return [(number, rows[sample].pop(0)) for number, sample in enumerate(target) if rows.get(sample)]


def _stage_of(name: str) -> str:
    if name in BEFORE:
        return Stage.ROLLOUT.value
    return next((stage.value for names, stage in _STAGE_OF if name in names), Stage.TRAINER.value)


def _tensor(
    step: int,
    name: str,
    target: Array | None,
    golden: Array | None,
    pairs: Sequence[tuple[int, int]],
    dtypes: Collection[str],
) -> CheckResult:
    stage = _stage_of(name)
    if target is None or golden is None:
        side = "golden" if target is None else "target"
        return CheckResult(
            step=step, stage=stage, name=name, agreement=Agreement.ONE_SIDED, reason=f"only the {side} has it"
        )
    if not pairs:
        return CheckResult(
            step=step, stage=stage, name=name, agreement=Agreement.INCOMPARABLE, reason="no sample is in both batches"
        )
    own, other = (side[[pair[i] for pair in pairs]] for i, side in enumerate((target, golden)))
    if own.shape[1:] != other.shape[1:]:
        own, other = _trimmed(own, other)
    return _values(step, stage, name, own, other, dtypes)


def _trimmed(target: Array, golden: Array) -> tuple[Array, Array]:
    """Return the part that two paddings share; responses are padded on the right."""
    if target.ndim != golden.ndim:
        return target, golden
    sizes = tuple(slice(0, min(n, m)) for n, m in zip(target.shape, golden.shape, strict=True))
    return target[sizes], golden[sizes]


def _values(step: int, stage: str, name: str, target: Array, golden: Array, dtypes: Collection[str]) -> CheckResult:
    if target.shape != golden.shape:
        reason = f"shapes are {list(target.shape)} and {list(golden.shape)}"
        return CheckResult(step=step, stage=stage, name=name, agreement=Agreement.DIFFERENT, reason=reason)
    is_float = target.dtype.kind == "f"
    if np.array_equal(target, golden, equal_nan=is_float):
        return CheckResult(step=step, stage=stage, name=name, agreement=Agreement.EQUAL, num_values=target.size)
    if not is_float or golden.dtype.kind != "f":
        return CheckResult(
            step=step, stage=stage, name=name, agreement=Agreement.DIFFERENT, num_values=target.size,
            reason=_flips(target, golden),
        )  # fmt: skip
    error = relative_error(target, golden)
    # The batch is float32 also where the models that made it were not.
    limit = _limit(str(target.dtype), str(golden.dtype), *dtypes)
    agreement = Agreement.CLOSE if error <= limit else Agreement.DIFFERENT
    return CheckResult(
        step=step, stage=stage, name=name, agreement=agreement, num_values=target.size, error=error, limit=limit
    )


def _flips(target: Array, golden: Array) -> str:
    differs_at = np.atleast_1d(np.asarray(target != golden))
    share = float(differs_at.mean())
    first = tuple(int(i) for i in np.argwhere(differs_at)[0])
    return f"{share:.2%} of the elements differ, the first at {first}"


def relative_error(target: Array, golden: Array) -> float:
    """Return ``|target - golden| / |golden|`` of the whole; +Inf where one side alone is not finite."""
    own, other = target.astype(np.float64), golden.astype(np.float64)
    same = (own == other) | (np.isnan(own) & np.isnan(other))
    difference = np.where(same, 0.0, own - other)
    if not np.isfinite(difference).all():
        return math.inf
    size = float(np.linalg.norm(np.where(np.isfinite(other), other, 0.0)))
    return float(np.linalg.norm(difference)) / size if size else math.inf


def _limit(*dtypes: str) -> float:
    precision = coarser_of(*dtypes) or Precision.FLOAT32
    return float(getattr(conventional().relative, precision.name.lower()))


def _is_result(name: str) -> bool:
    lowered = name.lower()
    return not any(word in lowered for word in _NO_METRICS) and any(word in lowered for word in _METRICS)


def _number(step: int, name: str, target: float | None, golden: float | None, limit: float) -> CheckResult | None:
    if target is None or golden is None:
        return None
    is_of_critic = name.startswith("critic/") and any(word in name for word in ("loss", "grad_norm", "vf_", "vpred"))
    stage = (
        Stage.CRITIC_UPDATE if is_of_critic
        else Stage.ACTOR_UPDATE if name.startswith("actor/")
        else Stage.TRAINER
    )  # fmt: skip
    error = abs(target - golden) / max(abs(golden), _SMALL) if target != golden else 0.0
    agreement = Agreement.EQUAL if not error else Agreement.CLOSE if error <= limit else Agreement.DIFFERENT
    return CheckResult(
        step=step, stage=stage.value, name=f"metric {name}", agreement=agreement, num_values=1, error=error or None,
        limit=limit if error else None, reason=f"{target:.6g} and {golden:.6g}" if error else "",
    )  # fmt: skip


# --- dumps and weights -----------------------------------------------------------------------------------------------


def _dumps(target: RecordedRun, golden: RecordedRun, stage: Stage, step: int, *, are_other: bool) -> list[CheckResult]:
    """Compare what modules and APIs made in a stage.

    Where both have cut and ordered their samples alike, the core compares all that was recorded; elsewhere the outputs
    of modules are compared, sample by sample.
    """
    ranks = [run.ranks(stage.value, step) for run in (target, golden)]
    if not all(ranks):
        return []
    broken = next((path for own in ranks for path in own.values() if not is_dump(path)), None)
    if broken is not None:
        reason = f"{broken} holds no dump"
        return [CheckResult(step=step, stage=stage.value, name="modules", agreement=Agreement.ONE_SIDED, reason=reason)]
    samples = [run.samples(stage.value, step) for run in (target, golden)]
    try:
        if are_other or not _are_cut_alike(*samples):
            return [_by_samples(target, golden, stage, step)]
        return _by_calls(target, golden, stage, step)
    except (CompareError, DumpError) as error:
        return [
            CheckResult(
                step=step, stage=stage.value, name="modules", agreement=Agreement.INCOMPARABLE, reason=str(error)
            )
        ]


def _are_cut_alike(target: Mapping[int, StageSamples], golden: Mapping[int, StageSamples]) -> bool:
    cuts = [
        {
            (rank, call.call, row.id, row.row, row.offset, row.length, row.start)
            for rank, own in samples.items()
            for call in own.micro_batches
            for row in call.rows
        }
        for samples in (target, golden)
    ]
    return cuts[0] == cuts[1]


def _by_samples(target: RecordedRun, golden: RecordedRun, stage: Stage, step: int) -> CheckResult:
    sides = [StageTensors(run, stage.value, step) for run in (target, golden)]
    found = compare_modules(sides[0], sides[1], step)
    first = found.first()
    values = sum(module.positions for module in found.modules)
    note = f"{found.samples} samples that are cut or ordered differently"
    if first is not None:
        return CheckResult(
            step=step, stage=stage.value, name=first.module, agreement=Agreement.DIFFERENT, num_values=values,
            error=first.error, limit=first.limit * first.floor,
            reason=f"the first module that differs; {first.reason}; {note}",
        )  # fmt: skip
    worst = max((module.error for module in found.modules), default=0.0)
    return CheckResult(
        step=step, stage=stage.value, name="modules", agreement=Agreement.EQUAL if found.is_equal else Agreement.CLOSE,
        num_values=values, error=None if found.is_equal else worst, reason=note,
    )  # fmt: skip


def _by_calls(target: RecordedRun, golden: RecordedRun, stage: Stage, step: int) -> list[CheckResult]:
    directories = [run.path / stage.value / f"step{step}" for run in (target, golden)]
    result = compare_dumps(directories[0], directories[1], options=CompareOptions())
    target.note_incomplete(f"{stage.value}, {line}" for unit in result.units for line in unit.incomplete)
    found = [_unit(unit, stage, step) for unit in result.units]
    found += [
        CheckResult(step=step, stage=stage.value, name="ranks", agreement=Agreement.ONE_SIDED, reason=missing)
        for missing in result.missing
    ]
    return found


def _unit(unit: UnitResult, stage: Stage, step: int) -> CheckResult:
    name = f"modules of {unit.label}" if unit.label else "modules"
    fault = unit.first_fault
    if fault is not None and unit.differs:
        reason = "; ".join(f"{row}: {message}" for row, message in fault.findings[:2])
        return CheckResult(
            step=step, stage=stage.value, name=fault.entry, agreement=Agreement.DIFFERENT, num_values=unit.num_rows,
            reason=reason or f"the first call that differs, of {unit.label}",
        )  # fmt: skip
    num_other = unit.rows.filter(differs()).height
    reason = f"{num_other:,} values not equal to the bit, the first {unit.first_difference}" if num_other else ""
    return CheckResult(
        step=step, stage=stage.value, name=name, agreement=Agreement.CLOSE if num_other else Agreement.EQUAL,
        num_values=unit.num_rows, reason=reason,
    )  # fmt: skip


def _weights(
    step: int, stage: Stage, target: Mapping[int, WeightsFile], golden: Mapping[int, WeightsFile]
) -> list[CheckResult]:
    if not target or not golden:
        return []
    own, other = ({weight.name: weight for weight in files[min(files)].parameters} for files in (target, golden))
    lone = sorted(own.keys() ^ other.keys())
    found: list[CheckResult] = []
    if lone:
        shown = ", ".join(lone[:_MAX_NAMES])
        found.append(
            CheckResult(
                step=step,
                stage=stage.value,
                name="parameters",
                agreement=Agreement.ONE_SIDED,
                reason=f"only one side has {shown}",
            )
        )
    common = [name for name in own if name in other]
    unequal = [name for name in common if own[name].crc32 != other[name].crc32]
    if not unequal:
        found.append(
            CheckResult(
                step=step, stage=stage.value, name="parameters", agreement=Agreement.EQUAL, num_values=len(common)
            )
        )
        return found
    errors: dict[str, float] = {}
    for name in unequal:
        norms = own[name].l2, other[name].l2
        errors[name] = math.inf if norms[0] is None or not norms[1] else abs(norms[0] - norms[1]) / norms[1]
    worst = max(errors, key=lambda name: errors[name])
    coarser = coarser_of(own[worst].dtype, other[worst].dtype) or Precision.FLOAT32
    # Norms average roundings out: a thousandth in float32 would hide a parameter that was not trained.
    limit = min(_limit(own[worst].dtype, other[worst].dtype), 64 * UNIT_ROUNDOFF[coarser])
    is_close = errors[worst] <= limit
    found.append(
        CheckResult(
            step=step, stage=stage.value, name=worst if not is_close else "parameters",
            agreement=Agreement.CLOSE if is_close else Agreement.DIFFERENT, num_values=len(common), error=errors[worst],
            limit=limit, reason=f"{len(unequal)} of {len(common)} parameters have other bytes; the norm of {worst}",
        )
    )  # fmt: skip
    return found


def _table(checked: Sequence[CheckResult]) -> pl.DataFrame:
    rows = [
        {
            "step": one.step, "stage": one.stage, "name": one.name, "likeness": one.agreement.value,
            VERDICT: _VERDICTS[one.agreement].value, "values": one.num_values, "error": one.error, "limit": one.limit,
            "reason": one.reason,
        }
        for one in checked
    ]  # fmt: skip
    schema = {
        "step": pl.Int64, "stage": pl.String, "name": pl.String, "likeness": pl.String, VERDICT: pl.String,
        "values": pl.Int64, "error": pl.Float64, "limit": pl.Float64, "reason": pl.String,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema)
