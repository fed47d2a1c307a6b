"""Bugs of jobs of several processes, each re-created in today's code: only the lines that are the defect differ."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from bench.bugs.bug import Bug, Catalogue, Kind, Side
from bench.bugs.program import VOCABULARY, Program, tokens
from bench.faults.parallel import Net
from bench.faults.truth import Truth

_WORLD = 2
_LENGTH = 8


def _loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def _own_tokens(step: int) -> list[dict[str, torch.Tensor]]:
    return [{"ids": tokens(step, 4, _LENGTH, number=dist.get_rank())}]


def _bypassed(side: Side) -> Program:
    """Return a training that calls the wrapper, or the module in it, so that nothing arms the reduction."""
    model = DistributedDataParallel(Net())
    called = model if side is Side.GOLDEN else model.module
    return Program(model, lambda batch: _loss(called, batch["ids"]), _own_tokens)


def _overlapping(side: Side) -> Program:
    """Return a training whose sampler has one seed for all ranks, or one for each."""
    data = torch.cat([tokens(0, 4, _LENGTH, number=number) for number in range(8)])
    seed = 7 if side is Side.GOLDEN else 7 * dist.get_rank()
    own = list(DistributedSampler(data, shuffle=True, seed=seed))  # pyright: ignore[reportArgumentType]
    model = DistributedDataParallel(Net())
    return Program(model, lambda batch: _loss(model, batch["ids"]), lambda step: [{"ids": data[own[4 * step :][:4]]}])


class _WithDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.drop = Net(), nn.Dropout(0.2)
        self.head = nn.Linear(VOCABULARY, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.net(ids)))


def _dropping(side: Side) -> Program:
    """Return a training whose ranks draw different masks, or the same."""
    model = DistributedDataParallel(_WithDropout())

    def loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        torch.manual_seed(3 + (dist.get_rank() if side is Side.GOLDEN else 0))
        return _loss(model, batch["ids"])

    return Program(model, loss, _own_tokens)


def _squares(parameters: list[nn.Parameter]) -> torch.Tensor:
    return torch.stack([one.grad.norm() ** 2 for one in parameters if one.grad is not None]).sum()


def _clipping(side: Side) -> Program:
    """Return a training whose ranks own one half of the blocks each, and clip by the norm over all, or by averages."""
    model = Net()
    blocks = list(model.blocks.values())
    owned = [p for i, block in enumerate(blocks) if i % _WORLD == dist.get_rank() for p in block.parameters()]
    inside = {id(p) for block in blocks for p in block.parameters()}
    shared = [p for p in model.parameters() if id(p) not in inside]

    def clip() -> None:
        own = _squares(owned)
        dist.all_reduce(own)
        if side is Side.TARGET:
            own = own / _WORLD
        scale = (0.5 / ((own + _squares(shared)).sqrt() + 1e-6)).clamp(max=1.0)
        for parameter in (*owned, *shared):
            if parameter.grad is not None:
                parameter.grad.mul_(scale)

    def batches(step: int) -> list[dict[str, torch.Tensor]]:
        return [{"ids": tokens(step, 4, _LENGTH)}]

    return Program(model, lambda batch: _loss(model, batch["ids"]), batches, clip=clip)


def add_to(catalogue: Catalogue) -> None:
    """Add the bugs."""
    catalogue.add(
        Bug(
            "forward around the wrapper",
            Kind.DATA_PARALLEL,
            report="jingyaogong/minimind#853",
            fix="jingyaogong/minimind#854",
            symptom="replicas drift apart, and each trains on its own share of the data",
            place="the call of the model (model.module for model)",
            truth=Truth(
                modules=("",),
                calls=(
                    "Distributed.all_reduce",
                    "Module.DistributedDataParallel",
                    "Module.module.DistributedDataParallel",
                ),
                steps=(0,),
            ),
            make=_bypassed,
            world=_WORLD,
            checks=("reduction",),
        )
    )
    catalogue.add(
        Bug(
            "sampler with a seed of each rank",
            Kind.SAMPLER,
            report="NVlabs/LongLive#71",
            fix="NVlabs/LongLive#74",
            symptom="samples overlap between ranks, and others are skipped",
            place="DistributedSampler(seed=...)",
            truth=Truth(modules=("embed", ""), directions=("forward",), steps=(0,)),
            make=_overlapping,
            world=_WORLD,
        )
    )
    catalogue.add(
        Bug(
            "the same dropout on all ranks",
            Kind.DROPOUT,
            report="huggingface/transformers#31412",
            fix="huggingface/transformers#31412",
            symptom="larger jobs train worse, as all ranks drop the same units",
            place="the seed of each rank",
            truth=Truth(modules=("drop",), directions=("forward",), steps=(0,), ranks=(1,)),
            make=_dropping,
            world=_WORLD,
        )
    )
    catalogue.add(
        Bug(
            "norm averaged over ranks with other parameters",
            Kind.CLIPPING,
            report="deepspeedai/DeepSpeed#8475",
            fix="deepspeedai/DeepSpeed#8476",
            symptom="how hard gradients are clipped depends on how experts are distributed",
            place="clip_grad_norm_ (norm over ranks)",
            truth=Truth(
                calls=("Tensor.__truediv__", "Tensor.div", "Tensor.__add__", "Distributed.all_reduce"),
                groups=("clip_grad",),
                directions=("forward",),
                steps=(0,),
            ),
            make=_clipping,
            world=_WORLD,
        )
    )
