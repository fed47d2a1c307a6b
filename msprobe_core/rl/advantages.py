"""Advantages and losses recomputed from what a batch records, as verl 0.9 defines them in ``core_algos``.

Each function also has variants with a known mistake, so that a batch that was computed by one of them can be told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

EPSILON = 1e-6
"""verl's addition to standard deviations; other trainers have others, such as 1e-4 in TRL."""
_WHITEN_EPSILON = 1e-8

Variants: TypeAlias = Mapping[str, Array]
"""Advantages ``[rows, positions]`` by what was done; the first is right."""


def grpo(rewards: Array, mask: Array, groups: Sequence[str], *, divides: bool, epsilon: float = EPSILON) -> Variants:
    """Return advantages of rewards relative to those of the same prompt.

    Source: ``compute_grpo_outcome_advantage`` of verl 0.9.1; Shao and others, *DeepSeekMath*, 2024, section 4.1.

    Args:
        rewards: ``[rows, positions]``.
        mask: Which positions count.
        groups: For each row, what it shares with other rows of its prompt.
        divides: Whether to divide by the standard deviation.
        epsilon: Added to it.
    """
    scores = rewards.astype(np.float64).sum(axis=1)
    _, index = np.unique(np.asarray(groups), return_inverse=True)
    right = _relative(scores, index, divides=divides, epsilon=epsilon)
    found = {
        "right": right,
        "divided by the standard deviation" if not divides else "not divided by the standard deviation": _relative(
            scores, index, divides=not divides, epsilon=epsilon
        ),
        "divided by the standard deviation of n instead of n - 1": _relative(
            scores, index, divides=True, epsilon=epsilon, ddof=0
        ),
        "relative to the whole batch instead of the samples of one prompt": _relative(
            scores, np.zeros_like(index), divides=divides, epsilon=epsilon
        ),
        "not relative to the mean": scores,
        "with the other sign": -right,
    }
    counts = np.asarray(mask) != 0
    return {name: values[:, None] * counts for name, values in found.items()}


def _relative(scores: Array, index: Array, *, divides: bool, epsilon: float, ddof: int = 1) -> Array:
    found = np.zeros_like(scores)
    for group in np.unique(index):
        own = scores[index == group]
        mean, deviation = (own.mean(), own.std(ddof=min(ddof, own.size - 1))) if own.size > 1 else (0.0, 1.0)
        found[index == group] = (own - mean) / (deviation + epsilon) if divides else own - mean
    return found


def gae(rewards: Array, values: Array, mask: Array, gamma: float, lam: float) -> tuple[Variants, Array]:
    """Return generalised advantage estimates, and returns.

    Source: ``compute_gae_advantage_return`` of verl 0.9.1; Schulman and others, *High-Dimensional Continuous Control
    Using Generalized Advantage Estimation*, 2015.
    """
    counts = (np.asarray(mask) != 0).astype(np.float64)
    rewards, values = rewards.astype(np.float64), values.astype(np.float64)
    raw = np.zeros_like(values)
    after, last = np.zeros(len(values)), np.zeros(len(values))
    for t in reversed(range(values.shape[1])):
        own = rewards[:, t] + gamma * after - values[:, t] + gamma * lam * last
        after = np.where(counts[:, t] > 0, values[:, t], after)
        last = np.where(counts[:, t] > 0, own, last)
        raw[:, t] = last
    white = _whitened(raw, counts)
    variants = {
        "right": white,
        "not whitened": raw,
        "whitened over padding too": _whitened(raw, np.ones_like(counts)),
        "centred but not divided by the standard deviation": raw - _mean(raw, counts),
        "with the other sign": -white,
    }
    return variants, raw + values


def _mean(values: Array, counts: Array) -> float:
    return float((values * counts).sum() / max(counts.sum(), 1))


def _whitened(values: Array, counts: Array) -> Array:
    mean, total = _mean(values, counts), max(float(counts.sum()), 2.0)
    variance = _mean((values - mean) ** 2, counts) * total / (total - 1)
    return (values - mean) / np.sqrt(variance + _WHITEN_EPSILON)


KL: Mapping[str, Callable[[Array], Array]] = {
    "kl": lambda d: d, "k1": lambda d: d, "abs": np.abs, "mse": lambda d: 0.5 * d * d, "k2": lambda d: 0.5 * d * d,
    "low_var_kl": lambda d: np.minimum(np.maximum(np.expm1(-d) + d, -10), 10),
    "k3": lambda d: np.minimum(np.maximum(np.expm1(-d) + d, -10), 10),
}  # fmt: skip
"""Estimates of KL(policy || reference) of a token from ``d = log p - log p_ref``; ``kl_penalty`` of verl 0.9.1."""


def weights_of_tokens(mask: Array, mode: str) -> Array | None:
    """Return the weight of each token in the loss of a mini-batch, ``[rows, positions]``; ``None`` of unknown modes.

    Source: ``agg_loss`` of verl 0.9.1.
    """
    counts = (np.asarray(mask) != 0).astype(np.float64)
    lengths = counts.sum(axis=1, keepdims=True)
    num_rows = max(int((lengths > 0).sum()), 1)
    if mode == "token-mean":
        return counts / max(float(counts.sum()), 1.0)
    if mode == "seq-mean-token-sum":
        return counts / num_rows
    if mode == "seq-mean-token-mean":
        return counts / (lengths + 1e-8) / num_rows
    return None
