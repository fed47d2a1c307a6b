"""Tiny trainings of real architectures, in which faults are planted, and how they are recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from bench.faults.architectures import ARCHITECTURES
from bench.faults.recording import DTYPES, MIXED, Recordable


@dataclass
class Training(Recordable):
    """A training of some steps, whose parts a fault may replace.

    Attributes:
        name: Name of the architecture.
        dtype: Name of the model's dtype, or of its mixed precision, where the model's dtype is float32.
        recipe: ``plain``, or ``accumulation`` over two micro-batches.
        options: Options of the model's configuration.
        num_micro_batches: Number of micro-batches in a step's batch.
        divisor: Divisor of the loss of a micro-batch.
        clip: Maximum norm of the gradients; ``None`` for no clipping.
        after_backward: Called before the gradients are clipped.
        after_update: Called after the optimizer's step, with its number.
        zeroes: Whether gradients are cleared after a step.
    """

    name: str
    dtype: str = "fp32"
    recipe: str = "plain"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        architecture = ARCHITECTURES[self.name]
        self.stored = DTYPES.get(self.dtype, torch.float32)
        torch.manual_seed(0)
        self.model: nn.Module = architecture.build(self.options).train().to(self.stored)
        self.spread()
        self.anatomy = architecture.anatomy
        self.loss: Callable[..., torch.Tensor] = architecture.loss
        self.make_batch = architecture.make_batch
        self.num_micro_batches = 2 if self.recipe == "accumulation" else 1
        self.divisor = self.num_micro_batches
        self.clip: float | None = 1.0
        self.zeroes = True
        self.change_batch: Callable[[dict[str, torch.Tensor], int], dict[str, torch.Tensor]] = lambda batch, _: batch
        self.after_backward: list[Callable[[], None]] = []
        self.after_update: list[Callable[[int], object]] = []
        matrices = [p for p in self.model.parameters() if p.dim() > 1]
        vectors = [p for p in self.model.parameters() if p.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": 0.5}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(groups, lr=1e-2, foreach=False)
        if MIXED.get(self.dtype) == torch.float16:
            self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def spread(self) -> None:
        """Give each parameter distinct values, as after training: no bias is zero and no scale is one."""
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.model.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_((0.05 * noise).to(parameter.dtype))

    def module(self, path: str) -> Any:
        return self.model.get_submodule(path)

    def part(self, name: str) -> Any:
        """Return the module of the anatomy's part ``name``."""
        return self.module(getattr(self.anatomy, name))

    def paths_of(self, path: str) -> tuple[str, ...]:
        """Return all names of a module, which may be in several places."""
        module = self.module(path)
        return tuple(name for name, one in self.model.named_modules(remove_duplicate=False) if one is module)

    def batches(self, step: int) -> list[dict[str, torch.Tensor]]:
        """Return the micro-batches of a step."""
        state = torch.get_rng_state()
        torch.manual_seed(1000 + step)
        batch = self.change_batch(self.make_batch(), step)
        torch.set_rng_state(state)
        batch = {name: t.to(self.stored) if t.is_floating_point() else t for name, t in batch.items()}
        num = self.num_micro_batches
        return [
            dict(zip(batch, parts, strict=True)) for parts in zip(*(t.chunk(num) for t in batch.values()), strict=True)
        ]

    def step(self, step: int) -> list[torch.Tensor]:
        """Train one step, and return tensors that differ if two trainings differ."""
        torch.manual_seed(step)
        seen: list[torch.Tensor] = []
        for batch in self.batches(step):
            labels = batch.pop("labels")
            more = {"decoder_input_ids": labels.clamp(min=0)} if self.name == "t5" else {}
            with torch.autocast("cpu", MIXED.get(self.dtype), enabled=self.dtype in MIXED):
                logits = self.model(**batch, **more).logits
                loss = self.loss(logits, labels)
            if self.num_micro_batches > 1:
                loss = loss / self.divisor
            (self.scaler.scale(loss) if self.scaler else loss).backward()
            seen += [logits.detach(), loss.detach()]
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        for call in self.after_backward:
            call()
        seen += [p.grad.clone() for p in self.model.parameters() if p.grad is not None]
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        for call in self.after_update:
            call(step)
        if self.zeroes:
            self.optimizer.zero_grad()
        return seen
