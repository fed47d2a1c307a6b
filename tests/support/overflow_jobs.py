"""Programs that make NaN and Inf somewhere, in one process or in several over gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def record(directory: Path, model: Any, work: Any, level: str = "mix", steps: int = 1, before: Any = None) -> Path:
    """Record ``work(step)``, each after ``before(step)``, and return the directory of the run."""
    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(dump_path=directory, level=level, task="statistics")
    for step in range(steps):
        if before is not None:
            before(step)
        debugger.start(model)
        work(step)
        debugger.stop()
        debugger.step()
    debugger.close()
    return directory


class Attention(nn.Module):
    """Causal attention with a mask of -Inf, which is a buffer."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.fault = ""
        self.register_buffer("mask", torch.triu(torch.full((4, 4), float("-inf")), 1))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / 8**0.5 + self.mask
        scores = scores.masked_fill(torch.zeros(4, 4, dtype=torch.bool), float("-inf"))
        if self.fault == "whole row":
            scores = scores.masked_fill(torch.ones(4, 1, dtype=torch.bool), float("-inf"))
        weights = torch.softmax(scores, -1)
        if self.fault == "sqrt":
            weights = torch.sqrt(weights - 0.5)
        out = self.out(weights @ v)
        if self.fault == "in place":
            out.sub_(100.0).log_()
        return {"out": out, "nested": (weights, [torch.nn.functional.scaled_dot_product_attention(q, k, v, self.mask)])}


class Net(nn.Module):
    """Attention and a loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.attention = nn.Linear(8, 8), Attention()
        self.fault = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.attention(self.first(x))["out"]
        if self.fault == "gradient":
            h = h + torch.sqrt(h * 0)
        if self.fault == "empty":
            h = h + torch.empty(4, 8).fill_(1.0) * 0
        return (h**2).mean()


def train(net: Net, x: torch.Tensor) -> None:
    """Run forward and backward."""
    net(x).backward()


def run_all(rank: int, world: int, directory: Path) -> None:
    """Run all of the following, each in a directory of its name: starting processes takes most of the time."""
    for work in (run_logs, run_chain, run_two_groups, run_asynchronous):
        work(rank, world, directory / work.__name__)


def run_logs(rank: int, world: int, directory: Path) -> None:
    """Average twice; between, rank 1 takes the logarithm of something negative."""
    x = torch.ones(4) + rank

    def work(step: int) -> None:
        y = x.clone()
        dist.all_reduce(y)
        for _ in range(2 * rank):
            y = y * 1.0
        y = torch.log(y - 100 * (rank == 1))
        dist.all_reduce(y)
        torch.exp(y)

    record(directory / "run", nn.Identity(), work, "L1")


def run_chain(rank: int, world: int, directory: Path) -> None:
    """Hand on from rank to rank what rank 0 has let overflow; the last tells the first, which goes on meanwhile."""

    def work(step: int) -> None:
        y = torch.full((4,), 500.0)
        if rank:
            dist.recv(y, rank - 1)
        else:
            y = torch.exp(y)
        y = y + 1
        if rank < world - 1:
            dist.isend(y, rank + 1).wait()
        z = torch.ones(2)
        operations = [dist.P2POp(dist.irecv, z, world - 1)] if rank == 0 else []
        if rank == world - 1:
            operations = [dist.P2POp(dist.isend, y[:2] - y[:2], 0)]
        for request in dist.batch_isend_irecv(operations) if operations else []:
            request.wait()
        z.mean()

    record(directory / "run", nn.Identity(), work, "L1")


def run_two_groups(rank: int, world: int, directory: Path) -> None:
    """Two pairs of ranks work by themselves; in each one goes wrong, in the second sooner."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]

    def work(step: int) -> None:
        y = torch.ones(4)
        for layer in range(4):
            is_culprit = (rank, layer) in {(0, 3), (2, 1)}
            y = torch.mul(y, 3e38 if is_culprit else 1.0)
            y = torch.mul(y, 3e38 if is_culprit else 1.0)
            dist.all_reduce(y, group=groups[rank // 2])
            y = y / 2

    record(directory / "run", nn.Identity(), work, "L1")


def run_asynchronous(rank: int, world: int, directory: Path) -> None:
    """Rank 1 sends NaN from a collective that is waited for late, and broadcasts it."""

    def work(step: int) -> None:
        y = torch.ones(3) if rank != 1 else torch.log(torch.full((3,), -1.0))
        handle = dist.all_reduce(y, async_op=True)
        torch.ones(2) * 2
        handle.wait()
        torch.exp(y)
        z = torch.zeros(2)
        dist.broadcast(z, src=2)

    record(directory / "run", nn.Identity(), work, "L1")
