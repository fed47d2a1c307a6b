"""The same training in several layouts over ranks, and in one process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from jobs import VOCABULARY, WIDTH, Mlp, Network, make_model
from torch import nn
from torch_has import SHARDS_ON_CPU, pipelines_over_gloo

WORLD = 2


@contextmanager
def recording(directory: Path, model: nn.Module, mode: str, level: str = "mix"):
    """Record one step of ``model``; ``mode`` is a task, or a summary mode of the task statistics."""
    from msprobe.pytorch import PrecisionDebugger

    directory.mkdir(parents=True, exist_ok=True)
    config = directory / f"config{os.getpid()}.json"
    task = "tensor" if mode == "tensor" else "statistics"
    options = {} if mode == "tensor" else {"statistics": {"summary_mode": mode}}
    config.write_text(json.dumps({"task": task, "level": level, **options}))
    debugger = PrecisionDebugger(config_path=str(config), dump_path=str(directory))
    debugger.start(model)
    yield
    debugger.stop()
    debugger.step()
    debugger.close()
    config.unlink()


def step(model: nn.Module, parallel: bool = False) -> None:
    """Run one forward and one backward on the same data everywhere."""
    torch.manual_seed(10)
    tokens = torch.randint(0, VOCABULARY, (2, 4))
    nn.functional.cross_entropy(model(tokens), tokens.flatten()).backward()


# --- in one process -------------------------------------------------------------------------------------------------


def train_alone(directory: Path, make: Callable[[], nn.Module], mode: str) -> None:
    model = make()
    with recording(directory, model, mode):
        step(model)


def network() -> nn.Module:
    torch.manual_seed(0)
    return Network()


# --- distributed tensors --------------------------------------------------------------------------------------------


def damage(model: nn.Module, rank: int) -> None:
    """Make an element of rank 1's part of one weight wrong."""
    if rank == 1:
        with torch.no_grad():
            model.blocks[1].up.weight.to_local()[2, 3] += 3.0


def train_with_distributed_tensors(rank: int, world: int, directory: Path) -> bool:
    for mode in ("statistics", "sketch", "hash", "tensor"):
        for kind in ("tp", "fsdp2") if SHARDS_ON_CPU else ("tp",):
            model = make_model(kind, world)
            with recording(directory / kind / mode, model, mode):
                step(model)
    for mode in ("statistics", "tensor"):
        model = make_model("tp", world)
        damage(model, rank)
        with recording(directory / "damaged" / mode, model, mode):
            step(model)
    model = make_model("ddp", world)
    if rank == 1:
        with torch.no_grad():
            model.module.blocks[0].down.weight[0, 0] += 1e-3
    with recording(directory / "diverged", model, "statistics"):
        step(model)
    return True


# --- plain tensors, as Megatron-LM has them ---------------------------------------------------------------------------


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


def _size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _own(whole: torch.Tensor, dim: int) -> nn.Parameter:
    part = whole.chunk(_size(), dim)[dist.get_rank()] if _size() > 1 else whole
    return nn.Parameter(part.detach().clone())


class ColumnParallelLinear(nn.Module):
    def __init__(self, size_in: int, size_out: int) -> None:
        super().__init__()
        whole = nn.Linear(size_in, size_out)
        self.weight, self.bias = _own(whole.weight, 0), _own(whole.bias, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = _Copy.apply(x) if _size() > 1 else x
        return nn.functional.linear(x, self.weight, self.bias)


class RowParallelLinear(nn.Module):
    def __init__(self, size_in: int, size_out: int) -> None:
        super().__init__()
        whole = nn.Linear(size_in, size_out)
        self.weight, self.bias = _own(whole.weight, 1), nn.Parameter(whole.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.linear(x, self.weight)
        return (_Reduce.apply(x) if _size() > 1 else x) + self.bias


class ParallelMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear_fc1 = ColumnParallelLinear(WIDTH, 4 * WIDTH)
        self.linear_fc2 = RowParallelLinear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear_fc2(nn.functional.gelu(self.linear_fc1(x)))


class ParallelNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = ParallelMlp()
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        return self.head(x + self.mlp(self.norm(x))).flatten(0, 1)


def parallel_network() -> nn.Module:
    torch.manual_seed(0)
    return ParallelNetwork()


def train_with_plain_tensors(rank: int, world: int, directory: Path) -> bool:
    for mode in ("statistics", "sketch", "tensor"):
        train_alone(directory / mode, parallel_network, mode)
    model = parallel_network()
    if rank == 1:
        with torch.no_grad():
            model.norm.weight[0] += 0.5  # every rank should have the same
    with recording(directory / "diverged", model, "statistics"):
        step(model)
    for mode in ("statistics", "tensor") if pipelines_over_gloo() else ():
        _train_stages(rank, world, directory / "stages" / mode, mode)
    return True


# --- stages ---------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(x)


class Stage(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


NUM_LAYERS, NUM_MICRO_BATCHES = 4, 2


def _layers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [Layer() for _ in range(NUM_LAYERS)]


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    return torch.randn(4, WIDTH), torch.randn(4, WIDTH)


def _train_stages(rank: int, world: int, directory: Path, mode: str) -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    share = NUM_LAYERS // world
    module = Stage(_layers()[rank * share : (rank + 1) * share])
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, NUM_MICRO_BATCHES, loss_fn=nn.functional.mse_loss, scale_grads=False)
    x, target = _data()

    def run() -> None:
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=target, losses=[])

    run()  # the first step tries out what shapes there are, on tensors that nothing was written to
    module.zero_grad()
    with recording(directory, module, mode):
        run()


def train_all_stages(directory: Path, mode: str) -> None:
    module = Stage(_layers())
    x, target = _data()
    with recording(directory, module, mode):
        for part, wanted in zip(x.chunk(NUM_MICRO_BATCHES), target.chunk(NUM_MICRO_BATCHES), strict=True):
            nn.functional.mse_loss(module(part), wanted).backward()
