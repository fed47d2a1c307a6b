"""Log-probs of the same tokens from two engines, and measures of their difference.

Throughout, ``training`` is the trainer's log-prob of a token, ``rollout`` that of the engine that generated it, both in
nats, and ``difference = training - rollout``: the logarithm of the token's importance weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from msprobe_core.errors import CompareError

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Array: TypeAlias = NDArray[Any]

_LENGTHS = (0, 32, 128, 512, 2048, 8192, 32768)
"""Bounds of the buckets for lengths and positions, in tokens."""


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The tokens that count, sample by sample; vectors of equal length.

    Attributes:
        training: Log-probs of the trainer, in nats.
        rollout: Log-probs of the engine that generated them.
        sample: Row in the batch.
        position: Position in the response, from 0; positions that do not count are skipped.
        turn: Index of the run of counted positions, from 0: there are several if a tool or a user spoke in between.
        token: Ids of the tokens; ``None`` if unknown.
        entropy: Entropy of the trainer's distribution at the token, in nats; ``None`` if unknown.
    """

    training: Floats
    rollout: Floats
    sample: Integers
    position: Integers
    turn: Integers
    token: Integers | None = None
    entropy: Floats | None = None

    @property
    def difference(self) -> Floats:
        """``training - rollout``, in nats."""
        return self.training - self.rollout

    @property
    def num_samples(self) -> int:
        """Number of samples with at least one token."""
        return int(np.unique(self.sample).size)

    def where(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> Tokens:
        """Return some of the tokens, selected by flags or by indices."""
        return Tokens(
            training=self.training[chosen],
            rollout=self.rollout[chosen],
            sample=self.sample[chosen],
            position=self.position[chosen],
            turn=self.turn[chosen],
            token=None if self.token is None else self.token[chosen],
            entropy=None if self.entropy is None else self.entropy[chosen],
        )

    def finite(self) -> Tokens:
        """Return the tokens whose log-probs are both finite."""
        return self.where(np.isfinite(self.training) & np.isfinite(self.rollout))


def tokens_of(
    training: Array,
    rollout: Array,
    mask: Array,
    *,
    responses: Array | None = None,
    entropy: Array | None = None,
) -> Tokens:
    """Return the tokens that count.

    Args:
        training: ``[rows, positions]``, in nats.
        rollout: ``[rows, positions]``, in nats.
        mask: Nonzero where a token counts, of the same shape.
        responses: Ids of the tokens, of the same shape.
        entropy: Entropies in nats, of the same shape.

    Raises:
        CompareError: shapes differ, or no token counts.
    """
    given = {
        "training": training,
        "rollout": rollout,
        "response_mask": mask,
        "responses": responses,
        "entropy": entropy,
    }
    for name, array in given.items():
        if array is not None and (array.ndim != 2 or array.shape != training.shape):
            raise CompareError(
                f"the log-probs are {list(training.shape)} and '{name}' is {list(array.shape)}; both must be "
                "[rows, positions of the response]"
            )
    counts = np.asarray(mask) != 0
    if not counts.any():
        raise CompareError("no token of the batch counts: response_mask is 0 everywhere")
    begins = counts & ~np.pad(counts, ((0, 0), (1, 0)))[:, :-1]
    sample, position = np.nonzero(counts)
    return Tokens(
        training=np.asarray(training, np.float64)[counts],
        rollout=np.asarray(rollout, np.float64)[counts],
        sample=sample.astype(np.int64),
        position=position.astype(np.int64),
        turn=(np.cumsum(begins, axis=1) - 1)[counts].astype(np.int64),
        token=None if responses is None else np.asarray(responses, np.int64)[counts],
        entropy=None if entropy is None else np.asarray(entropy, np.float64)[counts],
    )


@dataclass(frozen=True, kw_only=True)
class LogProbMeasures:
    """Measures of the difference. Sums are in float64; tokens with a non-finite log-prob are counted and left out.

    Attributes:
        num_tokens: Number of compared tokens.
        num_samples: Number of their samples.
        num_not_finite: Number of tokens with NaN or Inf on either side.
        mean: Mean difference, training less rollout, in nats.
        mean_abs: Mean of its magnitude.
        rms: Its root mean square.
        p50: Median of the magnitude.
        p99: Its 99th percentile.
        max: Its largest.
        probability_max: Largest difference of probabilities.
        pearson: Correlation of the probabilities; NaN if they do not vary.
        kl: Estimate of KL(rollout || training): mean of ``-difference``. Schulman, *Approximating KL Divergence*,
            2020, k1; equal to ``kl`` of ``compute_offpolicy_metrics`` in verl 0.9.
        k3: The same with less variance, and never negative: mean of ``exp(d) - 1 - d``; k3 of the same source.
        ppl_ratio: Perplexity of training over that of rollout, each ``exp(-mean log-prob)`` of a sample; mean over the
            samples. Equal to ``ppl_ratio`` of the same function.
        chi2: Estimate of the chi-squared divergence, mean of ``exp(2 d)`` less 1: variance of the importance weights.
        mean_ratio: Mean importance weight. It is 1, within ``ratio_error``, if both are log-probs of the tokens
            under two models; otherwise one side is no log-prob of the sampled token: shifted, masked or renormalised.
        ratio_error: Standard error of ``mean_ratio``.
        share_over_ln2: Share of tokens whose probability is off by a factor of more than 2.
        ratio_p99: 99th percentile of the importance weights.
        ratio_max: The largest of them.
        effective_share: Effective sample size of the weights over their number: (sum w)^2 / (n sum w^2). Kong, *A Note
            on Importance Sampling using Standardized Weights*, University of Chicago TR 348, 1992.
        clipped_low: Share of tokens whose weight is below 1 less the clip ratio.
        clipped_high: Share of those whose weight is above 1 plus the clip ratio.
    """

    num_tokens: int
    num_samples: int
    num_not_finite: int
    mean: float
    mean_abs: float
    rms: float
    p50: float
    p99: float
    max: float
    probability_max: float
    pearson: float
    kl: float
    k3: float
    ppl_ratio: float
    chi2: float
    mean_ratio: float
    ratio_error: float
    share_over_ln2: float
    ratio_p99: float
    ratio_max: float
    effective_share: float
    clipped_low: float
    clipped_high: float


CLIP_RATIO = 0.2
"""By how much weights may differ from 1 before PPO clips them, where the run does not say it."""


def measure(tokens: Tokens, clip: tuple[float, float] = (CLIP_RATIO, CLIP_RATIO)) -> LogProbMeasures:
    """Measure the difference of log-probs.

    Args:
        tokens: The tokens.
        clip: By how much weights may be below and above 1.

    Raises:
        CompareError: no token has two finite log-probs.
    """
    finite = tokens.finite()
    n = finite.training.size
    if not n:
        raise CompareError("no token has two finite log-probs; all are NaN or Inf on one side")
    d = finite.difference
    size: Any = np.abs(d)
    probabilities = np.exp(finite.training), np.exp(finite.rollout)
    with np.errstate(over="ignore"):
        ratio = np.exp(d)
        k3 = float(np.mean(np.expm1(d) - d))
        chi2 = float(np.exp(2 * d).mean() - 1)
        ppl_ratio = float(np.mean(np.exp(-_sample_means(finite, d))))
        weights = np.exp(d - d.max())  # their size does not matter
    return LogProbMeasures(
        num_tokens=n,
        num_samples=finite.num_samples,
        num_not_finite=tokens.training.size - n,
        mean=float(d.mean()),
        mean_abs=float(size.mean()),
        rms=float(np.sqrt(np.mean(d * d))),
        p50=float(np.quantile(size, 0.5)),
        p99=float(np.quantile(size, 0.99)),
        max=float(size.max()),
        probability_max=float(np.abs(probabilities[0] - probabilities[1]).max()),
        pearson=pearson(*probabilities),
        kl=float(-d.mean()),
        k3=k3,
        ppl_ratio=ppl_ratio,
        chi2=chi2,
        mean_ratio=float(ratio.mean()),
        ratio_error=float(ratio.std() / math.sqrt(n)),
        share_over_ln2=float((size > math.log(2)).mean()),
        ratio_p99=float(np.quantile(ratio, 0.99)),
        ratio_max=float(ratio.max()),
        effective_share=float(weights.sum() ** 2 / (n * np.sum(weights * weights))),
        clipped_low=float((ratio < 1 - clip[0]).mean()),
        clipped_high=float((ratio > 1 + clip[1]).mean()),
    )


def pearson(first: Floats, second: Floats) -> float:
    """Return Pearson's correlation coefficient; NaN if one side does not vary."""
    a, b = first - first.mean(), second - second.mean()
    norm = math.sqrt(float(a @ a) * float(b @ b))
    return float(np.minimum(np.maximum(float(a @ b) / norm, -1.0), 1.0)) if norm else math.nan


def _sample_means(tokens: Tokens, values: Floats) -> Floats:
    _, index = np.unique(tokens.sample, return_inverse=True)
    return np.bincount(index, values) / np.bincount(index)


def frame_of(tokens: Tokens, ids: Mapping[int, str] | None = None) -> pl.DataFrame:
    """Return one row per token, with its sample's id if it is known."""
    names = ids or {}
    return pl.DataFrame(
        {
            "sample": tokens.sample,
            "id": pl.Series([names.get(int(sample)) for sample in tokens.sample], dtype=pl.String),
            "position": tokens.position,
            "turn": tokens.turn,
            "token": pl.Series([None] * tokens.sample.size if tokens.token is None else tokens.token, dtype=pl.Int64),
            "training": tokens.training,
            "rollout": tokens.rollout,
            "difference": tokens.difference,
        }
    )


def by_group(tokens: Tokens, versions: Sequence[int | None] | None = None) -> pl.DataFrame:
    """Return the sizes of the difference by groups of tokens.

    Groups are turns, buckets of positions and of lengths, samples, the place in a turn, the probability that the engine
    gave the token, and the version of the policy that drew it.

    Args:
        tokens: The tokens.
        versions: Of each row of the batch; ``None`` if unknown.

    Returns: the columns ``by``, ``group``, ``tokens``, ``mean``, ``mean_abs``, ``p99``, ``max``.
    """
    finite = tokens.finite()
    lengths = np.bincount(finite.sample)[finite.sample] if finite.sample.size else finite.sample
    frame = pl.DataFrame(
        {
            "difference": finite.difference,
            "turn": finite.turn,
            "position": np.searchsorted(_LENGTHS, finite.position, "right") - 1,
            "length": np.searchsorted(_LENGTHS, lengths, "right") - 1,
            "sample": finite.sample,
            "place": _places_in_turns(finite),
            "probability": np.searchsorted(_PROBABILITIES, np.exp(finite.rollout), "right") - 1,
        }
    )
    labels: dict[str, Callable[[int], str]] = {
        "turn": str, "position": _bucket, "length": _bucket, "sample": str,
        "place": ("first of a turn", "within a turn", "last of a turn").__getitem__, "probability": _likely,
    }  # fmt: skip
    if versions is not None:
        known = np.array([-1 if version is None else version for version in versions], np.int64)
        frame = frame.with_columns(version=pl.Series(known[finite.sample]))
        labels["version"] = lambda version: "unknown" if version < 0 else str(version)
    return pl.concat(_grouped(frame, by, label) for by, label in labels.items())


_PROBABILITIES = (0, 0.01, 0.1, 0.5, 0.9)


def _likely(number: int) -> str:
    high = _PROBABILITIES[number + 1] if number + 1 < len(_PROBABILITIES) else 1
    return f"{_PROBABILITIES[number]:g}-{high:g}"


def _places_in_turns(tokens: Tokens) -> Integers:
    """Return whether each token is the first of its turn (0), one within (1) or the last (2)."""
    changes = (np.diff(tokens.sample) != 0) | (np.diff(tokens.turn) != 0)
    found = np.ones(tokens.sample.size, np.int64)
    found[np.append(changes, True)[: found.size]] = 2
    found[np.insert(changes, 0, True)[: found.size]] = 0
    return found


def _grouped(frame: pl.DataFrame, by: str, label: Callable[[int], str]) -> pl.DataFrame:
    size = pl.col("difference").abs()
    grouped = (
        frame.group_by(by)
        .agg(
            tokens=pl.len().cast(pl.Int64),
            mean=pl.col("difference").mean(),
            mean_abs=size.mean(),
            p99=size.quantile(0.99, "linear"),
            max=size.max(),
        )
        .sort(by)
    )
    labels = [label(int(number)) for number in grouped[by].to_list()]
    return grouped.select(
        pl.lit(by).alias("by"), pl.Series("group", labels, dtype=pl.String), "tokens", "mean", "mean_abs", "p99", "max"
    )


def _bucket(number: int) -> str:
    low = _LENGTHS[number]
    return f"{low}-{_LENGTHS[number + 1] - 1}" if number + 1 < len(_LENGTHS) else f"{low}-"
