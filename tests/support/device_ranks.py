"""Trainings on simulated devices of several processes, which communicate over the stand-in of HCCL."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import device_collectives
import torch
import torch.distributed as dist
from device_runs import Run, watched
from jobs import STEPS, VOCABULARY, make_model
from simulated_device import simulated_device
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional

KINDS = {
    "L0 statistics": ("L0", "statistics", {}), "mix statistics": ("mix", "statistics", {}),
    "mix hash": ("mix", "statistics", {"summary_mode": "hash"}), "L1 tensor": ("L1", "tensor", {}),
}  # fmt: skip


def over_hccl() -> str:
    """Register the device and the stand-in in this process; return the backend's name."""
    device_collectives.register()
    return "hccl"


def _train(kind: str, rank: int, world: int, around: Callable[[nn.Module], Any]) -> Run:
    """Train for some steps of two micro-batches; ``around`` is what surrounds a step."""
    simulated, run = simulated_device(), Run()
    simulated.clock.unordered.clear()
    model = make_model(kind, world, "npu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=kind != "tp")
    losses: list[Tensor] = []
    for step in range(STEPS):
        torch.manual_seed(10 + step + (0 if kind == "tp" else rank))
        batches = [torch.randint(0, VOCABULARY, (2, 4)).to("npu") for _ in range(2)]
        with around(model), watched(run):
            for tokens in batches:
                loss = nn.functional.cross_entropy(model(tokens), tokens.flatten())
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
        run.state |= {f"grad {step} {name}": _bytes(one.grad) for name, one in model.named_parameters()}
        optimizer.zero_grad()
    run.unordered = [*simulated.clock.unordered]
    run.state |= {f"loss {number}": _bytes(loss) for number, loss in enumerate(losses)}
    run.state |= {name: _bytes(one) for name, one in model.state_dict().items()}
    return run


def _bytes(tensor: Any) -> bytes:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


@contextmanager
def _recorded(place: Path, level: str, task: str, options: Mapping[str, Any]) -> Generator[Any, None, None]:
    from msprobe.pytorch import PrecisionDebugger

    place.mkdir(parents=True, exist_ok=True)
    path = place / f"config{dist.get_rank()}.json"
    path.write_text(json.dumps({"task": task, "level": level, "dump_path": str(place / "run"), task: options}))
    debugger = PrecisionDebugger(str(path))

    @contextmanager
    def step(model: nn.Module | None = None) -> Generator[None, None, None]:
        debugger.start(model)
        yield
        debugger.stop()
        debugger.step()

    try:
        yield step
    finally:
        debugger.close()
        PrecisionDebugger._instance = None


def compare_with_bare(rank: int, world: int, directory: Path, kind: str) -> dict[str, Any]:
    """Return for each kind of recording whether the training is the same, and how its waits and orders differ."""
    bare, again = (_train(kind, rank, world, lambda _: nullcontext()) for _ in range(2))
    found: dict[str, Any] = {"itself": bare.state == again.state, "communicates": device_collectives.Hccl.num_calls > 0}
    own = [wait.reason for wait in bare.waits]
    for name, (level, task, options) in KINDS.items():
        with _recorded(directory / name.replace(" ", "_"), level, task, options) as around:
            run = _train(kind, rank, world, around)
        waits = [wait.reason for wait in run.waits if wait.thread != "msprobe-writer"]
        found[name] = [
            *(key for key in bare.state if run.state.get(key) != bare.state[key]),
            *(["waits", waits, own] if waits != own else []), *(run.unordered if bare.unordered == [] else []),
        ]  # fmt: skip
    found["bare unordered"] = bare.unordered
    return found


# --- communication by itself ----------------------------------------------------------------------------------------


def _exchange(rank: int, world: int, device: str) -> list[Tensor]:
    """Communicate in all ways; return what has arrived."""
    other = (rank + 1) % world
    x = torch.arange(3.0).add_(rank + 1).to(device)
    dist.all_reduce(x)
    later = x * (rank + 2)
    work = dist.all_reduce(later, async_op=True)
    beside = torch.relu(x - 1)
    work.wait()
    received = torch.zeros(3).to(device)
    operations = [dist.P2POp(dist.isend, x * 3, other), dist.P2POp(dist.irecv, received, (rank - 1) % world)]
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    gathered = [torch.zeros(3).to(device) for _ in range(world)]
    dist.all_gather(gathered, x * (rank + 1))
    whole, part = torch.zeros(3 * world).to(device), torch.zeros(3).to(device)
    dist.all_gather_into_tensor(whole, x)
    dist.reduce_scatter_tensor(part, whole * (rank + 1))
    dist.broadcast(later, 0)
    turned = torch.zeros(2 * world).to(device)
    dist.all_to_all_single(turned, torch.arange(2.0 * world).add_(rank).to(device))
    total = functional.all_reduce(x, "sum", dist.group.WORLD) + 1
    leaf = torch.ones(2).to(device).requires_grad_()
    spread = functional.all_gather_tensor_autograd(leaf, 0, dist.group.WORLD)
    (spread * (rank + 1)).sum().backward()
    dropped = dist.all_reduce(x + 1, async_op=True)
    assert leaf.grad is not None
    kept = [x, later, beside, received, *gathered, whole, part, turned, total, leaf.grad]
    del dropped
    return kept


def communicate(rank: int, world: int, directory: Path, device: str) -> dict[str, Any]:
    """Communicate with and without the recording of hashes; return whether both are equal, and waits and orders."""
    clock = simulated_device().clock if device == "npu" else None
    seen: list[list[bytes]] = []
    waits: list[list[str]] = []
    with _recorded(directory / device, "L1", "statistics", {"summary_mode": "hash"}) as around:
        for step in (nullcontext, around):
            if clock is not None:
                clock.waits.clear()
                clock.unordered.clear()
            with step():
                kept = _exchange(rank, world, device)
                waits.append([] if clock is None else [wait.reason for wait in clock.waits])
            seen.append([_bytes(one) for one in kept])
    unordered = [] if clock is None else clock.unordered
    return {
        "same": seen[0] == seen[1], "bits": [one.hex() for one in seen[0]], "own waits": waits[0], "waits": waits[1],
        "unordered": unordered,
    }  # fmt: skip


def monitor(rank: int, world: int, directory: Path, device: str) -> dict[str, Any]:
    """Train with the monitor's ``cc_distribution``, and without; return whether both are equal, and the waits."""
    from msprobe.pytorch import TrainerMon, _arrivals

    clock = simulated_device().clock if device == "npu" else None
    if clock is not None:
        _arrivals.pinned_like = simulated_device().memory.pinned_like
        clock.lag = 1
    os.environ["MONITOR_OUTPUT_DIR"] = str(directory / device)
    path = directory / f"monitor_{device}_{rank}.json"
    communication = {"enable": True, "cc_pre_hook": True}
    path.write_text(json.dumps({"ops": ["norm", "mean"], "ndigits": 9, "cc_distribution": communication}))
    seen: list[list[bytes]] = []
    waits: list[list[str]] = []
    unordered: list[str] = []
    for is_watched in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 3).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch = TrainerMon(path, params_have_main_grad=False) if is_watched else None
        if watch is not None:
            watch.set_monitor(model, optimizer)
        kept: list[Tensor] = []
        batches = [torch.full((2, 4), 1.0 + rank + step).to(device) for step in range(3)]
        waits.append([])
        for batch in batches:
            if clock is not None:
                clock.waits.clear()
                clock.now += 1
            model(batch).sum().backward()
            works = [dist.all_reduce(one.grad, async_op=True) for one in model.parameters()]
            for work in works:
                work.wait()
            dist.all_reduce(gathered := batch.mean(0))
            kept += [gathered, *(one.grad.clone() for one in model.parameters() if one.grad is not None)]
            optimizer.step()
            optimizer.zero_grad()
            waits[-1] += [] if clock is None else [wait.reason for wait in clock.waits]
        unordered += [] if clock is None else clock.unordered
        seen.append([_bytes(one) for one in (*kept, *model.parameters())])
        if watch is not None:
            watch.close()
    return {"same": seen[0] == seen[1], "own waits": waits[0], "waits": waits[1], "unordered": unordered}


def read_too_early(rank: int, world: int, directory: Path) -> dict[str, Any]:
    """Read a result before and after a stream has waited for it; return the values and what the clock noted."""
    del rank, world, directory
    clock = simulated_device().clock
    x = torch.ones(2).to("npu")
    work = dist.all_reduce(x, async_op=True)
    clock.unordered.clear()
    early = (x + 0).cpu().tolist()
    noted = [*clock.unordered]
    work.wait()
    clock.unordered.clear()
    late = (x + 0).cpu().tolist()
    return {"early": early, "noted": noted, "late": late, "noted later": [*clock.unordered]}
