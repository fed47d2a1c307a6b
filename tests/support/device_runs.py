"""Trainings on the simulated device, bare and with each part of the probe, in the process that has the device."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from device_clock import Wait
from msgspec.structs import astuple
from msprobe.pytorch import _arrivals
from simulated_device import simulated_device
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

NUM_STEPS = 2

_PINNED_LIKE = _arrivals.pinned_like


@dataclass
class Run:
    """What a training has shown.

    Attributes:
        state: Bits of losses, gradients, weights, states of the optimizer and random states, by name.
        waits: Operators and threads by which the host has waited inside steps.
        unordered: Operators that read what another stream has written without waiting for it.
        peaks: The most bytes on the device in each step, above those at its beginning.
        left: The bytes on the device at the end of each step, above those at its beginning.
        dtypes: Of the outputs of modules.
        captured: Operators of the graph that the first step captures, if it does.
    """

    state: dict[str, bytes] = field(default_factory=dict)
    waits: list[Wait] = field(default_factory=list)
    unordered: list[str] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    dtypes: set[str] = field(default_factory=set)
    captured: list[str] = field(default_factory=list)


class Net(nn.Module):
    """Attention with dropout, a norm, branches, writes in place and through a mask, an embedding."""

    def __init__(self, width: int = 16, *, recomputes: bool = False, overflows: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.attend, self.norm = nn.Linear(width, 3 * width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(width, 11, bias=False)
        self.recomputes, self.overflows = recomputes, overflows

    def block(self, x: Tensor) -> Tensor:
        query, key, value = self.attend(self.norm(x)).chunk(3, dim=-1)
        scores = query @ key.transpose(-1, -2) / 4
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
        x = x + self.drop(torch.softmax(scores, -1) @ value)
        return x + self.down(functional.gelu(self.up(x)))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = checkpoint(self.block, x, use_reentrant=False) if self.recomputes else self.block(x)
        if self.overflows:
            x = torch.exp(x * 1e4)
        return self.head(torch.tanh(x))


Around = Callable[[nn.Module, Any], AbstractContextManager[Callable[[], AbstractContextManager[None]]]]
"""Given model and optimizer: what surrounds a training, which yields what surrounds each step."""


@contextmanager
def _bare(model: nn.Module, optimizer: Any) -> Generator[Callable[[], AbstractContextManager[None]], None, None]:
    del model, optimizer
    yield nullcontext


def train(
    around: Around = _bare, *, device: str = "npu", lag: int = 0, dtype: str = "float32", width: int = 16,
    is_on_stream: bool = False, captures: bool = False, num_steps: int = NUM_STEPS, lacks_float64: bool = False,
    **net: bool,
) -> Run:  # fmt: skip
    """Train.

    Args:
        around: What of the probe surrounds it.
        device: ``npu`` or ``cpu``.
        lag: How many steps late the device is.
        dtype: Of the model; ``autocast`` is float32 with autocast to bfloat16.
        width: Of the model.
        num_steps: How many steps.
        lacks_float64: Whether the device has none.
        is_on_stream: Whether it has a stream of its own, in backward passes too.
        captures: Whether forward and backward pass of the first step are captured as a graph.
        net: Options of `Net`.
    """
    gc.collect()  # what an earlier training has left on the device
    simulated, run = simulated_device(), Run()
    simulated.clock.lag, simulated.lacks = lag, {torch.float64} if lacks_float64 else set()
    simulated.clock.unordered.clear()
    torch.manual_seed(3)
    plain = torch.float32 if dtype == "autocast" else getattr(torch, dtype)
    model, tokens = Net(width, **net).to(plain).to(device), torch.randint(11, (num_steps, 3, 5)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(4)  # of host and device, so that both draw the same
    losses: list[Tensor] = []
    with ExitStack() as stack:
        if is_on_stream:
            # PyTorch runs a backward on the stream of its forward, but knows none of a device written in Python.
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            stack.enter_context(torch.npu.stream(torch.npu.Stream()))
        step = stack.enter_context(around(model, optimizer))
        for batch in tokens:
            with step(), watched(run):
                is_captured = captures and not losses
                with simulated.clock.capture() if is_captured else nullcontext(run.captured) as run.captured:
                    with torch.autocast(device, torch.bfloat16, enabled=dtype == "autocast"):
                        logits = model(batch)
                        loss = functional.cross_entropy(logits.flatten(0, -2), batch.flatten())
                    run.dtypes.add(str(logits.dtype))
                    loss.backward()
                losses.append(loss.detach())
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            simulated.clock.now += 1
            optimizer.zero_grad(set_to_none=False)
    run.unordered = [*simulated.clock.unordered]
    run.state = _model_state(model, optimizer, losses)
    return run


@contextmanager
def watched(run: Run) -> Generator[None, None, None]:
    clock, memory = simulated_device().clock, simulated_device().memory
    clock.waits.clear()
    memory.reset_peak()
    before = memory.used
    yield
    run.waits += clock.waits
    run.peaks.append(memory.peak - before)
    run.left.append(memory.used - before)


def _model_state(model: nn.Module, optimizer: Any, losses: list[Tensor]) -> dict[str, bytes]:
    found: dict[str, Any] = {f"loss {number}": loss for number, loss in enumerate(losses)}
    for name, parameter in model.named_parameters():
        found[name], found[f"{name} grad"] = parameter.detach(), parameter.grad
        found |= {f"{name} {key}": value for key, value in optimizer.state[parameter].items()}
    return state_of(found | {"random": torch.get_rng_state(), "random on device": torch.npu.get_rng_state()})


def state_of(tensors: Mapping[str, Tensor]) -> dict[str, bytes]:
    """Return the bits of tensors."""
    return {
        name: value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        for name, value in tensors.items()
    }


# --- parts of the probe ---------------------------------------------------------------------------------------------


def recorded(place: Path, level: str, task: str, options: Mapping[str, Any] | None = None, **settings: Any) -> Around:
    """Record it to ``place / "run"``."""

    @contextmanager
    def around(model: nn.Module, optimizer: Any) -> Generator[Callable[[], AbstractContextManager[None]], None, None]:
        from msprobe.pytorch import PrecisionDebugger

        del optimizer
        place.mkdir(parents=True, exist_ok=True)
        path = place / "config.json"
        config = {"task": task, "level": level, "dump_path": str(place / "run"), task: dict(options or {}), **settings}
        path.write_text(json.dumps(config))
        debugger = PrecisionDebugger(str(path))

        @contextmanager
        def step() -> Generator[None, None, None]:
            debugger.start(model)
            yield
            debugger.stop()
            debugger.step()

        try:
            yield step
        finally:
            debugger.close()

    return around


def record(place: Path, level: str, task: str, options: Mapping[str, Any], settings: Mapping[str, Any]) -> Run:
    """Train and record; ``settings`` are keywords of `train`, and those of the configuration below ``config``."""
    given = dict(settings)
    return train(recorded(place, level, task, options, **given.pop("config", {})), **given)


def train_bare(settings: Mapping[str, Any]) -> Run:
    """Train without the probe."""
    return train(**settings)


def fly(place: Path, settings: Mapping[str, Any]) -> tuple[Run, list[list[bool]]]:
    """Train with a flight recorder; return also which steps it knew to be whole after each step."""
    from msprobe.pytorch import FlightRecorder

    _arrivals.pinned_like = simulated_device().memory.pinned_like
    known: list[list[bool]] = []

    @contextmanager
    def around(model: nn.Module, optimizer: Any) -> Generator[Callable[[], AbstractContextManager[None]], None, None]:
        del optimizer
        with FlightRecorder(model, place / "flight") as recorder:

            @contextmanager
            def step() -> Generator[None, None, None]:
                yield
                recorder.step()
                known.append([one.num_bad is not None for one in recorder.steps])

            yield step

    return train(around, **settings), known


def monitor(place: Path, settings: Mapping[str, Any]) -> Run:
    """Train with a monitor."""
    from msprobe.pytorch import TrainerMon

    _arrivals.pinned_like = simulated_device().memory.pinned_like
    os.environ["MONITOR_OUTPUT_DIR"] = str(place / "monitor")
    place.mkdir(parents=True, exist_ok=True)
    quantities = ("xy_distribution", "wg_distribution", "mv_distribution", "param_distribution")
    config = {"targets": {}, "ops": ["norm", "min", "max", "mean", "nans"], **dict.fromkeys(quantities, True)}
    (place / "monitor.json").write_text(json.dumps(config))

    @contextmanager
    def around(model: nn.Module, optimizer: Any) -> Generator[Callable[[], AbstractContextManager[None]], None, None]:
        watch = TrainerMon(place / "monitor.json", params_have_main_grad=False)
        watch.set_monitor(model, optimizer)
        yield nullcontext
        watch.close()

    return train(around, **settings)


def reduced_integers() -> list[tuple[str, Any, Any]]:
    """Return the name of each tensor of integers, and its statistics as device and host compute them."""
    from msprobe.pytorch._reduce import TorchReducer

    from msprobe_core.plugin import Digest

    simulated_device().lacks = {torch.float64}
    torch.manual_seed(5)
    limits = torch.iinfo(torch.int64)
    cases = {
        "token ids": torch.randint(150_000, (8, 4096)),
        "positions in int32": torch.arange(1 << 15, dtype=torch.int32),
        "mask": torch.rand(999) > 0.3,
        "bytes": torch.randint(256, (999,), dtype=torch.uint8),
        "beyond float32": torch.tensor([(1 << 24) + 1, 1, -(1 << 30) - 1]),
        "seeds": torch.randint(limits.max, (7,)),
        "extremes": torch.tensor([limits.max, limits.min, limits.min]),
    }
    found: list[tuple[str, Any, Any]] = []
    for name, values in cases.items():
        reducer, digests = TorchReducer(), [Digest(), Digest()]
        for tensor, digest in zip((values.to("npu"), values), digests, strict=True):
            reducer.statistics(tensor, digest)
        reducer.collect()
        found.append((name, *(digest.stats for digest in digests)))
    return found


@dataclass
class Bounded:
    """What reductions of many tensors have shown.

    Attributes:
        most_blocks: The most blocks of memory in use, above those before.
        most_bytes: The most bytes in use, above those before, when a further tensor is reduced.
        waits: By what the host has waited.
        unordered: Operators that read too early what another stream has written.
        same: Whether the digests are those that the host computes.
    """

    most_blocks: int = 0
    most_bytes: int = 0
    waits: list[str] = field(default_factory=list)
    unordered: list[str] = field(default_factory=list)
    same: bool = True


def reduce_many(mode: str, count: int, limits: Mapping[str, int], *, pins: bool = True, streams: int = 1) -> Bounded:
    """Reduce tensors on the device, alternating between streams."""
    from msprobe.pytorch._reduce import TorchReducer

    from msprobe_core.plugin import Digest

    device, found = simulated_device(), Bounded()
    clock, memory = device.clock, device.memory
    clock.lag, device.lacks = 0, set()
    before = _arrivals.pinned_like
    _arrivals.pinned_like = memory.pinned_like if pins else _PINNED_LIKE
    torch.manual_seed(5)
    values = [torch.randint(-9, 9, (8,)).float() for _ in range(count)]
    queues = [torch.npu.Stream() for _ in range(streams)] if streams > 1 else [torch.npu.current_stream()]
    there: list[Tensor] = []
    for number, each in enumerate(values):
        with torch.npu.stream(queues[number % streams]):
            there.append(each.to("npu") * 1)
    reducer, host = TorchReducer(**limits), TorchReducer()
    digests = [Digest() for _ in values], [Digest() for _ in values]
    gc.collect()
    blocks, used = memory.num_blocks, memory.used
    clock.waits.clear()
    clock.unordered.clear()
    try:
        for number, tensor in enumerate(there):
            with torch.npu.stream(queues[number % streams]):
                getattr(reducer, mode)(tensor, digests[0][number])
            found.most_blocks = max(found.most_blocks, memory.num_blocks - blocks)
            found.most_bytes = max(found.most_bytes, memory.used - used)
        found.waits = [wait.reason for wait in clock.waits]
        reducer.collect()
    finally:
        _arrivals.pinned_like = before
    found.unordered = [*clock.unordered]
    for each, digest in zip(values, digests[1], strict=True):
        getattr(host, mode)(each, digest)
    # In single precision, as this device sums.
    found.same = all(
        np.allclose(_numbers_of(one), _numbers_of(other), rtol=1e-5, atol=1e-6)
        and (one.checksum, one.stats is None) == (other.checksum, other.stats is None)
        for one, other in zip(*digests, strict=True)
    )
    return found


def _numbers_of(digest: Any) -> list[float]:
    sketch = [] if digest.sketch is None else np.frombuffer(digest.sketch, "<f4").tolist()
    parts = [astuple(part) for part in (digest.stats, digest.fp8) if part is not None]
    return [*sketch, *(float(each) for part in parts for each in part if each is not None)]


def seeded(options: Mapping[str, bool]) -> Mapping[str, bool]:
    """Draw twice on the device after `seed_all`; return what is so."""
    from msprobe.pytorch import seed_all

    device = simulated_device()
    draws, dropped, num_waits = list[bytes](), list[bool](), 0
    for _ in range(2):
        handle = seed_all(7, **options)
        device.clock.waits.clear()
        value = torch.rand(8, device="npu")
        kept = functional.dropout(torch.ones(64, device="npu"))
        num_waits += len(device.clock.waits)
        draws.append(value.cpu().numpy().tobytes() + torch.rand(1).numpy().tobytes())
        dropped.append(bool((kept == 0).any()))
        handle.restore()
        torch.use_deterministic_algorithms(False)
    torch.manual_seed(8)
    other = torch.rand(8, device="npu").cpu().numpy().tobytes()
    return {
        "same": draws[0] == draws[1], "differs by seed": not draws[0].startswith(other), "drops": any(dropped),
        "waits": num_waits > 0,
    }  # fmt: skip


class _Router(nn.Module):
    """Chooses two of four experts, as routers of transformers 5 do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scores = nn.Linear(width, 4, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.scores(x)
        weights, chosen = torch.softmax(logits, -1).topk(2, dim=-1)
        return logits, weights, chosen


class _Experts(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, width))

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        return x + (self.weight[chosen] * weights[..., None]).sum(1)


class _Routed(nn.Module):
    """A model of layers with experts."""

    def __init__(self, width: int = 8, num_layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"gate": _Router(width), "experts": _Experts(width)}) for _ in range(num_layers)
        )

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids).flatten(0, 1)
        for layer in self.layers:
            _, weights, chosen = layer["gate"](x)
            x = layer["experts"](x, chosen, weights)
        return x.sum()


def route(device: str) -> tuple[list[Wait], list[Wait], Mapping[str, bytes]]:
    """Return the waits inside of two recorded steps and those of `take` after them, and what was recorded."""
    from msprobe.pytorch import RoutingRecorder

    clock = simulated_device().clock
    torch.manual_seed(3)
    model, tokens = _Routed().to(device), torch.randint(11, (2, 3, 5)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    clock.lag = 1
    clock.waits.clear()
    with RoutingRecorder(model) as recorder:
        for batch in tokens:
            model(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    inside = list(clock.waits)
    clock.waits.clear()
    routed = recorder.take()
    found = {"experts": routed.experts, "weights": routed.weights, "scores": routed.scores}
    return inside, list(clock.waits), {name: np.asarray(each).tobytes() for name, each in found.items()}


# --- what the device promises ---------------------------------------------------------------------------------------


def ways_to_wait() -> Mapping[str, int]:
    """Return how often the host waits in each of several ways to use the device."""
    device = simulated_device()
    clock, x, host = device.clock, torch.ones(3).to("npu"), torch.zeros(3)
    clock.lag = 0
    pinned, happened = device.memory.pinned_like(host), torch.npu.Event()
    happened.record()
    clock.lag, to_come = 1, torch.npu.Event()
    to_come.record()
    ways: Mapping[str, Callable[[], Any]] = {
        "item": lambda: x[0].item(), "tolist": x.tolist, "cpu": x.cpu, "nonzero": lambda: x.nonzero(),
        "mask": lambda: x[x > 0], "equal": lambda: torch.equal(x, x), "upload": lambda: host.to("npu"),
        "pageable": lambda: host.copy_(x, non_blocking=True), "synchronize": torch.npu.synchronize,
        "event": to_come.synchronize, "arithmetic": lambda: (x + 1).sum() * 2,
        "pinned": lambda: pinned.copy_(x, non_blocking=True), "event that has happened": happened.synchronize,
        "seed": lambda: torch.manual_seed(3),
    }  # fmt: skip
    found: dict[str, int] = {}
    for name, way in ways.items():
        clock.waits.clear()
        way()
        found[name] = len(clock.waits)
    return found


def late_copy() -> list[str]:
    """Return an element of memory of the host before, while and after a copy has arrived."""
    device = simulated_device()
    x = torch.full((2,), 2.0).to("npu")
    device.clock.lag = 2
    target = device.memory.pinned_like(torch.zeros(2))
    target.copy_(x, non_blocking=True)
    seen = [str(target[0].item())]
    x.zero_()  # after the copy, in the order of the stream
    for _ in range(2):
        device.clock.now += 1
        seen.append(str(target[0].item()))
    return seen


def refused_reads() -> list[str]:
    """Return which ways to read memory of the device fail."""
    simulated_device()
    x = torch.ones(2).to("npu")
    ways: Mapping[str, Callable[[], Any]] = {
        "numpy": x.numpy, "array": lambda: np.asarray(x), "dlpack": lambda: np.from_dlpack(x),
        "storage": lambda: x.untyped_storage().data_ptr(),
    }  # fmt: skip
    refused: list[str] = []
    for name, way in ways.items():
        try:
            way()
        except RuntimeError:
            refused.append(name)
    return refused


def across_streams() -> Mapping[str, list[str]]:
    """Return the operators that run too early, by what orders two streams."""
    clock, found = simulated_device().clock, dict[str, list[str]]()
    for order in ("nothing", "event", "wait_stream"):
        clock.unordered.clear()
        first, second = torch.npu.Stream(), torch.npu.Stream()
        with torch.npu.stream(first):
            x = torch.ones(2, device="npu") * 2
        if order == "event":
            second.wait_event(first.record_event())
        elif order == "wait_stream":
            second.wait_stream(first)
        with torch.npu.stream(second):
            x + 1
        found[order] = [*clock.unordered]
    return found


# --- the proof on a device ------------------------------------------------------------------------------------------


def prove_reductions(dtype: str) -> tuple[tuple[str, ...], bool | None]:
    """Return the row of ``bench.device`` about the reductions of a dtype."""
    from bench.device.chapters import Proof
    from bench.device.machine import Simulated
    from bench.device.reductions import REDUCTIONS

    proof = Proof(Simulated(), Path(), is_small=True)
    (case,) = (case for case in REDUCTIONS.cases(proof) if case.name == dtype)
    outcome = case.run()
    return outcome.cells, outcome.holds
