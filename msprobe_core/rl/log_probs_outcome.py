"""``msprobe rl compare logprob``: log-probs of trainer and engine, token by token, and causes of differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from msprobe_core.findings import Finding as Said
from msprobe_core.findings import each_once, with_fields_of
from msprobe_core.judge.verdict import Verdict
from msprobe_core.rl.detail_codes import ComparedCode, LineCode
from msprobe_core.rl.drift import Drift, drift_of
from msprobe_core.rl.files import RLStage
from msprobe_core.rl.headline_codes import HeadlineCode
from msprobe_core.rl.hypotheses import Diagnosis
from msprobe_core.rl.log_prob_steps import LogProbOptions, StepLogProbs, baseline_floor, compare_step
from msprobe_core.rl.log_probs import Tokens, by_group, frame_of
from msprobe_core.rl.outcome import VERDICT, Finding, Outcome, listed_steps, table_of
from msprobe_core.rl.recorded import Progress, RecordedRun, chosen_steps, in_turn
from msprobe_core.rl.rl_codes import LogProbCode

_WORST = 200
"""Number of tokens per step in the table of the worst ones."""

_MEASURES = (
    ("mean_abs", "mean |difference|"), ("rms", "root mean square"), ("p50", "median"), ("p99", "99th percentile"),
    ("max", "largest"), ("mean", "mean"), ("probability_max", "largest difference of probabilities"),
    ("pearson", "correlation of probabilities"), ("kl", "KL, k1"), ("k3", "KL, k3"), ("ppl_ratio", "perplexity ratio"),
    ("chi2", "chi-squared"), ("share_over_ln2", "share over ln 2"),
    ("mean_ratio", "mean importance weight"), ("ratio_p99", "99th percentile of weights"),
    ("ratio_max", "largest weight"), ("effective_share", "effective share of samples"),
    ("clipped_low", "clipped below"), ("clipped_high", "clipped above"),
)  # fmt: skip


def compare_log_probs(
    run: RecordedRun, options: LogProbOptions | None = None, progress: Progress | None = None
) -> Outcome:
    """Compare the log-probs in a run's batches.

    Raises:
        CompareError: there is no batch, or it lacks the log-probs.
        DumpError: a file cannot be read.
    """
    options = options or LogProbOptions()
    available = run.need(RLStage.TRAINER.value, "the trainer's batch, which has the log-probs")
    chosen = chosen_steps(available, options.steps, f"{RLStage.TRAINER.value} of {run.path}")
    floor = None if options.baseline is None else baseline_floor(options.baseline, options)
    compared = [compare_step(run, step, options, floor) for step in in_turn(chosen, progress)]
    return _outcome(run, options, compared)


def _outcome(run: RecordedRun, options: LogProbOptions, compared: Sequence[StepLogProbs]) -> Outcome:
    drift = drift_of([one.step for one in compared], [one.measures.rms for one in compared])
    over_time = [*_over_limit(compared, options), *_drifted(compared, drift, options)]
    findings = [*(finding for one in compared for finding in _findings(one)), *over_time]
    worst = next((one for one in compared if one.is_different), None)
    num_tokens = sum(one.measures.num_tokens for one in compared)
    return Outcome(
        command="logprob",
        paths=[run.path],
        compared=Said.of(
            ComparedCode.LOG_PROBS,
            training=options.training,
            rollout=options.rollout,
            tokens=num_tokens,
            samples=sum(one.measures.num_samples for one in compared),
            steps=listed_steps([one.step for one in compared]),
        ),
        said=_headline(compared, worst, over_time),
        findings=findings,
        notes=each_once(note for one in compared for note in one.notes),
        lines=[line for one in compared for line in _lines(one, options)],
        numbers={
            "steps": {str(one.step): _numbers(one) for one in compared},
            "drift": None if drift is None else {**asdict(drift), "growth": drift.growth},
        },
        tables={
            "measures": _measures_table(compared),
            "causes": _causes_table(compared),
            "groups": pl.concat(
                _with_verdict(one, by_group(one.tokens, one.versions), pl.col("max")) for one in compared
            ),
            "tokens": pl.concat(_tokens_table(one) for one in compared),
        },
    )


def _over_limit(compared: Sequence[StepLogProbs], options: LogProbOptions) -> list[Finding]:
    over = [one for one in compared if options.limit is not None and one.measures.rms > options.limit]
    return [
        Finding(
            verdict=Verdict.ERROR, step=one.step, place="limit",
            said=Said.of(LogProbCode.LIMIT, rms=one.measures.rms, limit=options.limit),
        )
        for one in over
    ]  # fmt: skip


def _drifted(compared: Sequence[StepLogProbs], drift: Drift | None, options: LogProbOptions) -> list[Finding]:
    if drift is None or not drift.is_over(options.max_growth):
        return []
    fields = {
        "first": drift.first, "last": drift.last, "count": len(compared), "growth": drift.growth,
        "allowed": options.max_growth,
    }  # fmt: skip
    said = Said(LogProbCode.DRIFT, fields=fields)
    return [Finding(verdict=Verdict.ERROR, step=compared[-1].step, place="drift", said=said)]


def _lines(one: StepLogProbs, options: LogProbOptions) -> list[Said]:
    m, sampling = one.measures, one.sampling
    given = {
        "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k,
        "logprobs_mode": sampling.logprobs_mode,
    }  # fmt: skip
    settings = [_setting(name, "not recorded" if value is None else value) for name, value in given.items()]
    values = {
        **asdict(m), "training": options.training, "rollout": options.rollout, "worst": _worst(one),
        "over_ln2": 100 * m.share_over_ln2, "below": 100 * m.clipped_low, "above": 100 * m.clipped_high,
    }  # fmt: skip
    scores = [Said.of(LineCode.SCORE, measure=each.measure, score=each.score, limit=each.limit) for each in one.scores]
    return [
        Said.of(LineCode.SAMPLING, step=one.step, settings=settings),
        *(with_fields_of(values, code) for code in (LineCode.LOG_PROBS, LineCode.DIVERGENCE, LineCode.WEIGHTS)),
        Said.of(LineCode.FLOOR, size=one.floor.size, source=one.floor.source, scores=scores),
    ]


def _setting(name: str, value: object) -> Said:
    return Said.of(LogProbCode.SETTING, name=name, value=str(value))


def _worst(one: StepLogProbs) -> list[Said]:
    worst = worst_token(one.tokens)
    if worst is None:
        return []
    token = [] if worst["token"] is None else [Said.of(LineCode.ID, token=worst["token"])]
    fields = {"sample": worst["sample"], "position": worst["position"], "token": token}
    return [Said.of(LineCode.WORST, **fields, difference=f"{worst['difference']:+.3g}")]


def _findings(one: StepLogProbs) -> list[Finding]:
    found: list[Finding] = []
    if one.retokenised:
        fields = {"count": len(one.retokenised), "total": len(one.ids), "sample": one.retokenised[0]}
        said = Said(LogProbCode.RETOKENISED, fields=fields)
        found.append(Finding(verdict=Verdict.ERROR, said=said, step=one.step, place=one.retokenised[0]))
    found += _sampling_findings(one)
    if one.measures.num_not_finite:
        said = Said.of(LogProbCode.NOT_FINITE, count=one.measures.num_not_finite)
        found.append(Finding(verdict=Verdict.ERROR, said=said, step=one.step))
    for score in one.scores:
        if score.is_over:
            fields = {
                "measure": score.measure, "value": score.value, "score": score.score, "floor": score.floor,
                "source": score.source, "limit": score.limit,
            }  # fmt: skip
            said = Said(LogProbCode.SCORE, fields=fields)
            found.append(Finding(verdict=Verdict.ERROR, said=said, step=one.step, place=score.measure))
    for diagnosis in one.diagnoses:
        if diagnosis.is_named:
            fields = {
                "cause": diagnosis.cause, "explained": f"{diagnosis.explained:.0%}", "sentence": diagnosis.sentence,
            }  # fmt: skip
            said = Said(LogProbCode.CAUSE, fields=fields)
            found.append(Finding(verdict=Verdict.WARNING, said=said, step=one.step, place=diagnosis.cause.value))
    return found


def _sampling_findings(one: StepLogProbs) -> list[Finding]:
    """Return a warning if the engine's log-probs are not those of the distribution that it sampled from."""
    sampling = one.sampling
    if not (sampling.logprobs_mode or "").startswith("raw"):
        return []
    changed = {
        "temperature": sampling.temperature not in {None, 1.0},
        "top_p": sampling.top_p is not None and sampling.top_p < 1,
        "top_k": sampling.top_k is not None and sampling.top_k > 0,
    }
    names = [_setting(name, getattr(sampling, name)) for name, is_so in changed.items() if is_so]
    if not names:
        return []
    said = Said.of(LogProbCode.RAW, names=names)
    return [Finding(verdict=Verdict.WARNING, said=said, step=one.step, place="logprobs_mode")]


def _headline(compared: Sequence[StepLogProbs], worst: StepLogProbs | None, over_time: Sequence[Finding]) -> Said:
    other = next((one for one in compared if one.retokenised), None)
    if worst is None and other is None and over_time:
        return Said.of(HeadlineCode.IN_STEP, step=over_time[0].step, what=over_time[0].said)
    if worst is None and other is None:
        cast = next((d for one in compared for d in one.diagnoses if d.is_named), None)
        but = [] if cast is None else [Said.of(HeadlineCode.WHAT_THERE_IS, cause=cast.cause)]
        return Said.of(HeadlineCode.LOG_PROBS_AGREE, but=but)
    if worst is None:
        assert other is not None
        return Said.of(HeadlineCode.RETOKENISED, step=other.step)
    if not any(score.is_over for score in worst.scores):
        return Said.of(HeadlineCode.NOT_FINITE, step=worst.step)
    named = [d.cause for d in worst.diagnoses if d.is_named]
    if len(named) > 1:
        causes = [Said.of(HeadlineCode.CAUSE, cause=cause) for cause in named]
        why = Said.of(HeadlineCode.CAUSES, causes=causes)
    else:
        why = Said.of(HeadlineCode.ONE_CAUSE, cause=named[0]) if named else Said(HeadlineCode.NO_CAUSE)
    return Said.of(HeadlineCode.LOG_PROBS, step=worst.step, why=why)


def _numbers(one: StepLogProbs) -> dict[str, Any]:
    return {
        **asdict(one.measures),
        "floor": one.floor.size,
        "floor_source": one.floor.source.value,
        "scores": {s.measure: {"value": s.value, "score": s.score, "limit": s.limit} for s in one.scores},
        "causes": {
            d.cause.value: {"explained": d.explained, "statistic": d.statistic, "is_named": d.is_named}
            for d in one.diagnoses
        },
        "worst": worst_token(one.tokens),
    }


def worst_token(tokens: Tokens) -> dict[str, Any] | None:
    """Return sample, position, token and difference of the token with the largest difference; ``None`` if none."""
    finite = tokens.finite()
    if not finite.training.size:
        return None
    place = int(np.abs(finite.difference).argmax())
    return {
        "sample": int(finite.sample[place]),
        "position": int(finite.position[place]),
        "turn": int(finite.turn[place]),
        "token": None if finite.token is None else int(finite.token[place]),
        "difference": float(finite.difference[place]),
    }


def _measures_table(compared: Sequence[StepLogProbs]) -> pl.DataFrame:
    rows: list[_MeasureRow] = []
    for one in compared:
        known = partial(_MeasureRow, one.step, one.measures.num_tokens)
        rows += [known(text, getattr(one.measures, name)) for name, text in _MEASURES]
    for one in compared:
        known = partial(_MeasureRow, one.step, one.measures.num_tokens)
        rows += [
            known(
                f"{s.measure}, judged", s.value, s.floor, None if math.isinf(s.score) else s.score, s.limit, s.verdict
            )
            for s in one.scores
        ]
    return table_of(_MeasureRow, rows)


@dataclass(frozen=True)
class _MeasureRow:
    step: int
    tokens: int
    measure: str
    value: float
    floor: float | None = None
    score: float | None = None
    limit: float | None = None
    verdict: Verdict = Verdict.PASS


def _causes_table(compared: Sequence[StepLogProbs]) -> pl.DataFrame:
    parts = [_of_step(one, table_of(Diagnosis, one.diagnoses)) for one in compared]
    verdict = pl.when("is_named").then(pl.lit(Verdict.WARNING.value)).otherwise(pl.lit(Verdict.PASS.value))
    return pl.concat(parts).with_columns(verdict.alias(VERDICT))


def _of_step(one: StepLogProbs, rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(pl.lit(one.step, pl.Int64).alias("step"), pl.all())


def _with_verdict(one: StepLogProbs, rows: pl.DataFrame, size: pl.Expr) -> pl.DataFrame:
    """Return rows with the step and a verdict: whether a size exceeds the limit of the largest difference."""
    over = max(score.limit * score.floor for score in one.scores if score.measure == "largest")
    is_over = (size > over) | size.is_nan()
    verdict = pl.when(is_over).then(pl.lit(Verdict.ERROR.value)).otherwise(pl.lit(Verdict.PASS.value))
    return _of_step(one, rows).with_columns(verdict.alias(VERDICT))


def _tokens_table(one: StepLogProbs) -> pl.DataFrame:
    """Return the worst tokens of a step."""
    order = np.argsort(-np.nan_to_num(np.abs(one.tokens.difference), nan=np.inf), kind="stable")[:_WORST]
    return _with_verdict(one, frame_of(one.tokens.where(order), one.ids), pl.col("difference").abs())
