"""Training jobs of several processes over gloo, bare and under the probe."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import all_reduce as imported_all_reduce

VOCABULARY, WIDTH, STEPS = 11, 8, 2
LEVELS = ("L0", "L1", "mix")


IMPORTED_ONCE = [
    "torch", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel",
    "msprobe.pytorch.debugger", "msprobe.pytorch._framework", "msprobe_core.capture",
]  # fmt: skip
"""Imported by the process that all ranks are forked from: a rank that imports PyTorch itself spends 4 s on it."""


def over_gloo() -> str:
    """Return the name of the backend of the host."""
    return "gloo"


def run_job(
    work: Callable[..., Any], world: int, directory: Path, *args: Any, backend: Callable[[], str] = over_gloo
) -> list[Any]:
    """Run ``work(rank, world, directory, *args)`` in ``world`` processes, and return what each of them returned.

    ``backend`` returns the name of that of the default group, in each of them; it must be a function of a module.
    """
    directory.mkdir(parents=True, exist_ok=True)
    multiprocessing.set_forkserver_preload(IMPORTED_ONCE)
    given = work, world, directory, args, backend
    torch.multiprocessing.start_processes(_enter, given, world, start_method="forkserver")
    return [json.loads((directory / f"result{rank}.json").read_text()) for rank in range(world)]


def run_script(script: Path, output: Path, *arguments: object) -> str:
    """Run a script as a program, in a process of its own that has PyTorch, and return what it prints.

    Args:
        script: Where it is.
        output: The file for what it prints.
        arguments: Of its command line.
    """
    multiprocessing.set_forkserver_preload(IMPORTED_ONCE)
    command = [str(script), *map(str, arguments)]
    process = multiprocessing.get_context("forkserver").Process(target=_run_script, args=(command, output))
    process.start()
    process.join()
    assert process.exitcode == 0, f"{command} ended with {process.exitcode}"
    return output.read_text()


def _run_script(command: list[str], output: Path) -> None:
    sys.argv = command
    with output.open("w") as file, contextlib.redirect_stdout(file):
        runpy.run_path(command[0], run_name="__main__")


def _enter(
    rank: int,
    work: Callable[..., Any],
    world: int,
    directory: Path,
    args: tuple[Any, ...],
    backend: Callable[[], str],
) -> None:
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    torch.set_num_threads(1)
    dist.init_process_group(backend(), init_method=f"file://{directory}/rendezvous", rank=rank, world_size=world)
    result = work(rank, world, directory, *args)
    (directory / f"result{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Mlp() for _ in range(2))
        self.norm = nn.BatchNorm1d(WIDTH)  # has buffers, which DDP hands from rank to rank
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x.flatten(0, 1)))


def make_model(kind: str, world: int, device: str = "cpu") -> nn.Module:
    torch.manual_seed(0)
    model = Network().to(device)
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        mesh = None if device == "cpu" else make_mesh(world, device)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    assert kind == "tp"
    mesh = make_mesh(world, device)
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def make_mesh(world: int, device: str = "cpu") -> Any:
    """Return a mesh of all ranks, of whichever module has them in this release."""
    if find_spec("torch.distributed.device_mesh") is None:
        from torch.distributed._tensor import DeviceMesh

        return DeviceMesh(device, list(range(world)))
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device, (world,))


def train(kind: str, rank: int, world: int, debugger: Any, repeats: int = 0) -> str:
    """Train for some steps, with two micro-batches each, and return every loss, gradient and weight as text.

    With ``repeats`` each step is calibrated.
    """
    model = make_model(kind, world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=kind != "tp")
    seen: list[Any] = []

    def one_step() -> list[Any]:
        seen: list[Any] = []
        for _ in range(2):
            tokens = torch.randint(0, VOCABULARY, (2, 4))
            loss = nn.functional.cross_entropy(model(tokens), tokens.flatten())
            loss.backward()
            seen.append(loss.item().hex())
        seen += [_bits(parameter.grad) for parameter in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        return seen

    for step in range(STEPS):
        torch.manual_seed(10 + step + (0 if kind == "tp" else rank))
        if repeats:
            from msprobe.pytorch import calibration

            with calibration(debugger, model, optimizer, repeats) as runs:
                for run in runs:
                    found = one_step()
                    if run.is_golden:
                        seen += found
            debugger.step()
            continue
        if debugger is not None:
            debugger.start(model)
        seen += one_step()
        if debugger is not None:
            debugger.stop()
            debugger.step()
    seen += [_bits(parameter) for parameter in model.parameters()]
    seen.append(torch.get_rng_state().sum().item())
    return json.dumps(seen)


def _bits(tensor: Any) -> list[Any]:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach().flatten().view(torch.int32).tolist()


def compare_with_bare(rank: int, world: int, directory: Path, kind: str) -> dict[str, bool]:
    """Say for each level whether training under the probe is bit for bit what it is without."""
    from msprobe.pytorch import PrecisionDebugger

    bare = train(kind, rank, world, None)
    same: dict[str, bool] = {"itself": train(kind, rank, world, None) == bare}
    for level in LEVELS:
        debugger = PrecisionDebugger(dump_path=directory / level, level=level)
        same[level] = train(kind, rank, world, debugger) == bare
        debugger.close()
    return same


def compare_calibrated_with_bare(rank: int, world: int, directory: Path, kinds: list[str]) -> dict[str, bool]:
    """Say whether calibrated training is bit for bit what it is without; only the first rank is recorded."""
    from msprobe.pytorch import PrecisionDebugger

    same: dict[str, bool] = {}
    for kind in kinds:
        bare = train(kind, rank, world, None)
        debugger = PrecisionDebugger(dump_path=directory / kind, level="mix", step=[1], rank=[0])
        same[kind] = train(kind, rank, world, debugger, repeats=1) == bare
        debugger.close()
    return same


def sum_in_place(rank: int, _world: int, directory: Path) -> None:
    """Record a sum over the ranks that is written into its argument, and what reads it next."""
    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(dump_path=directory / "run", level="L1")
    with debugger.start():
        x = torch.full((2,), rank + 1.0) * 1.0
        dist.all_reduce(x)
        torch.sin(x)
    debugger.close()


def communicate(rank: int, world: int, directory: Path) -> dict[str, Any]:
    """Call every kind of communication, and return what it gave."""
    import torch.distributed._functional_collectives as functional
    from msprobe.pytorch import PrecisionDebugger

    other = (rank + 1) % world
    debugger = PrecisionDebugger(dump_path=directory / "run", level="L1")
    native, in_python = torch.ops._c10d_functional, torch.ops.c10d_functional
    operator = (native if hasattr(native, "all_reduce") else in_python).all_reduce
    before = [dist.isend, dist.all_reduce, vars(dist.Work)["wait"], operator._op]
    before.append(dist.all_reduce.__closure__[0].cell_contents)
    debugger.start()
    seen: dict[str, Any] = {}
    x = torch.full((3,), float(rank + 1))
    imported_all_reduce(x)
    seen["reduced"] = x.tolist()
    work = dist.all_reduce(x, async_op=True)
    seen["wait"] = work.wait()
    received = torch.empty(3)
    sending = dist.isend(x + rank, other)
    dist.recv(received, (rank - 1) % world)
    sending.wait()
    seen["received"] = received.tolist()
    operations = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, received, (rank - 1) % world)]
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    gathered = [torch.empty(3) for _ in range(world)]
    dist.all_gather(gathered, x * (rank + 1))
    seen["gathered"] = [one.tolist() for one in gathered]
    whole, part = torch.empty(3 * world), torch.empty(3)
    seen["scattered"] = None
    try:
        dist.all_gather_into_tensor(whole, x)
        dist.reduce_scatter_tensor(part, whole)
        seen["scattered"] = part.tolist()
    except RuntimeError:
        pass  # gloo had neither
    never_awaited = dist.all_reduce(torch.ones(2), async_op=True)
    objects: list[Any] = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    dist.barrier()
    total = functional.all_reduce(x, "sum", dist.group.WORLD) + 1
    seen["functional"] = total.tolist()
    direct = torch.full((3,), float(rank + 1))
    torch.relu(direct)
    dist.group.WORLD.allreduce([direct]).wait()  # past the functions of torch.distributed
    seen["direct"] = torch.relu(direct).tolist()
    leaf = torch.ones(2, requires_grad=True)
    names = ("all_gather_single_autograd", "all_gather_tensor_autograd")  # since 2.13, and since 2.4
    gather = next((getattr(functional, name) for name in names if hasattr(functional, name)), None)
    if gather is not None:
        (gather(leaf, 0, dist.group.WORLD) * (rank + 1)).sum().backward()
    seen["gradient"] = None if gather is None else leaf.grad.tolist()
    try:
        dist.all_reduce("no tensor")
    except (TypeError, RuntimeError):  # the latter in PyTorch 2.1
        seen["raises"] = True
    dist.all_reduce(x)
    debugger.stop()
    after = [dist.isend, dist.all_reduce, vars(dist.Work)["wait"], operator._op]
    after.append(dist.all_reduce.__closure__[0].cell_contents)
    seen["is_put_back"] = all(one is two for one, two in zip(before, after, strict=True))
    never_awaited.wait()
    debugger.close()
    return seen


def run_pipeline(rank: int, world: int, directory: Path) -> dict[str, bool]:
    """Train two stages with two micro-batches, and say for each level whether the probe changes a bit."""
    from msprobe.pytorch import PrecisionDebugger

    def once(debugger: Any) -> str:
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        torch.manual_seed(rank)
        module = Mlp()
        schedule = Schedule1F1B(
            PipelineStage(module, rank, world, torch.device("cpu")), 2, loss_fn=nn.functional.mse_loss
        )
        torch.manual_seed(5)
        x, target = torch.randn(4, WIDTH), torch.randn(4, WIDTH)
        losses: list[torch.Tensor] = []
        if debugger is not None:
            debugger.start(module)
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=target, losses=losses)
        if debugger is not None:
            debugger.stop()
        return json.dumps([[loss.item() for loss in losses], [_bits(p.grad) for p in module.parameters()]])

    bare = once(None)
    same: dict[str, bool] = {}
    for level in LEVELS:
        debugger = PrecisionDebugger(dump_path=directory / level, level=level)
        same[level] = once(debugger) == bare
        debugger.close()
    return same


def entries(directory: Path, step: int, rank: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the entries of one rank's dump."""
    dump = json.loads((directory / f"step{step}" / f"rank{rank}" / "dump.json").read_text())
    yield from dump["data"].items()
