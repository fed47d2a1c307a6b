"""The log-probs of one step: their differences, the noise floor, and the evidence for each cause."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from msprobe_core.errors import CompareError
from msprobe_core.findings import Finding
from msprobe_core.judge.limits import Precision, precision_of
from msprobe_core.judge.noise.model import NoiseSource
from msprobe_core.rl.detail_codes import RunNoteCode
from msprobe_core.rl.drift import MAX_GROWTH
from msprobe_core.rl.files import BatchFile, RLStage, Sampling
from msprobe_core.rl.floors import Floor, Score, log_prob_floor, log_prob_scores, precision_named
from msprobe_core.rl.hypotheses import Diagnosis, Evidence, examine
from msprobe_core.rl.invariants import is_bypassed
from msprobe_core.rl.log_probs import CLIP_RATIO, LogProbMeasures, Tokens, measure, tokens_of
from msprobe_core.rl.logits import logits_of, refit_of
from msprobe_core.rl.recorded import Array, RecordedRun, policy_versions, retokenised_rows, trainer_version
from msprobe_core.rl.routing_outcome import rerouted_tokens
from msprobe_core.rl.weights import Transfer, coarser_of
from msprobe_core.rl.weights_outcome import Sync, syncs

MASK = "response_mask"
_NEEDED_FOR = {
    "rollout_log_probs": "; set actor_rollout_ref.rollout.calculate_log_probs=True, so that the engine gives them",
    "ref_log_prob": "; the run has no reference policy",
}
_ENTROPIES = ("entropys", "entropy", "old_entropy")


@dataclass(frozen=True, kw_only=True)
class LogProbOptions:
    """How log-probs are compared.

    Attributes:
        training: Name of the batch tensor with the log-probs under test.
        rollout: Name of the tensor with the log-probs to compare with.
        steps: Steps to compare; all if empty.
        dtype: Dtype of the coarser engine; ``None`` for that of the recorded weights.
        baseline: A healthy run of the same engines, whose difference is the floor.
        limit: Largest root mean square difference of a step, in nats; ``None`` for what rounding explains only.
        max_growth: Largest growth of the root mean square difference over all steps.
    """

    training: str = "old_log_probs"
    rollout: str = "rollout_log_probs"
    steps: Collection[int] = ()
    dtype: str | None = None
    baseline: RecordedRun | None = None
    limit: float | None = None
    max_growth: float = MAX_GROWTH


@dataclass(frozen=True, kw_only=True)
class StepLogProbs:
    """The comparison of one step.

    Attributes:
        step: The trainer's step.
        tokens: The tokens that count.
        ids: Ids of the samples, by row.
        measures: Measures of the difference.
        floor: What rounding explains, in nats.
        scores: The measures relative to the floor.
        diagnoses: Result of each test.
        sampling: How tokens were sampled.
        retokenised: Ids of samples whose tokens differ from the generated ones.
        versions: Version of the policy that drew each row; ``None`` if unknown.
        notes: Notes for the reader.
    """

    step: int
    tokens: Tokens
    ids: Mapping[int, str]
    measures: LogProbMeasures
    floor: Floor
    scores: Sequence[Score]
    diagnoses: Sequence[Diagnosis]
    sampling: Sampling
    retokenised: Sequence[str] = ()
    versions: Sequence[int | None] | None = None
    notes: Sequence[Finding] = ()

    @property
    def is_different(self) -> bool:
        """Whether rounding does not explain the difference."""
        return any(score.is_over for score in self.scores) or bool(self.measures.num_not_finite)


def baseline_floor(run: RecordedRun, options: LogProbOptions) -> Floor:
    """Return the largest difference of all steps of a healthy run, as a floor."""
    sizes = [
        measure(_tokens(run, step, options, run.batch(step)[1])).rms
        for step in run.need(RLStage.TRAINER.value, "the batches")
    ]
    return Floor(size=max(sizes), source=NoiseSource.BASELINE)


def _tokens(run: RecordedRun, step: int, options: LogProbOptions, tensors: Mapping[str, Array]) -> Tokens:
    names = (options.training, options.rollout, MASK)
    for name in names:
        if name not in tensors:
            raise CompareError(
                f"{run.path}: the batch of step {step} has no '{name}', but {', '.join(sorted(tensors)) or 'nothing'}"
                f"{_NEEDED_FOR.get(name, '')}"
            )
    training, rollout, mask = (tensors[name] for name in names)
    try:
        return tokens_of(
            training,
            rollout,
            mask,
            responses=_same_shape(tensors, "responses", training),
            entropy=next((e for n in _ENTROPIES if (e := _same_shape(tensors, n, training)) is not None), None),
        )
    except CompareError as error:
        raise CompareError(f"{run.path}: step {step}: {error}") from error


_ACTOR = "actor_rollout_ref.actor"
_OWN = ("old_log_probs", "rollout_log_probs")


def _recomputed(
    run: RecordedRun, step: int, batch: BatchFile, tensors: dict[str, Array], options: LogProbOptions
) -> tuple[dict[str, Array], list[Finding]]:
    """Return the batch with log-probs of the trainer's own where it took over those of the engine.

    Raises:
        CompareError: it took them over, and nothing is recorded from which its own could be computed.
    """
    old, rollout = (tensors.get(name) for name in _OWN)
    mask = tensors.get(MASK)
    if (options.training, options.rollout) != _OWN or old is None or rollout is None or mask is None:
        return tensors, []
    counts = np.asarray(mask) != 0
    if old.shape != rollout.shape or old.shape != counts.shape or not (old[counts] == rollout[counts]).all():
        return tensors, []
    has_own = step in run.steps(RLStage.ACTOR_LOG_PROB.value)
    if has_own and not is_bypassed(run):
        return tensors, []  # two passes that agree to the bit
    stage = RLStage.ACTOR_LOG_PROB if has_own else RLStage.ACTOR_UPDATE
    made = None
    if step in run.steps(stage.value):
        logits = logits_of(run, stage.value, step, batch, tensors, minis=(0,) if not has_own else None)
        made = None if logits is None else logits.log_probs(batch.sampling.temperature or 1.0)
    if made is None or not np.isfinite(made[counts]).any():
        raise CompareError(
            f"{run.path}: step {step}: old_log_probs are rollout_log_probs, to the bit, and no pass of the trainer "
            "is recorded that computed them, as with bypass_mode: there is nothing to compare. Record actor_update at "
            'level L0 with "task": "tensor", so that they can be computed from the logits of its first mini-batch'
        )
    known = counts & np.isfinite(made)
    fields = {"step": step, "stage": stage.value, "count": int(known.sum()), "total": int(counts.sum())}
    note = Finding(RunNoteCode.COMPUTED, fields=fields)
    return {**tensors, "old_log_probs": np.where(known, made, 0.0), MASK: known}, [note]


def _same_shape(tensors: Mapping[str, Array], name: str, like: Array) -> Array | None:
    found = tensors.get(name)
    return found if found is not None and found.shape == like.shape else None


def compare_step(run: RecordedRun, step: int, options: LogProbOptions, floor: Floor | None = None) -> StepLogProbs:
    """Compare the log-probs of one step.

    Args:
        run: The recorded run.
        step: The step.
        options: How to compare.
        floor: What rounding explains; by default, from the closed form.

    Raises:
        CompareError: the batch lacks the log-probs, or no token counts.
        DumpError: a file cannot be read.
    """
    batch, tensors = run.batch(step)
    tensors, notes = _recomputed(run, step, batch, tensors, options)
    tokens = _tokens(run, step, options, tensors)
    found = measure(tokens, _clip_of(run))
    transfers = _weights_in_use(run, step)
    precision, assumed = _precision(run, transfers, options.dtype)
    size = float(np.sqrt(np.mean(tokens.finite().rollout ** 2)))
    own = floor or log_prob_floor(precision, size)
    scores = log_prob_scores(
        own, rms=found.rms, mean=found.mean, largest=found.max, num_tokens=found.num_tokens,
        num_samples=found.num_samples,
    )  # fmt: skip
    other_tokens = retokenised_rows(run, step, batch, tensors) if options.rollout == "rollout_log_probs" else None
    fine = coarser_of(*(one.sent.dtype for sync in transfers for one in sync.parameters if one.sent is not None))
    fine_floor = None if fine is None else log_prob_floor(fine, size).size
    evidence = replace(
        _evidence(run, step, batch, transfers, other_tokens),
        fine_floor=fine_floor,
        rerouted=rerouted_tokens(run, step, batch, tensors[options.training].shape),
    )
    is_different = any(score.is_over for score in scores)
    if is_different and (options.training, options.rollout) == _OWN:
        evidence = replace(evidence, refit=refit_of(run, step, batch, tensors))
    ids = {row: sample.id for row, sample in enumerate(batch.samples)}
    return StepLogProbs(
        step=step,
        tokens=tokens,
        ids=ids,
        measures=found,
        floor=own,
        scores=scores,
        diagnoses=examine(tokens, own.size, evidence, is_different=is_different),
        sampling=batch.sampling,
        retokenised=[ids[row] for row, is_other in enumerate(other_tokens or ()) if is_other],
        versions=policy_versions(run, step, batch),
        notes=[*notes, *assumed],
    )


def _clip_of(run: RecordedRun) -> tuple[float, float]:
    """Return by how much importance weights may be below and above 1 in the trainer's loss."""
    usual = run.number(f"{_ACTOR}.clip_ratio")
    low, high = run.number(f"{_ACTOR}.clip_ratio_low"), run.number(f"{_ACTOR}.clip_ratio_high")
    own = CLIP_RATIO if usual is None else usual
    return own if low is None else low, own if high is None else high


def _weights_in_use(run: RecordedRun, step: int) -> list[Sync]:
    """Return the transfers that brought the weights for a step's tokens to the engines: the last ones before it."""
    before = [number for number in run.steps(RLStage.WEIGHTS_SENT.value) if number < step]
    return syncs(run, before[-1]) if before else []


def _precision(run: RecordedRun, transfers: Sequence[Sync], dtype: str | None) -> tuple[Precision, list[Finding]]:
    """Return the precision of the coarser engine, and a note if it is assumed."""
    if dtype is not None:
        if precision_of(dtype) is None:
            raise CompareError(f"--dtype {dtype}: is no floating-point dtype; give for example bfloat16")
        return precision_named(dtype), []
    names = [w.dtype for sync in transfers for one in sync.parameters for w in (one.sent, one.received) if w]
    if not names:
        names = run.dtypes()
    found = coarser_of(*set(names))
    if found is not None:
        return found, []
    return Precision.FLOAT32, [Finding(RunNoteCode.FLOAT32_ASSUMED)]


def _evidence(
    run: RecordedRun, step: int, batch: BatchFile, transfers: Sequence[Sync], other_tokens: Sequence[bool] | None
) -> Evidence:
    versions = policy_versions(run, step, batch)
    own = trainer_version(run, step)
    newest = max((v for v in (own, *(versions or ())) if v is not None), default=None)
    stale = None
    if versions is not None and newest is not None:
        stale = np.array([version is not None and version < newest for version in versions], bool)
    faults = {one.name: one for sync in transfers for one in sync.faults}
    sampling = batch.sampling
    casts = [precision for sync in transfers if (precision := sync.cast) is not None]
    return Evidence(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        logprobs_mode=sampling.logprobs_mode,
        retokenised=None if other_tokens is None else np.array(other_tokens, bool),
        stale=stale if stale is not None and stale.any() else None,
        num_parameters=max((len(sync.parameters) for sync in transfers), default=None),
        unsynchronised=tuple(faults),
        outdated=tuple(name for name, one in faults.items() if one.transfer is Transfer.OUTDATED),
        cast=max(casts, default=None),
    )
