"""Trainings by several trainers over gloo, monitored and bare, and the same training in one process."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from pathlib import Path
from typing import Any

import torch
from jobs import VOCABULARY, Network, make_mesh, make_model
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from trainer_stand_ins import DistributedMain, MainGradients, ZeroPartitions

STEPS = 2
QUANTITIES = {
    "wg_distribution": True, "mv_distribution": True, "param_distribution": True, "msprobe": {"sketch": "grad"},
}  # fmt: skip


def monitor_of(
    rank: int, directory: Path, model: Any, optimizer: Any, *, steps_of_batch: int = 1, **settings: Any
) -> Any:
    """Begin to monitor a training of one rank."""
    from msprobe.pytorch import TrainerMon

    groups = settings.pop("groups", {})
    os.environ["MONITOR_OUTPUT_DIR"] = str(directory / "out")
    path = directory / f"monitor{rank}.json"
    path.write_text(json.dumps({"ndigits": 14, "squash_name": True, **QUANTITIES, **settings}))
    monitor = TrainerMon(path, params_have_main_grad=True)
    monitor.set_monitor(model, optimizer, grad_acc_steps=steps_of_batch, **groups)
    return monitor


def batch(step: int, micro_step: int, rank: int) -> torch.Tensor:
    """Return the tokens of one micro-batch of a rank."""
    generator = torch.Generator().manual_seed(100 * step + 10 * micro_step + rank)
    return torch.randint(0, VOCABULARY, (2, 4), generator=generator)


def loss_of(model: nn.Module, tokens: torch.Tensor, micro_batches: int) -> torch.Tensor:
    """Return the loss, as a share of the mean over micro-batches."""
    return nn.functional.cross_entropy(model(tokens), tokens.flatten()) / micro_batches


def network() -> nn.Module:
    """Return the model with the same weights in every process."""
    torch.manual_seed(0)
    return Network()


def alone(world: int, micro_batches: int = 1, *, max_norm: float | None = None) -> list[dict[str, Any]]:
    """Train in one process on the data of all ranks, and return what a monitor should see.

    Returns: for each step the norms of each rank's own gradient, of their mean, and of the parameters after the step.
    """
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    named = dict(model.named_parameters())
    seen: list[dict[str, Any]] = []
    for step in range(STEPS):
        own: list[dict[str, torch.Tensor]] = []
        for rank in range(world):
            model.zero_grad()
            for micro_step in range(micro_batches):
                loss_of(model, batch(step, micro_step, rank), micro_batches).backward()
            own.append({name: each.grad.clone() for name, each in named.items()})
        for name, each in named.items():
            each.grad = sum(gradients[name] for gradients in own) / world
        if max_norm is not None:
            nn.utils.clip_grad_norm_(named.values(), max_norm)
        reduced = {name: each.grad.norm().item() for name, each in named.items()}
        whole = sum(norm**2 for norm in reduced.values()) ** 0.5
        optimizer.step()
        seen.append(
            {
                "unreduced": [{name: each.norm().item() for name, each in gradients.items()} for gradients in own],
                "reduced": reduced,
                "gradient": whole,
                "updated": {name: each.detach().norm().item() for name, each in named.items()},
                "exp_avg": {name: optimizer.state[each]["exp_avg"].norm().item() for name, each in named.items()},
            }
        )
    return seen


def wrapped(kind: str, world: int) -> nn.Module:
    """Return the model as a trainer has it."""
    model = network()
    if kind.startswith("ddp"):
        wrapper = DistributedDataParallel(model, gradient_as_bucket_view=kind == "ddp-view")
        if kind == "ddp-hook":
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            wrapper.register_comm_hook(None, allreduce_hook)
        return wrapper
    if kind.startswith("fsdp1"):
        from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        policy = ModuleWrapPolicy({type(model.blocks[0])})
        strategy = ShardingStrategy.NO_SHARD if kind == "fsdp1-whole" else ShardingStrategy.FULL_SHARD
        return FullyShardedDataParallel(
            model,
            sharding_strategy=strategy,
            auto_wrap_policy=policy,
            use_orig_params=kind != "fsdp1-flat",
            device_id=torch.device("cpu"),
        )
    if kind == "tp":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        for block in model.blocks:
            parallelize_module(block, make_mesh(world), {"up": ColwiseParallel(), "down": RowwiseParallel()})
        return model
    from torch.distributed.fsdp import fully_shard

    mesh = make_mesh(world)
    if kind == "hsdp":
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard"))
    if kind == "fsdp2-tp":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        both = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        for block in model.blocks:
            parallelize_module(block, both["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        mesh = both["dp"]
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def made(kind: str, world: int) -> tuple[Any, Any]:
    """Return model and optimizer."""
    if kind == "main-grad":
        model = MainGradients(network())
        return model, DistributedMain(model, lr=1e-2)
    if kind == "zero":
        model = network()
        parameters = list(model.parameters())
        return model, ZeroPartitions([parameters[:5], parameters[5:]], lr=1e-2)
    model = wrapped(kind, world)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def data_rank(kind: str, rank: int) -> int:
    """Return whose data a rank is trained on: ranks of tensor parallelism have the same."""
    return 0 if kind == "tp" else rank // 2 if kind == "fsdp2-tp" else rank


def train(rank: int, world: int, directory: Path, kind: str, micro_batches: int, *, is_watched: bool) -> list[Any]:
    """Train, and return every loss and every element that this rank has in the end."""
    model, optimizer = made(kind, world)
    monitor = monitor_of(rank, directory, model, optimizer, steps_of_batch=micro_batches) if is_watched else None
    seen: list[Any] = []
    for step in range(STEPS):
        for micro_step in range(micro_batches):
            is_last = micro_step == micro_batches - 1
            with contextlib.nullcontext() if is_last or kind.endswith("sync") else _without_sync(model):
                loss = loss_of(model, batch(step, micro_step, data_rank(kind, rank)), micro_batches)
                loss.backward()
            seen.append(loss.item().hex())
        if kind.startswith("main-grad"):
            model.finish_grad_sync()
        optimizer.step()
        if kind.startswith("main-grad"):
            model.zero_grad_buffer()
        model.zero_grad()
    if monitor is not None:
        monitor.close()
    return [*seen, *(bits(each) for each in model.parameters()), torch.get_rng_state().sum().item()]


@contextlib.contextmanager
def _without_sync(model: Any) -> Any:
    if hasattr(model, "no_sync"):
        with model.no_sync():
            yield
    elif hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)
    else:
        yield


def bits(tensor: Any) -> list[Any]:
    """Return the elements that this rank has, exactly."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach().flatten().view(torch.int32).tolist()


def bare_and_watched(rank: int, world: int, directory: Path, jobs: list[tuple[str, int]]) -> list[bool]:
    """Say for each kind of trainer whether the monitored training is the bare one to the bit."""
    run = functools.partial(train, rank, world)
    return [
        run(directory / f"{kind}-{number}", kind, number, is_watched=False)
        == run(_made(directory / f"{kind}-{number}"), kind, number, is_watched=True)
        for kind, number in jobs
    ]


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def train_in_parallel(rank: int, world: int, directory: Path, kind: str, settings: dict[str, Any] | None) -> list[str]:
    """Train a model that is spread over ranks, and return its losses.

    Args:
        rank: Of this process.
        world: Number of ranks.
        directory: Of results.
        kind: How the model is spread.
        settings: Of the monitor; ``None`` for a training without.
    """
    model = make_model(kind, world).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    monitor = None if settings is None else monitor_of(rank, directory, model, optimizer, **settings)
    torch.manual_seed(5 + rank)
    losses: list[str] = []
    for _ in range(3):
        loss = model(torch.randint(0, VOCABULARY, (4, 6))).square().mean()
        loss.backward()
        losses.append(loss.item().hex())
        optimizer.step()
        optimizer.zero_grad()
    if monitor is not None:
        monitor.close()
    return losses
