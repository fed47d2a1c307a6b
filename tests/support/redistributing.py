"""A job of two processes whose distributed tensors have to be redistributed, bare and with operators recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from jobs import make_mesh
from msprobe.pytorch import PrecisionDebugger


def work(rank: int, world: int, directory: Path) -> dict[str, Any]:
    """Compute the same twice, the second time recorded; return both results as bytes in hexadecimal digits."""
    bare = _compute(world)
    config = directory / f"config{rank}.json"
    config.write_text(json.dumps({"level": "L1", "aten": True, "dump_path": str(directory / "run")}))
    debugger = PrecisionDebugger(str(config))
    debugger.start()
    recorded = _compute(world)
    debugger.stop()
    debugger.step()
    debugger.close()
    return {"bare": bare, "recorded": recorded}


def _compute(world: int) -> list[str]:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = make_mesh(world)
    x = torch.arange(12.0).reshape(4, 3)
    weight = distribute_tensor(torch.ones(3, 2), mesh, [Replicate()])
    sharded = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_()
    made = (sharded @ weight).redistribute(mesh, [Replicate()])  # asked for
    (made * sharded.sum().relu()).to_local().square().sum().backward()  # a partial sum is added up unasked
    assert sharded.grad is not None
    return [tensor.to_local().detach().numpy().tobytes().hex() for tensor in (made, sharded.grad)]
