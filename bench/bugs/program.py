"""The small training in which a bug shows."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from bench.faults.recording import STEPS, Recordable

Batch = dict[str, torch.Tensor]
VOCABULARY = 64


@dataclass
class Program(Recordable):
    """A training of some steps.

    Attributes:
        model: The model.
        loss: Loss of one micro-batch.
        batches: Micro-batches of a step.
        optimizer: Updates the model; ``AdamW`` if not given.
        around: Context of each forward, such as autocast.
        clip: Called between backward and update.
        body: Trains a step in place of forward, backward and update, for libraries that have loops of their own.
        num_steps: Number of steps.
    """

    model: nn.Module
    loss: Callable[[Batch], torch.Tensor]
    batches: Callable[[int], Sequence[Batch]]
    optimizer: torch.optim.Optimizer = None  # pyright: ignore[reportAssignmentType]
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    clip: Callable[[], object] = lambda: None
    body: Callable[[int], list[torch.Tensor]] | None = None
    num_steps: int = STEPS

    def __post_init__(self) -> None:
        if self.optimizer is None:
            trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
            self.optimizer = torch.optim.AdamW(trained, lr=1e-2, foreach=False)

    def step(self, step: int) -> list[torch.Tensor]:
        """Train one step, and return losses and gradients."""
        torch.manual_seed(step)
        if self.body is not None:
            return self.body(step)
        seen: list[torch.Tensor] = []
        batches = self.batches(step)
        for batch in batches:
            with self.around():
                loss = self.loss(batch) / len(batches)
            loss.backward()
            seen.append(loss.detach())
        seen += [p.grad.clone() for p in self.model.parameters() if p.grad is not None]
        self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return seen


def settled(model: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Give each parameter values that only depend on its name and shape, as two releases may initialize differently.

    Vectors get values around those that they have; matrices get the scale that trained ones have.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(0.1 * noise)
    return model.train().to(dtype)


def tokens(step: int, size: int = 2, length: int = 16, *, number: int = 0) -> torch.Tensor:
    """Return token numbers [size, length] of a step."""
    generator = torch.Generator().manual_seed(1000 + step + 100 * number)
    return torch.randint(2, VOCABULARY, (size, length), generator=generator)


def text(step: int) -> list[Batch]:
    """Return one micro-batch of tokens with their labels."""
    ids = tokens(step)
    return [{"input_ids": ids, "labels": ids.clone()}]


def scheduled(program: Program, factor: Callable[[int], float]) -> Program:
    """Return a training whose learning rate is multiplied by a factor of the step, also when a step is repeated."""
    groups, batches = program.optimizer.param_groups, program.batches
    rates = [group["lr"] for group in groups]

    def at_step(step: int) -> Sequence[Batch]:
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * factor(step)
        return batches(step)

    program.batches = at_step
    return program


def images(step: int, *, height: int = 16, width: int = 16) -> list[Batch]:
    """Return one micro-batch of images [4, 3, height, width] with their classes."""
    generator = torch.Generator().manual_seed(1000 + step)
    return [
        {
            "images": torch.randn(4, 3, height, width, generator=generator),
            "labels": torch.randint(0, 10, (4,), generator=generator),
        }
    ]


def language_model(model: nn.Module, **options: object) -> Program:
    """Return the training of a model that computes its loss itself."""
    return Program(model, lambda batch: model(**batch).loss, **{"batches": text, **options})  # pyright: ignore[reportArgumentType]


def classifier(model: nn.Module, **options: object) -> Program:
    """Return the training of a model that classifies images."""

    def loss(batch: Batch) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch["images"]).float(), batch["labels"])

    return Program(model, loss, **{"batches": images, **options})  # pyright: ignore[reportArgumentType]
