"""A job whose ranks save one state with ``torch.distributed.checkpoint``: ``saving_ranks.py DIRECTORY RANKS``."""

import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

SHAPES = {"embed.weight": (101, 32), "layers.0.q.weight": (33, 32), "layers.0.up.weight": (50, 31), "norm.weight": (7,)}


def state():
    """Return the whole tensors, whose sizes no number of ranks divides."""
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def save(rank, size, directory):
    """Save the shards of a rank: rows over one axis of a mesh, and columns of some over the other."""
    init_process_group("gloo", init_method=f"file://{directory}/ranks", rank=rank, world_size=size)
    shape = {1: (1, 1), 2: (1, 2), 4: (2, 2)}[size]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("columns", "rows"))
    made = {}
    for number, (name, tensor) in enumerate(state().items()):
        placements = [Shard(1) if tensor.ndim > 1 and number % 2 else Replicate(), Shard(0)]
        made[name] = distribute_tensor(tensor, mesh, placements)
    dcp.save({"model": made, "step": 7}, checkpoint_id=Path(directory) / "dcp")
    destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(save, (int(sys.argv[2]), sys.argv[1]), int(sys.argv[2]))
