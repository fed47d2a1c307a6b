"""Data-parallel trainings under the gradient probe and without, in a job of several ranks."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def train_probed(_rank: int, _world: int, directory: Path) -> None:
    """Train bare, under the probe, and with a fault, each with what a script may give to the probe."""
    for kind in ("bare", "golden", "flipped"):  # bare before there is a probe
        for given in ("model", "both"):
            (directory / given).mkdir(exist_ok=True)
            _train(directory / given, kind, given)


def _train(out: Path, kind: str, given: str) -> None:
    from msprobe.pytorch import PrecisionDebugger

    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    debugger = None
    if kind != "bare":
        path = out / f"{kind}{dist.get_rank()}.json"
        path.write_text(json.dumps({"task": "grad_probe", "rank": [], "step": [], "dump_path": str(out / kind)}))
        debugger = PrecisionDebugger(path)
        debugger.monitor(*{"model": (model,), "both": (model, optimizer)}[given])
    if kind == "flipped" and dist.get_rank() == 1:  # before the gradients are reduced
        model.module[0].weight.register_hook(lambda gradient: -3 * gradient)
    data = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(3):
        loss = model(torch.randn(4, 8, generator=data)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    if debugger:
        debugger.close()
    (out / f"{kind}{dist.get_rank()}.txt").write_text(" ".join(losses))
