"""A small real training of two processes that is recorded twice, the second time with a fault on rank 1: to look at.

    python view_training.py DIRECTORY [--task statistics]

Writes ``DIRECTORY/golden`` and ``DIRECTORY/target``. One of the modules has a name that would be dangerous in a page.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from jobs import run_job
from torch import nn

HOSTILE = '</script><img src=x onerror="alert(1)">'
WIDTH, HEADS, TOKENS, VOCABULARY, STEPS = 16, 2, 8, 11, 2
FAULTY_RANK, FAULTY_MODULE = 1, "layers.1.norm"


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = given[0], given[1], given[2]
        weights = torch.softmax(query @ key.transpose(-1, -2) / 8**0.5, -1)
        x = x + self.out((weights @ value).transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.add_module(HOSTILE, nn.Identity())
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(getattr(self, HOSTILE)(x))


def train(rank: int, dump: Path, task: str, *, is_faulty: bool) -> float:
    """Train data-parallel, the gradients being averaged by hand, and return the last loss."""
    from msprobe.pytorch import PrecisionDebugger, seed_all

    seed_all(7)
    model = Model()
    if is_faulty:
        model.layers[1].norm.eps = 0.5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    debugger = PrecisionDebugger(dump_path=str(dump), task=task, level="mix")
    loss = torch.tensor(0.0)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(2 * step + rank)
        tokens = torch.randint(0, VOCABULARY, (2, TOKENS), generator=generator)
        debugger.start(model)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM)
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
    debugger.close()
    return loss.item()


def record(rank: int, world: int, directory: Path, task: str) -> list[float]:
    return [
        train(rank, directory / side, task, is_faulty=side == "target" and rank == FAULTY_RANK)
        for side in ("golden", "target")
    ]


def main() -> None:
    directory = Path(sys.argv[1])
    task = sys.argv[3] if "--task" in sys.argv else "tensor"
    print(run_job(record, 2, directory, task))


if __name__ == "__main__":
    main()
