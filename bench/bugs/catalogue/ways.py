"""Healthy programs that are written or laid out in two ways: golden is one way, target the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from bench.bugs.bug import Side, Variant
from bench.bugs.catalogue.trainings import llama
from bench.bugs.program import VOCABULARY, Batch, Program, classifier, language_model, tokens
from bench.faults.parallel import Net

_SIZE = 4
_PADDING = 4


def _attention(golden: str, target: str) -> Callable[[Side], Program]:
    def make(side: Side) -> Program:
        return language_model(llama(attn_implementation=golden if side is Side.GOLDEN else target))

    return make


def _optimizer(
    kind: type[torch.optim.Optimizer], golden: dict[str, bool], target: dict[str, bool], **options: Any
) -> Callable[[Side], Program]:
    def make(side: Side) -> Program:
        model = llama()
        own: dict[str, Any] = golden if side is Side.GOLDEN else target
        return language_model(model, optimizer=kind(model.parameters(), lr=1e-2, **options, **own))  # pyright: ignore[reportCallIssue]

    return make


def _clipped(side: Side) -> Program:
    program = language_model(llama())
    is_foreach = side is Side.TARGET
    program.clip = lambda: nn.utils.clip_grad_norm_(program.model.parameters(), 0.1, foreach=is_foreach)
    return program


def _split(number: int) -> Callable[[Side], Program]:
    """Return trainings on one batch, and on the same batch in ``number`` micro-batches of equal numbers of labels."""

    def make(side: Side) -> Program:
        def batches(step: int) -> list[Batch]:
            parts = tokens(step, _SIZE).chunk(number if side is Side.TARGET else 1)
            return [{"input_ids": ids, "labels": ids.clone()} for ids in parts]

        return language_model(llama(), batches=batches)

    return make


def _padded(side: Side) -> Program:
    """Return a training on a batch whose second text is shorter, padded on the right, or on the left."""

    def batches(step: int) -> list[Batch]:
        ids = tokens(step)
        mask, labels = torch.ones_like(ids), ids.clone()
        short = ids[1, _PADDING:].clone()
        unused = slice(None, _PADDING) if side is Side.TARGET else slice(-_PADDING, None)
        used = slice(_PADDING, None) if side is Side.TARGET else slice(None, -_PADDING)
        ids[1, used], labels[1, used] = short, short
        ids[1, unused], labels[1, unused], mask[1, unused] = 0, -100, 0
        labels[1, used.start or 0] = -100  # there is only padding before it, on the left, to predict it from
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        return [{"input_ids": ids, "labels": labels, "attention_mask": mask, "position_ids": positions}]

    return language_model(llama(), batches=batches)


def _recomputed(side: Side) -> Program:
    model = llama()
    if side is Side.TARGET:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return language_model(model)


def _threaded(side: Side) -> Program:
    program = language_model(llama())
    program.num_threads = 1 if side is Side.GOLDEN else 2
    return program


def _halved(_: Side) -> Program:
    return language_model(llama(torch.bfloat16))


def _cast(_: Side) -> Program:
    return language_model(llama(), around=lambda: torch.autocast("cpu", dtype=torch.bfloat16))


def _own_loss(side: Side) -> Program:
    """Return trainings whose model computes the loss, and whose caller does, from the logits."""
    program = language_model(llama())
    if side is Side.TARGET:

        def loss(batch: Batch) -> torch.Tensor:
            logits = program.model(input_ids=batch["input_ids"]).logits[:, :-1].float()
            return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())

        program.loss = loss
    return program


class _Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.mix, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(torch.relu(self.norm(self.stem(x)))).mean((2, 3)))


def _channels_last(side: Side) -> Program:
    torch.manual_seed(0)
    model = _Convolutions()
    if side is Side.TARGET:
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return classifier(model)


def _loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def _own_tokens(step: int) -> list[Batch]:
    return [{"ids": tokens(step, _SIZE, 8, number=dist.get_rank()) % VOCABULARY}]


def _wrapped(**options: Any) -> Callable[[Side], Program]:
    def make(side: Side) -> Program:
        model = DistributedDataParallel(Net(), **(options if side is Side.TARGET else {}))
        return Program(model, lambda batch: _loss(model, batch["ids"]), _own_tokens)

    return make


def _reduced_by_hand(side: Side) -> Program:
    """Return a training whose wrapper averages gradients over ranks, or which does it itself."""
    bare = Net()
    model = DistributedDataParallel(bare) if side is Side.GOLDEN else bare

    def average() -> None:
        for parameter in bare.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    program = Program(model, lambda batch: _loss(model, batch["ids"]), _own_tokens)
    if side is Side.TARGET:
        program.clip = average
    return program


def _sharded_moments(side: Side) -> Program:
    """Return a training whose ranks all keep all moments, or each those of its own share of the parameters."""
    model = DistributedDataParallel(Net())
    if side is Side.GOLDEN:
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    else:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2, foreach=False)
    return Program(model, lambda batch: _loss(model, batch["ids"]), _own_tokens, optimizer)


_LOOP, _FOREACH, _FUSED = {"foreach": False}, {"foreach": True}, {"fused": True}
_ADAMW, _SGD = torch.optim.AdamW, torch.optim.SGD
VARIANTS: Sequence[Variant] = (
    Variant("eager for fused attention", _attention("sdpa", "eager")),
    Variant("fused for eager attention", _attention("eager", "sdpa")),
    Variant("AdamW over lists for a loop", _optimizer(_ADAMW, _LOOP, _FOREACH)),
    Variant("fused AdamW for a loop", _optimizer(_ADAMW, _LOOP, _FUSED)),
    Variant("fused AdamW for lists", _optimizer(_ADAMW, _FOREACH, _FUSED)),
    Variant("SGD over lists for a loop", _optimizer(_SGD, _LOOP, _FOREACH, momentum=0.9)),
    Variant("clipping over lists for a loop", _clipped),
    Variant("two micro-batches for one", _split(2)),
    Variant("four micro-batches for one", _split(4)),
    Variant("padding on the left for the right", _padded),
    Variant("activations computed again", _recomputed),
    Variant("two threads for one", _threaded),
    Variant("a model in bfloat16", _halved),
    Variant("a model under autocast", _cast),
    Variant("the caller's loss for the model's", _own_loss),
    Variant("channels last", _channels_last),
    Variant("two ranks with small buckets", _wrapped(bucket_cap_mb=0.001), world=2),
    Variant("two ranks with views of buckets", _wrapped(gradient_as_bucket_view=True), world=2),
    Variant("two ranks with a static graph", _wrapped(static_graph=True), world=2),
    Variant("two ranks that average by hand", _reduced_by_hand, world=2),
    Variant("two ranks with sharded moments", _sharded_moments, world=2),
)
