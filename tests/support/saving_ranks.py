"""Ranks of a job that save one state with ``torch.distributed.checkpoint``."""

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

SHAPES = {"embed.weight": (101, 32), "layers.0.q.weight": (33, 32), "layers.0.up.weight": (50, 31), "norm.weight": (7,)}


def state():
    """Return the whole tensors, whose sizes no number of ranks divides."""
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def save(_rank, size, directory):
    """Save the shards of a rank: rows over one axis of a mesh, and columns of some over the other."""
    shape = {1: (1, 1), 2: (1, 2), 4: (2, 2)}[size]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("columns", "rows"))
    made = {}
    for number, (name, tensor) in enumerate(state().items()):
        placements = [Shard(1) if tensor.ndim > 1 and number % 2 else Replicate(), Shard(0)]
        made[name] = distribute_tensor(tensor, mesh, placements)
    dcp.save({"model": made, "step": 7}, checkpoint_id=directory / "dcp")
