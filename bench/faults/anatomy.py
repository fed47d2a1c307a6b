"""What the benchmark knows of an architecture: its configuration, its batch, its loss and where its parts are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional as F  # noqa: N812

IGNORED = -100
VOCABULARY, LENGTH, BATCH = 256, 16, 4


@dataclass(frozen=True)
class Anatomy:
    """Paths of the parts in which faults are planted; empty if an architecture has no such part.

    All parts are in ``block``, in the middle of the model; ``peer`` is the next block. The same parts of
    another block have ``other`` in place of ``block`` in their path.
    """

    block: str
    peer: str
    attention: str
    query: str
    out: str
    norm: str
    up: str
    down: str
    activation: str
    embedding: str
    head: str
    value: str = ""
    key: str = ""
    biased: str = ""
    rotary: str = ""
    router: str = ""
    experts: str = ""
    dropout: str = ""
    residual: str = ""
    causal: str = ""
    gelu: str = ""
    silu: str = ""
    positions: str = ""
    padded: str = ""
    tied: str = ""
    heads: bool = True
    """Whether attention calls its kernel through the interface of `transformers`, which faults may replace."""

    def has(self, parts: Any) -> bool:
        return all(getattr(self, part) for part in parts)


@dataclass(frozen=True)
class Architecture:
    """A model class, of `transformers` if it is a name, with its tiny configuration, a batch and a loss for it."""

    split: str
    model: str | Callable[[Any], nn.Module]
    make_config: Callable[[], Any]
    make_batch: Callable[[], dict[str, torch.Tensor]]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    anatomy: Anatomy

    def build(self, options: Mapping[str, Any]) -> nn.Module:
        """Return a model with random weights; ``options`` override its configuration."""
        config = self.make_config()
        for name, value in options.items():
            setattr(config, name, value)
        make = getattr(transformers, self.model) if isinstance(self.model, str) else self.model
        return make(config)


def plain_loss(logits: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
    """Return the cross entropy of ``logits`` [..., classes] and ``labels`` [...]."""
    options = {"ignore_index": IGNORED, **options}
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), **options)


def shifted_loss(logits: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
    """Return the cross entropy of logits [batch, sequence, classes] and the next labels [batch, sequence]."""
    return plain_loss(logits[:, :-1], labels[:, 1:], **options)


def text() -> dict[str, torch.Tensor]:
    tokens = torch.randint(2, VOCABULARY, (BATCH, LENGTH))
    labels = tokens.clone()
    labels[:, -3:] = IGNORED
    return {"input_ids": tokens, "labels": labels}


def masked_text() -> dict[str, torch.Tensor]:
    batch = text()
    batch["labels"] = torch.where(torch.rand(BATCH, LENGTH) < 0.4, batch["input_ids"], IGNORED)
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[0, -4:] = 0
    return {**batch, "attention_mask": mask}


def images() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(BATCH, 3, 16, 16), "labels": torch.randint(0, 10, (BATCH,))}
