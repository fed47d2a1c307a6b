"""Log-probs of a made-up policy, of training and rollout, and faults that can be planted in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from msprobe_core.rl.log_probs import Tokens, tokens_of


@dataclass
class Policy:
    """Logits ``[rows, positions, words]``; distributions are peaked here and flat there, as those of text."""

    logits: np.ndarray
    drawn: np.ndarray
    mask: np.ndarray

    def log_probs(self, scale: float = 1.0, logits: np.ndarray | None = None) -> np.ndarray:
        """Return the log-probs of what was drawn."""
        return np.take_along_axis(log_softmax((self.logits if logits is None else logits) * scale), self.drawn, -1)[
            ..., 0
        ]

    def entropy(self) -> np.ndarray:
        own = log_softmax(self.logits)
        return -(np.exp(own) * own).sum(-1)

    def tokens(self, training: np.ndarray, rollout: np.ndarray, *, entropy: bool = False) -> Tokens:
        return tokens_of(
            training, rollout, self.mask, responses=self.drawn[..., 0], entropy=self.entropy() if entropy else None
        )


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def make_policy(
    seed: int, rows: int = 8, positions: int = 48, words: int = 200, turns: int = 1, *, flatness: float | None = None
) -> Policy:
    """Return a policy and what it has drawn; responses are of different lengths."""
    random = np.random.default_rng(seed)
    sharpness = np.full((rows, positions, 1), flatness) if flatness else random.gamma(2.0, 1.6, (rows, positions, 1))
    logits = random.standard_normal((rows, positions, words)) * sharpness
    gumbel = random.gumbel(size=logits.shape)
    drawn = (logits + gumbel).argmax(-1)[..., None]
    mask = np.arange(positions)[None, :] < random.integers(positions // 2, positions + 1, (rows, 1))
    if turns > 1:
        part = positions // (2 * turns)
        mask &= (np.arange(positions) // part % 2 == 0)[None, :]
    return Policy(logits, drawn, mask.astype(np.int64))


def kept(logits: np.ndarray, top_p: float | None = None, top_k: int | None = None) -> np.ndarray:
    """Return which words top-p and top-k keep."""
    order = np.argsort(-logits, axis=-1)
    probabilities = np.take_along_axis(np.exp(log_softmax(logits)), order, -1)
    keeps = np.ones(logits.shape, bool)
    if top_p is not None:
        keeps &= np.cumsum(probabilities, -1) - probabilities < top_p
    if top_k is not None:
        keeps[..., top_k:] = False
    found = np.zeros(logits.shape, bool)
    np.put_along_axis(found, order, keeps, -1)
    return found
