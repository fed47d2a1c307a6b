"""Chapter 3: a recorded training is bitwise the same."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch

from bench.device.chapters import Case, Chapter, Outcome, Proof
from bench.device.machine import Machine
from bench.device.programs import DTYPES, Training, tiny
from bench.device.recording import LEVELS, Around, Kind, recorded

ARCHITECTURES = ("llama", "gpt2", "bert", "moe", "vit", "t5", "neox", "mamba2")

KINDS = [
    *(Kind(level, mode=mode) for level, mode in itertools.product(LEVELS, ("statistics", "hash", "sketch"))),
    *(Kind(level, "tensor") for level in LEVELS),
]

_NUM_STEPS = 3

Make = Callable[[], Training]
Train = Callable[[Training, Around], None]


def _plain(training: Training, around: Around) -> None:
    for _ in range(_NUM_STEPS):
        with around():
            training.step()


def _on_stream(training: Training, around: Around) -> None:
    """Train on a stream of its own."""
    streams = getattr(torch, training.machine.kind)
    stream = streams.Stream()
    stream.wait_stream(streams.current_stream())
    with streams.stream(stream):
        _plain(training, around)
    streams.current_stream().wait_stream(stream)


def _replayed(training: Training, around: Around, *, is_captured_with_probe: bool = False) -> None:
    """Train by replays of a CUDA graph of forward and backward, with the probe around them or around the capture."""
    around_capture, around_step = (around, nullcontext) if is_captured_with_probe else (nullcontext, around)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    batch = training.batches[0]
    with torch.cuda.stream(stream):
        for _ in range(3):
            training.model(**batch).loss.backward()
            training.optimizer.zero_grad(set_to_none=False)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with around_capture(), torch.cuda.graph(graph):
        loss = training.model(**batch).loss
        loss.backward()
    for _ in range(_NUM_STEPS):
        with around_step():
            training.optimizer.zero_grad(set_to_none=False)
            graph.replay()
            training.optimizer.step()
            training.losses.append(loss.detach().clone())


def _compiled(training: Training, around: Around) -> None:
    training.call = torch.compile(training.model)
    _plain(training, around)


def _sharded(training: Training, around: Around) -> None:
    """Train with FSDP of one process: gathers, reductions and freed parameters are those of many."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    kind = training.machine.kind
    mesh = init_device_mesh(kind, (1,))
    for module in training.model.modules():
        if type(module).__name__.endswith("DecoderLayer"):
            fully_shard(module, mesh=mesh)
    fully_shard(training.model, mesh=mesh)
    training.renew_optimizer()
    _plain(training, around)


@contextmanager
def _one_process(machine: Machine) -> Generator[None, None, None]:
    """Be a job of one process."""
    from torch import distributed

    with tempfile.TemporaryDirectory() as directory:
        place = f"file://{directory}/rendezvous"
        distributed.init_process_group(machine.collectives(), init_method=place, rank=0, world_size=1)
        try:
            yield
        finally:
            distributed.destroy_process_group()


def _recomputed(training: Training, around: Around) -> None:
    model = training.model
    model.gradient_checkpointing_enable({"use_reentrant": False})  # pyright: ignore[reportCallIssue]
    _plain(training, around)


def _state(make: Make, train: Train, around: Callable[[Training], AbstractContextManager[Around]]) -> dict[str, str]:
    training = make()
    torch.manual_seed(1)
    with around(training) as step:
        train(training, step)
    training.machine.synchronize()
    return training.state()


def _bare(training: Training) -> AbstractContextManager[Around]:
    del training
    return nullcontext(nullcontext)


def _compare(make: Make, train: Train, kinds: list[Kind], proof: Proof) -> Outcome:
    bare = [_state(make, train, _bare) for _ in range(2)]
    if bare[0] != bare[1]:
        return Outcome(("no", "", "the training itself does not repeat"))
    different: list[str] = []
    for kind in kinds:
        state = _state(make, train, lambda training, kind=kind: recorded(kind, training, proof.work / "neutral"))
        if state != bare[0]:
            first = next(name for name in bare[0] if state.get(name) != bare[0][name])
            different.append(f"{kind.label} ({first})")
    proof.machine.release()
    cells = "yes", f"{len(kinds) - len(different)} of {len(kinds)}", ", ".join(different) or "none"
    return Outcome(cells, holds=not different)


def _programs(machine: Machine) -> dict[str, Train]:
    found: dict[str, Train] = {"recomputed": _recomputed}
    if machine.kind != "npu" or machine.is_real:
        found["compiled"] = _compiled
    if machine.kind == "cuda":
        found |= {
            "on a stream of its own": _on_stream, "replayed from a CUDA graph": _replayed,
            "captured in a window": partial(_replayed, is_captured_with_probe=True),
        }  # fmt: skip
    return found


def _compare_sharded(make: Make, kinds: list[Kind], proof: Proof) -> Outcome:
    with _one_process(proof.machine):
        return _compare(make, _sharded, kinds, proof)


def _cases(proof: Proof) -> Iterator[Case]:
    machine = proof.machine
    names = ARCHITECTURES[:2] if proof.is_small else ARCHITECTURES
    kinds = KINDS[:: len(KINDS) - 1] if proof.is_small else KINDS
    for name, dtype in itertools.product(names, DTYPES):
        yield Case(f"{name}, {dtype}", partial(_compare, partial(tiny, name, dtype, machine), _plain, kinds, proof))
    for program, train in _programs(machine).items():
        make = partial(tiny, "llama", "bfloat16", machine)
        yield Case(f"llama, bfloat16, {program}", partial(_compare, make, train, kinds, proof))
    for dtype in ("float32", "bfloat16"):
        make = partial(tiny, "llama", dtype, machine)
        yield Case(f"llama, {dtype}, FSDP of one process", partial(_compare_sharded, make, kinds, proof))


NEUTRALITY = Chapter(
    "neutrality",
    "Losses, gradients, weights and moments with and without the probe",
    ("repeats without the probe", "kinds of recording that are bitwise equal", "different"),
    _cases,
)
