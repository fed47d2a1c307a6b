"""Jobs of two processes over gloo that are recorded, healthy and with a fault on one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from msprobe.pytorch import PrecisionDebugger, seed_all
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULTS = ("factor", "reduction", "missing")
"""What can be planted; each on rank 1 alone but for ``reduction``."""


class Half(nn.Module):
    """One half of a layer that is split over two ranks, whose sum is the layer's result."""

    def __init__(self, rank: int, fault: str | None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(rank)
        self.weight = nn.Parameter(torch.randn(6, 6, generator=generator) / 3)
        self.is_faulty = rank == 1
        self.fault = fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = torch.matmul(x, self.weight)
        if self.fault == "factor" and self.is_faulty:
            part = part + 0.3 * part.detach()
        total = part.clone()
        if not (self.fault == "missing" and self.is_faulty):
            dist.all_reduce(total, op=dist.ReduceOp.MAX if self.fault == "reduction" else dist.ReduceOp.SUM)
        else:
            dist.all_reduce(torch.zeros_like(total))
        return torch.tanh(total)


def record(rank: int, world: int, directory: Path) -> Any:
    """Record one healthy step, and one for each fault, into directories of their names."""
    del world
    for fault in (None, *FAULTS):
        seed_all(seed=1234, mode=True)
        model = nn.Sequential(Half(rank, None), Half(rank, fault), Half(rank, None))
        debugger = PrecisionDebugger(dump_path=str(directory / (fault or "golden")), level="mix")
        x = torch.linspace(-1, 1, 24).reshape(4, 6)
        debugger.start(model)
        model(x)
        debugger.stop()
        debugger.step()
        debugger.close()
    return True


def record_data_parallel(rank: int, world: int, directory: Path) -> Any:
    """Record two steps of data-parallel training three times; the last time with other data on rank 1 in step 1."""
    del world
    for name in ("golden", "again", "fault"):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        debugger = PrecisionDebugger(dump_path=str(directory / name), level="mix")
        for step in range(2):
            torch.manual_seed(10 * step + rank)
            x = torch.randn(8, 4)
            if name == "fault" and rank == 1 and step == 1:
                x = x * 1.5
            debugger.start(model)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            debugger.stop()
            debugger.step()
        debugger.close()
    return True
