"""Building blocks of pairs: batches, losses, and layers that several kinds of models use."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.cross.words import Words

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Pair:
    """A model and its training data.

    Attributes:
        name: Name in the table.
        family: Name of its kind of models.
        build: Builds the model from the words of a framework.
        batch: Returns the arrays of a step for a seed: the model's inputs, and ``labels``.
        loss: Returns the loss from the words, the model's result and the labels.
        optimizer: ``SGD``, ``Momentum`` or ``Adam``.
        is_tuned: Whether it was used when limits were derived.
    """

    name: str
    family: str
    build: Callable[[Words], Any]
    batch: Callable[[int], Arrays]
    loss: Callable[[Words, Any, Any], Any]
    optimizer: str = "SGD"
    is_tuned: bool = False


PAIRS: dict[str, Pair] = {}


@dataclass(frozen=True)
class Family:
    name: str
    is_tuned: bool = False
    optimizer: str = "SGD"
    options: Mapping[str, Any] = field(default_factory=dict)

    def add(self, variant: str, build: Any, batch: Any, loss: Any, optimizer: str | None = None) -> None:
        name = f"{self.name} {variant}".strip()
        PAIRS[name] = Pair(name, self.name, build, batch, loss, optimizer or self.optimizer, self.is_tuned)


def random_of(seed: int) -> np.random.RandomState:
    return np.random.RandomState(1000 + seed)


def images(batch: int, channels: int, size: int, classes: int) -> Callable[[int], Arrays]:
    def make(seed: int) -> Arrays:
        random = random_of(seed)
        images = random.randn(batch, channels, size, size).astype(np.float32) * 0.8 + 0.3
        return {"x": images.astype(np.float32), "labels": random.randint(0, classes, batch).astype(np.int32)}

    return make


def tokens(batch: int, length: int, vocabulary: int, *, per_token: bool = True) -> Callable[[int], Arrays]:
    def make(seed: int) -> Arrays:
        random = random_of(seed)
        shape = (batch, length) if per_token else (batch,)
        tokens = random.randint(0, vocabulary, (batch, length)).astype(np.int32)
        return {"x": tokens, "labels": random.randint(0, vocabulary if per_token else 4, shape).astype(np.int32)}

    return make


def series(batch: int, length: int, size: int, classes: int) -> Callable[[int], Arrays]:
    def make(seed: int) -> Arrays:
        random = random_of(seed)
        series = random.randn(batch, length, size).astype(np.float32)
        return {"x": series, "labels": random.randint(0, classes, batch).astype(np.int32)}

    return make


def per_token(w: Words, logits: Any, labels: Any) -> Any:
    return w.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def per_sample(w: Words, logits: Any, labels: Any) -> Any:
    return w.cross_entropy(logits, labels)


def square(w: Words, output: Any, labels: Any) -> Any:
    return w.mse(output, labels)


def of_result(w: Words, output: Any, labels: Any) -> Any:
    """Return a loss whose gradient differs from element to element."""
    del labels
    first = output[0] if isinstance(output, tuple) else output
    return w.mean(w.unary("sin", first).reshape(-1) * first.reshape(-1), 0)


def attention(w: Words, dim: int, heads: int) -> Any:
    """Return an attention layer from a query to keys, with a mask that is added to the scores."""

    class Attention(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.query = w.linear(dim, dim)
            self.key = w.linear(dim, dim)
            self.value = w.linear(dim, dim)
            self.out = w.linear(dim, dim)
            self.scale = 1 / math.sqrt(dim // heads)

        def heads_of(self, x: Any) -> Any:
            return w.transpose(x.reshape(x.shape[0], x.shape[1], heads, dim // heads), 0, 2, 1, 3)

        def run(self, x: Any, memory: Any, mask: Any = None) -> Any:
            query, key, value = (
                self.heads_of(layer(given))
                for layer, given in ((self.query, x), (self.key, memory), (self.value, memory))
            )
            scores = w.matmul(query, w.transpose(key, 0, 1, 3, 2)) * self.scale
            if mask is not None:
                scores = scores + mask
            mixed = w.matmul(w.softmax(scores), value)
            return self.out(w.transpose(mixed, 0, 2, 1, 3).reshape(x.shape[0], x.shape[1], dim))

    return Attention()


def causal(w: Words, length: int) -> Any:
    return w.tensor(np.triu(np.full((length, length), -1e9, np.float32), 1))


def rms_norm(w: Words, dim: int) -> Any:
    class RmsNorm(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.weight = w.parameter(np.ones(dim), "weight")

        def run(self, x: Any) -> Any:
            return x * w.unary("rsqrt", w.mean(x * x, -1, keep=True) + 1e-6) * self.weight

    return RmsNorm()
