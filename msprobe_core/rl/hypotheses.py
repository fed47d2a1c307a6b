"""Causes of differences between log-probs of training and rollout: a test for each gives the share that it explains.

Each test undoes the effect of its cause as far as the recorded values allow, and returns the share of the sum of
all ``|difference|`` that this removes. A cause is named if the difference is more than rounding explains, and the cause
explains most of it. Facts from files other than log-probs (weights, identities of tokens, versions of the policy)
are passed in as `Evidence`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msprobe_core.findings import Finding as Said
from msprobe_core.judge.limits import Precision
from msprobe_core.rl.log_probs import Floats, Integers, Tokens
from msprobe_core.rl.logits import Refit, RefitKind
from msprobe_core.rl.rl_codes import CauseCode

Flags: TypeAlias = NDArray[np.bool_]

MOST = 0.5
"""Minimum share of the difference that a cause must explain to be named."""

NEARLY_BEST = 0.8
"""Minimum share, relative to the best explanation, for another cause to be named; the rest are side effects."""

FEWEST_TOKENS = 16
"""Minimum number of tokens, because patterns in fewer numbers prove nothing."""

_SHIFTS = (-2, -1, 1, 2)
_LEAST_KEPT = 0.5
"""Smallest probability that top-p or top-k is assumed to keep if neither was recorded."""
_ONE_SIDED = 0.95
_MISSING_NATS = 1.0
"""A log-prob of exactly 0 is taken for a missing value if its counterpart is lower by more than this."""
_TEMPERATURES = (0.05, 20.0)


class Cause(str, Enum):
    """Reasons why two engines compute different log-probs for one token."""

    OFF_BY_ONE = "off by one"
    TEMPERATURE = "temperature"
    VOCABULARY = "padded vocabulary"
    RENORMALISED = "top-p or top-k renormalisation"
    MASK = "mask"
    RETOKENISED = "retokenised"
    STALE_WEIGHTS = "stale weights"
    UNSYNCHRONISED = "unsynchronised parameter"
    ROUTING = "other experts"
    PRECISION_CAST = "precision cast"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Facts about a batch besides its log-probs; ``None`` for unknown ones.

    Attributes:
        temperature: Temperature of the sampling.
        top_p: Top-p of the sampling.
        top_k: Top-k of the sampling; -1 or 0 for none.
        logprobs_mode: ``raw`` or ``processed``.
        retokenised: For each row of the batch, whether its tokens differ from the generated ones.
        stale: For each row, whether older weights than the trainer's generated it.
        num_parameters: Number of parameters that were sent.
        unsynchronised: Names of parameters whose values in the engine differ from those sent.
        outdated: Those of them whose values in the engine are those of an earlier step.
        cast: Coarsest precision to which parameters were cast during the transfer.
        fine_floor: Root mean square of what rounding would explain without any cast, in nats.
        refit: What the logits of both sides show.
        rerouted: For each row and position of the responses, whether the token before, from which it is predicted, has
            other experts in the trainer than in the rollout.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    logprobs_mode: str | None = None
    retokenised: Flags | None = None
    stale: Flags | None = None
    num_parameters: int | None = None
    unsynchronised: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()
    cast: Precision | None = None
    fine_floor: float | None = None
    refit: Refit | None = None
    rerouted: Flags | None = None


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Result of one test.

    Attributes:
        cause: The tested cause.
        explained: Share of the difference that the cause explains, from 0 to 1; ``None`` if it could not be tested.
        statistic: Statistic of the test; see ``meaning``.
        meaning: Meaning of the statistic.
        sentence: The result, or why the cause could not be tested.
        is_named: Whether the cause is reported as responsible.
    """

    cause: Cause
    explained: float | None
    statistic: float | None
    meaning: str
    sentence: Said
    is_named: bool = False


def examine(tokens: Tokens, floor: float, evidence: Evidence, *, is_different: bool) -> list[Diagnosis]:
    """Return the results of all tests: named causes first, then by the share that they explain.

    Args:
        tokens: Tokens of one batch.
        floor: Root mean square of what rounding explains, in nats.
        evidence: Further facts.
        is_different: Whether the difference is more than rounding explains; otherwise no cause is named.
    """
    finite = tokens.finite()
    tested = [_diagnosis(cause, *test, finite, floor, evidence) for cause, test in _TESTS.items()]
    best = max((one.explained or 0.0 for one in tested), default=0.0)
    least = max(MOST, NEARLY_BEST * best)
    is_coarse = _is_coarse(finite, evidence)
    named = [
        replace(
            one,
            is_named=(is_different or (is_coarse and one.cause is Cause.PRECISION_CAST))
            and (one.explained or 0.0) >= least,
        )
        for one in tested
    ]
    return sorted(named, key=lambda one: (not one.is_named, -(one.explained if one.explained is not None else -1.0)))


class _Tested(NamedTuple):
    """Result of one test, as in `Diagnosis`; ``meaning`` if the statistic is not the usual one of this test."""

    explained: float | None
    statistic: float | None
    sentence: Said
    meaning: str | None = None


_Test: TypeAlias = Callable[[Tokens, float, Evidence], _Tested]
_TOO_FEW = _Tested(None, None, Said(CauseCode.TOO_FEW))


def _diagnosis(cause: Cause, test: _Test, meaning: str, tokens: Tokens, floor: float, evidence: Evidence) -> Diagnosis:
    found = test(tokens, floor, evidence)
    return Diagnosis(
        cause=cause, explained=found.explained, statistic=found.statistic, meaning=found.meaning or meaning,
        sentence=found.sentence,
    )  # fmt: skip


def _explained(residual: Floats, difference: Floats) -> float:
    whole = float(np.abs(difference).sum())
    return 0.0 if whole == 0 else max(0.0, 1.0 - float(np.abs(residual).sum()) / whole)


# --- patterns in the numbers ----------------------------------------------------------------------------------------


def _shifted(tokens: Tokens, shift: int) -> tuple[Floats, Floats]:
    """Return training and rollout of the tokens that have a neighbour ``shift`` positions later, within one turn."""
    step = abs(shift)
    low, high = slice(None, -step), slice(step, None)
    own, other = (low, high) if shift > 0 else (high, low)
    neighbours = (tokens.sample[low] == tokens.sample[high]) & (tokens.turn[low] == tokens.turn[high])
    return tokens.training[own][neighbours], tokens.rollout[other][neighbours]


def _off_by_one(tokens: Tokens, _floor: float, _evidence: Evidence) -> _Tested:
    if tokens.training.size < FEWEST_TOKENS:
        return _TOO_FEW
    mean_abs = float(np.abs(tokens.difference).mean())
    ratios: dict[int, float] = {}
    for shift in (-1, 1):
        training, rollout = _shifted(tokens, shift)
        if training.size and mean_abs:
            ratios[shift] = float(np.abs(training - rollout).mean()) / mean_abs
    if not ratios:
        return _Tested(0.0, None, Said(CauseCode.NO_NEIGHBOURS))
    shift, ratio = min(ratios.items(), key=lambda item: item[1])
    return _Tested(max(0.0, 1.0 - ratio), ratio, Said.of(CauseCode.SHIFTED, shift=f"{shift:+d}", ratio=ratio))


def _temperature(tokens: Tokens, _floor: float, evidence: Evidence) -> _Tested:
    """Fit ``difference = (b - 1) (log p + H) + c``: to first order in ``b - 1``, what logits times ``b`` do.

    ``d log softmax(b z)_t / d b = log p_t + H`` at ``b = 1``, with the entropy H of the distribution. The mean of
    both sides is used for ``log p``: noise or a shift of only one side would otherwise correlate with the difference
    (Bland and Altman, *Statistical methods for assessing agreement*, Lancet 327, 1986). Without recorded entropies, the
    test is weak if some distributions are peaked and others flat.
    """
    if evidence.refit is not None and evidence.refit.kind is RefitKind.TEMPERATURE:
        return _Tested(evidence.refit.explained, None, Said.of(CauseCode.BY_LOGITS, sentence=evidence.refit.sentence))
    n = tokens.training.size
    middle = (tokens.training + tokens.rollout) / 2
    if n < FEWEST_TOKENS or float(middle.std()) == 0.0:
        return _TOO_FEW
    d = tokens.difference
    columns = [np.ones(n), middle]
    if tokens.entropy is not None and np.isfinite(tokens.entropy).all():
        columns.append(tokens.entropy)
    design = np.stack(columns, axis=1)
    found = np.linalg.lstsq(design, d, rcond=None)[0]
    slope = float(found[1])
    residual = d - design @ found
    spread = d - float(np.median(d))
    explained = min(_explained(residual, d), _explained(residual, spread))
    ratio = (2 + slope) / (2 - slope) if slope < 2 else math.inf
    if not _TEMPERATURES[0] < ratio < _TEMPERATURES[1]:
        explained = 0.0
    temperature, own_mode = evidence.temperature, evidence.logprobs_mode
    known = [] if temperature is None else [Said.of(CauseCode.SAMPLED_AT, temperature=temperature)]
    mode = [] if own_mode is None else [Said.of(CauseCode.MODE, mode=own_mode)]
    return _Tested(explained, ratio, Said.of(CauseCode.TEMPERATURE, ratio=ratio, known=known, mode=mode))


def _vocabulary(_tokens: Tokens, _floor: float, evidence: Evidence) -> _Tested:
    refit = evidence.refit
    if refit is None:
        return _Tested(None, None, Said(CauseCode.NO_LOGITS))
    if refit.kind is not RefitKind.VOCABULARY:
        return _Tested(0.0, None, Said(CauseCode.SAME_WORDS))
    return _Tested(refit.explained, None, refit.sentence)


def _renormalised(tokens: Tokens, floor: float, evidence: Evidence) -> _Tested:
    """Test for one sign and a bound: kept tokens are renormalised, so ``difference = log(kept share) <= 0``."""
    if tokens.training.size < FEWEST_TOKENS:
        return _TOO_FEW
    d = tokens.difference
    tolerance = 3 * floor
    limited_p = evidence.top_p is not None and evidence.top_p < 1
    limited_k = evidence.top_k is not None and evidence.top_k > 0
    is_off = evidence.top_p is not None and evidence.top_k is not None and not limited_p and not limited_k
    bound = math.inf if limited_k else -math.log(max(evidence.top_p or 0, 1e-6) if limited_p else _LEAST_KEPT)
    fits = (d <= tolerance) & (-d <= bound + tolerance)
    size = np.abs(d)
    whole = float(size.sum())
    share = 0.0 if whole == 0 else float(size[fits & (d < 0)].sum()) / whole
    kept = float(np.exp(d.min())) if d.size else 1.0
    # Missing values, exactly 0, are not probabilities; if the share varies, the most frequent tokens lose the least.
    is_one_sided = bool(np.mean(fits) >= _ONE_SIDED)
    explained = share if is_one_sided and not is_off else 0.0
    said = (
        Said(CauseCode.LIMITS_OFF) if is_off
        else Said.of(CauseCode.TOP_P, size=evidence.top_p) if limited_p
        else Said.of(CauseCode.TOP_K, size=evidence.top_k) if limited_k
        else Said(CauseCode.LIMITS_UNKNOWN)
    )  # fmt: skip
    return _Tested(explained, kept, Said.of(CauseCode.KEPT, share=f"{np.mean(d < 0):.1%}", kept=kept, said=said))


def _mask(tokens: Tokens, floor: float, _evidence: Evidence) -> _Tested:
    """Test for missing values, and for a context without the tokens that a mask hides."""
    d = tokens.difference
    size = np.abs(d)
    whole = float(size.sum())
    if tokens.training.size < FEWEST_TOKENS or whole == 0:
        return _TOO_FEW
    missing = ((tokens.training == 0) != (tokens.rollout == 0)) & (size > 3 * floor)
    of_missing = float(size[missing].sum()) / whole
    if of_missing and float(size[missing].max()) >= _MISSING_NATS:
        side = "rollout" if np.count_nonzero(tokens.rollout[missing] == 0) * 2 > missing.sum() else "training"
        sentence = Said.of(CauseCode.MISSING, count=int(missing.sum()), side=side)
        return _Tested(of_missing, of_missing, sentence)
    later = tokens.turn > 0
    before = size[~later]
    of_later = float(size[later].sum()) / whole if later.any() and before.size else 0.0
    is_clean = before.size > 0 and float(np.sqrt(np.mean(before**2))) <= 4 * max(floor, 1e-300)
    sentence = Said.of(CauseCode.LATER_TURNS, share=f"{of_later:.1%}") if later.any() else Said(CauseCode.ONE_TURN)
    return _Tested(of_later if is_clean else 0.0, of_later, sentence)


def _retokenised(tokens: Tokens, floor: float, evidence: Evidence) -> _Tested:
    """Test whether the difference is in samples with other tokens, or in samples shifted from some token on."""
    d = tokens.difference
    whole = float(np.abs(d).sum())
    if evidence.retokenised is not None:
        flagged = evidence.retokenised[tokens.sample]
        share = float(np.abs(d[flagged]).sum()) / whole if whole else 0.0
        return _Tested(
            share,
            share,
            Said.of(CauseCode.RETOKENISED, count=int(evidence.retokenised.sum()), total=int(evidence.retokenised.size)),
        )
    if tokens.training.size < FEWEST_TOKENS or whole == 0:
        return _TOO_FEW
    begin = _parting(tokens, 6 * floor)
    after = begin >= 0
    later = after & (begin > 0) & (tokens.position >= begin)
    of_later = float(np.abs(d[later]).sum()) / whole
    ratios = [1.0]
    for shift in _SHIFTS:
        chosen = tokens.where(later)
        training, rollout = _shifted(chosen, shift)
        own = np.abs(chosen.difference)
        if training.size and own.size:
            ratios.append(float(np.abs(training - rollout).mean() / own.mean()))
    return _Tested(
        max(0.0, of_later * (1 - min(ratios))),
        of_later,
        Said(CauseCode.NOT_GENERATED),
        meaning="share of the difference after the first token that differs, in samples that begin alike",
    )


def _parting(tokens: Tokens, tolerance: float) -> Integers:
    """Return for each token the position at which its sample first differs; -1 if it does not."""
    over = np.abs(tokens.difference) > tolerance
    first = np.full(int(tokens.sample.max(initial=0)) + 1, -1, np.int64)
    places = np.nonzero(over)[0][::-1]
    first[tokens.sample[places]] = tokens.position[places]
    return first[tokens.sample]


# --- facts from other files -----------------------------------------------------------------------------------------


def _rms(tokens: Tokens) -> float:
    return float(np.sqrt(np.mean(tokens.difference**2))) if tokens.training.size else 0.0


def _beyond(tokens: Tokens, floor: float) -> float:
    """Return the share of the difference that rounding does not explain."""
    rms = _rms(tokens)
    return max(0.0, 1.0 - floor / rms) if rms else 0.0


def _stale(tokens: Tokens, floor: float, evidence: Evidence) -> _Tested:
    if evidence.outdated and evidence.num_parameters:
        share = len(evidence.outdated) / evidence.num_parameters
        is_most = len(evidence.outdated) > 1 and share >= MOST
        return _Tested(
            _beyond(tokens, floor) if is_most else 0.0,
            share,
            Said.of(CauseCode.OUTDATED, count=len(evidence.outdated), total=evidence.num_parameters),
        )
    if evidence.stale is None:
        if evidence.num_parameters is None:
            return _Tested(None, None, Said(CauseCode.NO_VERSIONS))
        return _Tested(0.0, 0.0, Said(CauseCode.NOT_OUTDATED))
    flagged = evidence.stale[tokens.sample]
    size = np.abs(tokens.difference)
    fresh = size[~flagged]
    whole = float(size.sum())
    share = float(size[flagged].sum()) / whole if whole else 0.0
    # If all rows are stale, everything that rounding does not explain is attributed to them.
    explained = share * _beyond(tokens, floor) if not fresh.size else share
    return _Tested(
        explained if flagged.any() else 0.0,
        float(np.mean(evidence.stale)),
        Said.of(CauseCode.OLDER_POLICY, count=int(evidence.stale.sum()), total=int(evidence.stale.size)),
    )


def _unsynchronised(tokens: Tokens, floor: float, evidence: Evidence) -> _Tested:
    if evidence.num_parameters is None:
        return _Tested(None, None, Said(CauseCode.NO_WEIGHTS))
    number, whole = len(evidence.unsynchronised), max(evidence.num_parameters, 1)
    is_stale = len(evidence.outdated) > 1 and len(evidence.outdated) / whole >= MOST
    first = [Said.of(CauseCode.THE_FIRST, name=evidence.unsynchronised[0])] if number else []
    return _Tested(
        _beyond(tokens, floor) if number and not is_stale else 0.0,
        number / whole,
        Said.of(CauseCode.NOT_AS_SENT, count=number, total=evidence.num_parameters, first=first),
    )


def _routing(tokens: Tokens, _floor: float, evidence: Evidence) -> _Tested:
    """Test whether the difference would be small if tokens with other experts differed as the others do."""
    flags = evidence.rerouted
    if flags is None:
        return _Tested(None, None, Said(CauseCode.NO_ROUTING))
    row, position = tokens.sample, tokens.position
    is_known = (row < flags.shape[0]) & (position < flags.shape[1])
    other = np.zeros(row.shape, bool)
    other[is_known] = flags[row[is_known], position[is_known]]
    size = np.abs(tokens.difference)
    sentence = Said.of(CauseCode.OTHER_EXPERTS, count=int(other.sum()), total=int(other.size))
    share = float(other.mean()) if other.size else 0.0
    if not other.any() or int((~other).sum()) < FEWEST_TOKENS:
        return _Tested(0.0 if not other.any() else None, share, sentence)
    residual = np.where(other, np.minimum(size, size[~other].mean()), size)
    return _Tested(_explained(residual, size), share, sentence)


_CASTS = {Precision.BFLOAT16: "bfloat16", Precision.FLOAT16: "float16"}


def _cast(tokens: Tokens, floor: float, evidence: Evidence) -> _Tested:
    """Test whether one side is the other one rounded to a coarser format, or whether a cast of weights is enough."""
    if tokens.training.size < FEWEST_TOKENS:
        return _TOO_FEW
    found = [
        _cast_of(own, other, precision, Said.of(CauseCode.ROUNDED, side=side, dtype=name))
        for precision, name in _CASTS.items()
        for side, own, other in (
            ("rollout", tokens.rollout, tokens.training),
            ("training", tokens.training, tokens.rollout),
        )
    ]
    explained, statistic, sentence = max(found, key=lambda one: one[:2])
    sentences = [] if sentence is None else [sentence]
    if evidence.cast is not None:
        rms = _rms(tokens)
        by_size = (1.0 if rms <= 4 * floor else 4 * floor / rms) if _is_coarse(tokens, evidence) else 0.0
        explained = max(explained, by_size)
        sentences.append(Said.of(CauseCode.CAST_ON_THE_WAY, dtype=evidence.cast.name.lower()))
    sentences = sentences or [Said(CauseCode.NOT_ROUNDED)]
    return _Tested(explained, statistic, Said.of(CauseCode.SEVERAL, sentences=sentences))


def _cast_of(own: Floats, other: Floats, precision: Precision, sentence: Said) -> tuple[float, float, Said | None]:
    """Return the share of the difference that rounding the other side removes, and the share of rounded values."""
    is_rounded: Any = rounded(own, precision) == own
    exact = float(is_rounded.mean())
    if exact < _ONE_SIDED:
        return 0.0, exact, None
    explained = _explained(rounded(other, precision) - own, other - own)
    return explained, exact, sentence if explained else None


def _is_coarse(tokens: Tokens, evidence: Evidence) -> bool:
    """Whether parameters were cast, and the difference is more than rounding in the finer format explains."""
    return evidence.cast is not None and evidence.fine_floor is not None and _rms(tokens) > 4 * evidence.fine_floor


def rounded(values: Floats, precision: Precision) -> Floats:
    """Return values rounded to nearest even in bfloat16 or float16, by way of float32.

    Source: bfloat16 is the upper half of a float32: adding half of its last place, and one if that is odd, rounds.
    """
    single: Any = values.astype(np.float32)
    if precision is Precision.FLOAT16:
        with np.errstate(over="ignore"):
            return single.astype(np.float16).astype(np.float64)
    bits: Any = single.view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


_TESTS: Mapping[Cause, tuple[_Test, str]] = {
    Cause.OFF_BY_ONE: (_off_by_one, "mean |training[t] - rollout[t + shift]| over mean |training[t] - rollout[t]|"),
    Cause.TEMPERATURE: (_temperature, "inverse temperature of training over that of rollout"),
    Cause.VOCABULARY: (_vocabulary, "none: recorded logits are normalised again over fewer words"),
    Cause.RENORMALISED: (_renormalised, "smallest share of probability that was kept, by the log-probs"),
    Cause.MASK: (_mask, "share of the difference at missing values, or after masked turns"),
    Cause.RETOKENISED: (_retokenised, "share of the difference in samples with other tokens"),
    Cause.STALE_WEIGHTS: (_stale, "share of samples, or of parameters, of an older policy"),
    Cause.UNSYNCHRONISED: (_unsynchronised, "share of parameters that the engine has otherwise than they were sent"),
    Cause.ROUTING: (_routing, "share of tokens that are predicted from one with other experts"),
    Cause.PRECISION_CAST: (_cast, "share of the log-probs of one side that the coarser format holds exactly"),
}
"""The test of each cause, called with finite tokens, floor and evidence, and the meaning of its statistic."""
