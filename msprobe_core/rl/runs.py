"""Check one step of two recorded runs, value by value, from cause to effect."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TypeAlias

import numpy as np

from msprobe_core.compare import compare_dumps
from msprobe_core.compare.pairs import find_pairs
from msprobe_core.compare.result import UnitResult
from msprobe_core.compare.tensor_metrics import PairSums, Workspace
from msprobe_core.compare.unit import compare_unit
from msprobe_core.errors import CompareError, DumpError
from msprobe_core.findings import Finding as Said
from msprobe_core.findings import noted
from msprobe_core.judge.limits import UNIT_ROUNDOFF, conventional
from msprobe_core.judge.row_findings import said
from msprobe_core.judge.verdict import differs
from msprobe_core.locate.rl_samples import with_same_samples
from msprobe_core.rl.files import BatchFile, RLStage, WeightsFile, load_rewards
from msprobe_core.rl.module_outputs import StageTensors, StatisticsOnlyError
from msprobe_core.rl.modules import compare_modules
from msprobe_core.rl.recorded import Array, RecordedRun
from msprobe_core.rl.rl_codes import RunsCode
from msprobe_core.rl.weights import assumed_precision
from msprobe_core.store import StageSamples
from msprobe_core.store.reading import is_dump

_Batch: TypeAlias = tuple[BatchFile, Mapping[str, Array]]

BEFORE = (
    "prompts", "input_ids", "responses", "attention_mask", "position_ids", "response_mask", "rollout_log_probs",
    "routed_experts",
)  # fmt: skip
"""Tensors of the batch that exist when the rollout has ended."""

_STAGE_OF = {
    "token_level_scores": RLStage.REWARD, "rm_scores": RLStage.REWARD, "old_log_probs": RLStage.ACTOR_LOG_PROB,
    "entropys": RLStage.ACTOR_LOG_PROB, "ref_log_prob": RLStage.REF_LOG_PROB, "values": RLStage.VALUES,
}  # fmt: skip
"""Stages that compute tensors of the batch; all others are in `BEFORE` or computed by the trainer."""

ORDER = (
    RLStage.ROLLOUT, RLStage.REWARD, RLStage.ACTOR_LOG_PROB, RLStage.REF_LOG_PROB, RLStage.VALUES, RLStage.TRAINER,
    RLStage.CRITIC_UPDATE, RLStage.ACTOR_UPDATE,
)  # fmt: skip
"""Causes before effects."""

_METRICS = ("loss", "grad_norm", "kl", "entropy", "reward", "score", "advantages", "returns", "values")
"""Words in the names of metrics that are results, rather than times, throughput or memory."""
_NO_METRICS = ("timing", "perf", "time", "memory", "throughput", "mfu", "global_seqlen")
_OF_CRITIC = ("loss", "grad_norm", "vf_", "vpred")
_SMALL = 1e-3
"""Metrics smaller than this count as this: divergences and losses that should be zero consist of rounding."""
_MAX_NAMES = 5


class Agreement(str, Enum):
    """Degree of agreement of two values."""

    EQUAL = "equal"
    CLOSE = "within limit"
    DIFFERENT = "differs"
    ONE_SIDED = "on one side"
    INCOMPARABLE = "not comparable"


@dataclass(frozen=True)
class CheckResult:
    """One check of one step of both runs.

    Attributes:
        step: The trainer's step.
        stage: The stage that produced the value.
        name: Name of the value.
        agreement: Degree of agreement.
        num_values: Number of compared values.
        error: The largest relative error; ``None`` if there is none.
        limit: Limit of the error.
        reason: Further explanation.
    """

    step: int
    stage: str
    name: str
    agreement: Agreement
    num_values: int = 0
    error: float | None = None
    limit: float | None = None
    reason: Said | None = None


def check_step(target: RecordedRun, golden: RecordedRun, step: int) -> list[CheckResult]:
    """Check everything that both runs have of a step, causes before effects.

    Raises:
        DumpError: a file cannot be read.
    """
    found: list[CheckResult] = []
    of_batch: list[CheckResult] = []
    rollouts = [run.samples(RLStage.ROLLOUT.value, step) for run in (target, golden)]
    if all(rollouts):
        found.append(_same_samples(step, RLStage.ROLLOUT, [_ids(own) for own in rollouts]))
    if all(step in run.steps(RLStage.TRAINER.value) for run in (target, golden)):
        batches = target.batch(step), golden.batch(step)
        dtypes = target.dtypes() | golden.dtypes()
        found.append(_same_samples(step, RLStage.TRAINER, [{row.id for row in batch.samples} for batch, _ in batches]))
        of_batch += _tensors(step, *batches, dtypes)
        if not _are_other(found):  # metrics over other samples cannot be compared
            of_batch += _metrics(step, batches[0][0], batches[1][0], dtypes)
    are_other = _are_other(found)
    is_updated_otherwise = any(
        _cut(target, RLStage.ACTOR_UPDATE, earlier) != _cut(golden, RLStage.ACTOR_UPDATE, earlier)
        for earlier in target.steps(RLStage.ACTOR_UPDATE.value)
        if earlier < step
    )
    found += [one for one in of_batch if one.stage == RLStage.ROLLOUT.value]
    for stage in ORDER:
        if stage is RLStage.REWARD:
            found += _rewards(target, golden, step)
        elif stage is not RLStage.TRAINER:
            found += _dumps(target, golden, stage, step, are_other=are_other, is_updated_otherwise=is_updated_otherwise)
        found += [one for one in of_batch if one.stage == stage.value and stage is not RLStage.ROLLOUT]
    for stage in (RLStage.WEIGHTS_SENT, RLStage.WEIGHTS_RECEIVED):
        found += _weights(step, stage, target.weights(stage, step), golden.weights(stage, step))
    return found


def said_of(one: CheckResult) -> Said:
    """Return what a check has found, without its place."""
    size = [] if one.error is None else [Said.of(RunsCode.SIZE, error=one.error)]
    limit = [] if one.limit is None else [Said.of(RunsCode.LIMIT, limit=one.limit)]
    why = [] if one.reason is None else [Said.of(RunsCode.REASON, reason=one.reason)]
    return Said.of(RunsCode.VALUE, name=one.name, agreement=one.agreement, size=size, limit=limit, why=why)


def _are_other(samples: Sequence[CheckResult]) -> bool:
    return any(one.agreement is Agreement.DIFFERENT for one in samples)


def _rewards(target: RecordedRun, golden: RecordedRun, step: int) -> Iterator[CheckResult]:
    """Compare the scores of the samples that both have; a run with replayed rollouts may not compute any."""
    own, other = ({reward.id: reward.score for reward in load_rewards(run.path, step)} for run in (target, golden))
    common = [sample for sample in own if sample in other]
    unequal = [sample for sample in common if own[sample] != other[sample]]
    check = partial(CheckResult, step, RLStage.REWARD.value, "scores", num_values=len(common))
    if unequal:
        first = unequal[0]
        fields = {"own": str(own[first]), "other": str(other[first]), "sample": first[:12]}
        reason = Said.of(RunsCode.SCORES, count=len(unequal), total=len(common), **fields)
        yield check(agreement=Agreement.DIFFERENT, reason=reason)
    elif common:
        yield check(agreement=Agreement.EQUAL)


def _ids(samples: Mapping[int, StageSamples]) -> set[str]:
    return {row.id for own in samples.values() for call in own.micro_batches for row in call.rows}


def _same_samples(step: int, stage: RLStage, ids: Sequence[set[str]]) -> CheckResult:
    most = max(map(len, ids))
    if ids[0] == ids[1]:
        return CheckResult(step, stage.value, "samples", Agreement.EQUAL, most)
    reason = Said.of(RunsCode.SAMPLES, count=len(ids[0] & ids[1]), total=most)
    return CheckResult(step, stage.value, "samples", Agreement.DIFFERENT, most, reason=reason)


# --- the batch -------------------------------------------------------------------------------------------------------


def _tensors(step: int, target: _Batch, golden: _Batch, dtypes: Collection[str]) -> Iterator[CheckResult]:
    """Yield checks of the tensors of the batch, for the rows that both have."""
    pairs = _row_pairs(*([row.id for row in batch.samples] for batch, _ in (target, golden)))
    made = list(_STAGE_OF)
    names = {**target[1], **golden[1]}
    for name in sorted(names, key=lambda name: (_place(name, BEFORE), _place(name, made), name)):
        check = partial(CheckResult, step, stage_of_tensor(name).value, name)
        if name not in target[1] or name not in golden[1]:
            side = RunsCode.ONLY_TARGET if name in target[1] else RunsCode.ONLY_GOLDEN
            yield check(Agreement.ONE_SIDED, reason=Said(side))
        elif not pairs:
            yield check(Agreement.INCOMPARABLE, reason=Said(RunsCode.NO_SAMPLE))
        else:
            rows = [list(own) for own in zip(*pairs, strict=True)]
            yield _tensor(check, target[1][name][rows[0]], golden[1][name][rows[1]], dtypes)


def _place(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)


def _row_pairs(target: Sequence[str], golden: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of rows with equal ids, in their order."""
    rows: dict[str, list[int]] = {}
    for number, sample in enumerate(golden):
        rows.setdefault(sample, []).append(number)
    return [(number, rows[sample].pop(0)) for number, sample in enumerate(target) if rows.get(sample)]


def _tensor(check: Callable[..., CheckResult], target: Array, golden: Array, dtypes: Collection[str]) -> CheckResult:
    if target.ndim == golden.ndim:  # crop both to the common size: responses are padded on the right
        sizes = tuple(slice(0, min(both)) for both in zip(target.shape, golden.shape, strict=True))
        target, golden = target[sizes], golden[sizes]
    if target.shape != golden.shape:
        reason = Said.of(RunsCode.SHAPES, own=str(list(target.shape)), other=str(list(golden.shape)))
        return check(Agreement.DIFFERENT, reason=reason)
    sums = PairSums(target.size, (str(target.dtype), str(golden.dtype)), Workspace())
    sums.add(target.ravel(), golden.ravel())
    if not sums.num_different and sums.mismatch is None:
        return check(Agreement.EQUAL, target.size)
    if target.dtype.kind != "f" or golden.dtype.kind != "f":
        differs_at = np.argwhere(target != golden)
        first = str(tuple(int(i) for i in differs_at[0]))
        reason = Said.of(RunsCode.ELEMENTS, share=f"{len(differs_at) / target.size:.2%}", first=first)
        return check(Agreement.DIFFERENT, target.size, reason=reason)
    # The batch is float32 also where the models that made it were not.
    limit = _limit(str(target.dtype), str(golden.dtype), *dtypes)
    size = sums.golden_squares.root()
    error = sums.difference_squares.root() / size if size and sums.mismatch is None else math.inf
    return check(_within(error, limit), target.size, error, limit)


def _within(error: float, limit: float) -> Agreement:
    return Agreement.CLOSE if error <= limit else Agreement.DIFFERENT


def _limit(*dtypes: str) -> float:
    return conventional().relative.of(assumed_precision(*dtypes))


def _metrics(step: int, target: BatchFile, golden: BatchFile, dtypes: Collection[str]) -> Iterator[CheckResult]:
    """Yield the metrics that both have and that are results."""
    limit = _limit("float32", *dtypes)
    for name, own in target.metrics.items():
        other = golden.metrics.get(name)
        if own is None or other is None or not is_result(name):
            continue
        check = partial(CheckResult, step, stage_of_metric(name).value, f"metric {name}", num_values=1)
        error = abs(own - other) / max(abs(other), _SMALL) if own != other else 0.0
        if error:
            reason = Said.of(RunsCode.METRIC, own=float(own), other=float(other))
            yield check(agreement=_within(error, limit), error=error, limit=limit, reason=reason)
        else:
            yield check(agreement=Agreement.EQUAL)


def stage_of_tensor(name: str) -> RLStage:
    """Return the stage that makes a tensor of the batch."""
    return RLStage.ROLLOUT if name in BEFORE else _STAGE_OF.get(name, RLStage.TRAINER)


def stage_of_metric(name: str) -> RLStage:
    """Return the stage whose result a metric is."""
    if name.startswith("critic/") and any(word in name for word in _OF_CRITIC):
        return RLStage.CRITIC_UPDATE
    return RLStage.ACTOR_UPDATE if name.startswith("actor/") else RLStage.TRAINER


def is_result(name: str) -> bool:
    """Return whether a metric is a result of the training, rather than a time or a use of memory."""
    lowered = name.lower()
    return not any(word in lowered for word in _NO_METRICS) and any(word in lowered for word in _METRICS)


# --- dumps and weights -----------------------------------------------------------------------------------------------


def _dumps(
    target: RecordedRun, golden: RecordedRun, stage: RLStage, step: int, *, are_other: bool, is_updated_otherwise: bool
) -> list[CheckResult]:
    """Compare what modules and APIs made in a stage.

    If both have cut and ordered their samples equally, the core compares everything that was recorded; otherwise the
    outputs of modules are compared, sample by sample, or without tensors all samples of a mini-batch together.
    """
    ranks = [run.ranks(stage.value, step) for run in (target, golden)]
    if not all(ranks):
        return []
    check = partial(CheckResult, step, stage.value)
    broken = next((path for own in ranks for path in own.values() if not is_dump(path)), None)
    if broken is not None:
        return [check("modules", Agreement.ONE_SIDED, reason=Said.of(RunsCode.NO_DUMP, path=str(broken)))]
    try:
        if are_other or _cut(target, stage, step) != _cut(golden, stage, step):
            try:
                return [_by_samples(check, target, golden, stage, step, is_updated_otherwise=is_updated_otherwise)]
            except StatisticsOnlyError as error:
                return _by_mini_batches(check, target, golden, stage, step, str(error))
        return _by_calls(check, target, golden, stage, step)
    except (CompareError, DumpError) as error:
        return [check("modules", Agreement.INCOMPARABLE, reason=noted(str(error)))]


def _cut(run: RecordedRun, stage: RLStage, step: int) -> set[tuple[int, int, str, int, int, int, int]]:
    """Return the place of every sample in the calls of a stage."""
    return {
        (rank, call.call, row.id, row.row, row.offset, row.length, row.start)
        for rank, own in run.samples(stage.value, step).items()
        for call in own.micro_batches
        for row in call.rows
    }


def recut_stage(target: RecordedRun, golden: RecordedRun, step: int) -> RLStage | None:
    """Return the first stage of a step that takes the same samples in other micro-batches or another order.

    Sums over samples, such as losses and gradients, are then added in another order, and cannot be equal to the bit.
    """
    for stage in ORDER:
        if stage in {RLStage.ROLLOUT, RLStage.REWARD, RLStage.TRAINER}:
            continue
        cuts = [_cut(run, stage, step) for run in (target, golden)]
        if all(cuts) and cuts[0] != cuts[1] and {cut[2] for cut in cuts[0]} == {cut[2] for cut in cuts[1]}:
            return stage
    return None


def _by_samples(
    check: Callable[..., CheckResult],
    target: RecordedRun,
    golden: RecordedRun,
    stage: RLStage,
    step: int,
    *,
    is_updated_otherwise: bool,
) -> CheckResult:
    """Compare outputs of modules sample by sample.

    If gradients of an earlier step were added up in another order, the two have other parameters, which differ by more
    than the rounding of one forward; the limit is then that of the comparison by calls.
    """
    sides = [StageTensors(run, stage.value, step) for run in (target, golden)]
    found = compare_modules(sides[0], sides[1], step)
    values = sum(module.positions for module in found.modules)
    note = Said.of(RunsCode.RECUT, count=found.samples)
    limit = _limit(*(target.dtypes() | golden.dtypes())) if is_updated_otherwise else 0.0
    if (first := next((one for one in found.modules if one.is_over and one.error > limit), None)) is not None:
        reason = Said.of(RunsCode.MODULE, reason=first.reason, note=note)
        return check(
            first.module, Agreement.DIFFERENT, values, first.error, max(limit, first.limit * first.floor), reason
        )
    if found.is_equal:
        return check("modules", Agreement.EQUAL, values, reason=note)
    worst = max((module.error for module in found.modules), default=0.0)
    return check("modules", Agreement.CLOSE, values, worst, reason=note)


def _by_mini_batches(
    check: Callable[..., CheckResult], target: RecordedRun, golden: RecordedRun, stage: RLStage, step: int, why: str
) -> list[CheckResult]:
    """Compare statistics over all samples of a mini-batch.

    Args:
        check: Makes a result of the stage.
        target: The target.
        golden: The golden run.
        stage: The stage.
        step: The step.
        why: Why nothing can be compared if the mini-batches of the two hold other samples.
    """
    sides = [run.path / stage.value / f"step{step}" for run in (target, golden)]
    pairing, left_out, _ = with_same_samples(find_pairs(sides[0], sides[1]))
    results = [_unit(check, compare_unit(pair)) for pair in pairing.pairs]
    if left_out:
        results.append(check("modules", Agreement.INCOMPARABLE, reason=noted(why)))
    return results


def _by_calls(
    check: Callable[..., CheckResult], target: RecordedRun, golden: RecordedRun, stage: RLStage, step: int
) -> list[CheckResult]:
    result = compare_dumps(*(run.path / stage.value / f"step{step}" for run in (target, golden)))
    target.note_incomplete(stage.value, (each for unit in result.units for each in unit.incomplete_findings))
    missing = [check("ranks", Agreement.ONE_SIDED, reason=reason) for reason in result.missing_findings]
    return [*(_unit(check, unit) for unit in result.units), *missing]


def _unit(check: Callable[..., CheckResult], unit: UnitResult) -> CheckResult:
    fault = unit.first_fault
    if fault is not None and unit.differs:
        told = [Said.of(RunsCode.ROW, row=row, finding=said(finding)) for row, finding in fault.findings[:2]]
        told = told or [Said.of(RunsCode.CALL, unit=unit.label)]
        reason = Said.of(RunsCode.SEVERAL, sentences=told)
        return check(fault.entry, Agreement.DIFFERENT, unit.num_rows, reason=reason)
    name = f"modules of {unit.label}" if unit.label else "modules"
    num_other = unit.rows.filter(differs()).height
    if not num_other:
        return check(name, Agreement.EQUAL, unit.num_rows)
    reason = Said.of(RunsCode.VALUES, count=num_other, first=str(unit.first_difference))
    return check(name, Agreement.CLOSE, unit.num_rows, reason=reason)


def _weights(
    step: int, stage: RLStage, target: Mapping[int, WeightsFile], golden: Mapping[int, WeightsFile]
) -> Iterator[CheckResult]:
    if not target or not golden:
        return
    check = partial(CheckResult, step, stage.value)
    own, other = ({weight.name: weight for weight in files[min(files)].parameters} for files in (target, golden))
    if lone := sorted(own.keys() ^ other.keys()):
        reason = Said.of(RunsCode.LONE, names=lone[:_MAX_NAMES])
        yield check("parameters", Agreement.ONE_SIDED, reason=reason)
    common = [name for name in own if name in other]
    unequal = [name for name in common if own[name].identity != other[name].identity]
    if not unequal:
        yield check("parameters", Agreement.EQUAL, len(common))
        return
    errors: dict[str, float] = {}
    for name in unequal:
        norm, expected = own[name].l2, other[name].l2
        errors[name] = math.inf if norm is None or not expected else abs(norm - expected) / expected
    worst = max(errors, key=lambda name: errors[name])
    dtypes = own[worst].dtype, other[worst].dtype
    # Rounding averages out in norms: a limit of 1e-3 in float32 would hide a parameter that was not trained.
    limit = min(_limit(*dtypes), 64 * UNIT_ROUNDOFF[assumed_precision(*dtypes)])
    agreement = _within(errors[worst], limit)
    name = worst if agreement is Agreement.DIFFERENT else "parameters"
    reason = Said.of(RunsCode.PARAMETERS, count=len(unequal), total=len(common), name=worst)
    yield check(name, agreement, len(common), errors[worst], limit, reason)
