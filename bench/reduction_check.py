"""Plant faults in the reductions of real data-parallel trainings, and see whether the check names them.

python bench/reduction_check.py [--worlds 2 4] [--healthy 50]

Trainings of `DistributedDataParallel` over gloo, in float32 and bfloat16, with one and two micro-batches. In each, the
gradient of one parameter is not reduced as it should be from a step on. A fault counts as named if the parameter, the
ranks and what happened are; anything else that is found is a false finding. Healthy trainings must have none.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from msprobe.pytorch import TrainerMon
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from msprobe_core.monitoring.reduction import ReductionCheck, check_reduction
from msprobe_core.monitoring.reduction_steps import SketchedRun

STEPS, FAULTY_FROM = 5, 2
EXPECTED = {
    "scaled": "reduction.scaled", "missing": "reduction.missing", "twice": "reduction.twice",
    "ignored": "reduction.not-reduced", "reduced twice": "reduction.reduced-twice", "stale": "reduction.stale",
    "after": "reduction.scaled-after", "other group": "reduction.wrong-group",
}  # fmt: skip
"""The code of each fault."""

OF_ONE_RANK = frozenset({"scaled", "missing", "twice", "after"})
_BEFORE = {"scaled": 1.1, "missing": 0.0, "twice": 2.0}


@dataclass(frozen=True)
class Job:
    """One training.

    Attributes:
        number: Of the training.
        fault: What is planted; ``healthy``, or ``repeated`` of a rank that has another rank's data.
        dtype: Of the model.
        micro_batches: Of a step.
        parameter: Whose gradient is concerned.
        rank: That does something wrong, if it is a single one.
        clips: Whether gradients are clipped.
    """

    number: int
    fault: str
    dtype: str
    micro_batches: int
    parameter: str
    rank: int
    clips: bool


class Net(nn.Module):
    """Embedding, two layers with a norm between, and biases."""

    def __init__(self, seed: int) -> None:
        """Initialize from a seed."""
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(50, 16)
        self.up, self.norm, self.down = nn.Linear(16, 64), nn.LayerNorm(64), nn.Linear(64, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits."""
        return self.down(self.norm(torch.relu(self.up(self.embedding(tokens)))))


def train(job: Job, directory: Path) -> None:
    """Run one training on this rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    os.environ["MONITOR_OUTPUT_DIR"] = str(directory / str(job.number))
    settings = directory / f"{job.number}-{rank}.json"
    settings.write_text(json.dumps({"msprobe": {"sketch": "grad"}, "step_count_per_record": STEPS}))
    bare = Net(job.number).to(getattr(torch, job.dtype))
    if job.fault == "ignored":
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(bare, [job.parameter])
    model = DistributedDataParallel(bare)
    target = dict(bare.named_parameters())[job.parameter]
    step = 0
    halves = [dist.new_group(list(half)) for half in (range(world // 2), range(world // 2, world))]
    # Without annotations, which PyTorch compares as types.
    model.register_comm_hook(
        None, lambda _, bucket: _exchange(job, target, halves, bucket, is_faulty=step >= FAULTY_FROM)
    )
    optimizer = torch.optim.AdamW(bare.parameters(), lr=1e-3)
    monitor = TrainerMon(settings, params_have_main_grad=False)
    monitor.set_monitor(bare, optimizer, grad_acc_steps=job.micro_batches)
    data = torch.Generator().manual_seed(1000 * job.number + (0 if job.fault == "repeated" and rank == 1 else rank))
    before: Tensor | None = None
    for step in range(STEPS):
        for micro_batch in range(job.micro_batches):
            tokens, labels = (torch.randint(0, high, (8,), generator=data) for high in (50, 7))
            with nullcontext() if micro_batch == job.micro_batches - 1 else model.no_sync():
                loss = nn.functional.cross_entropy(model(tokens).float(), labels) / job.micro_batches
                loss.backward()
        before = _after(job, target, before, step)
        if job.clips:
            nn.utils.clip_grad_norm_(bare.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()


def _exchange(
    job: Job, target: Tensor, halves: list[Any], bucket: dist.GradBucket, *, is_faulty: bool
) -> torch.futures.Future[Tensor]:
    """Reduce a bucket, as `DistributedDataParallel` does, except for the fault."""
    world, rank = dist.get_world_size(), dist.get_rank()
    half = None
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        if parameter is target and is_faulty:
            if job.fault in _BEFORE and rank == job.rank:
                gradient.mul_(_BEFORE[job.fault])
            if job.fault == "other group":
                half = gradient, gradient.clone()
    if half is not None:
        dist.all_reduce(half[1], group=halves[rank // (world // 2)])
    work = dist.all_reduce(bucket.buffer().div_(world), async_op=True)

    def finish(done: torch.futures.Future[list[Tensor]]) -> Tensor:
        if half is not None:
            half[0].copy_(half[1].div_(world // 2))
        return done.value()[0]

    return work.get_future().then(finish)


def _after(job: Job, target: Tensor, before: Tensor | None, step: int) -> Tensor | None:
    """Plant what happens after the reduction, and return the reduced gradient."""
    gradient = target.grad
    if gradient is None:
        return before
    reduced = gradient.clone()
    if step >= FAULTY_FROM:
        if job.fault == "reduced twice":
            dist.all_reduce(gradient)
        elif job.fault == "stale" and before is not None:
            gradient.copy_(before)
            reduced = before
        elif job.fault == "after" and dist.get_rank() == job.rank:
            gradient.mul_(1.1)
    return reduced


def run_rank(rank: int, world: int, directory: Path, jobs: list[Job]) -> None:
    """Run all trainings on one rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=world)
    for job in jobs:
        train(job, directory)
    dist.destroy_process_group()


def jobs_of(world: int, num_healthy: int) -> Iterator[Job]:
    """Yield the trainings with faults, then healthy ones."""
    names = [name for name, _ in Net(0).named_parameters()]
    number = 0
    kinds = [*EXPECTED, "repeated", *["healthy"] * num_healthy]
    for fault in kinds:
        if fault == "other group" and world < 4:
            continue
        for dtype in ("float32", "bfloat16"):
            for micro_batches in (1, 2):
                for clips in (False, True):
                    yield Job(
                        number, fault, dtype, micro_batches, names[number % len(names)], number * 7 % world, clips
                    )
                    number += 1
                    if fault == "healthy" and number % 2:
                        break


def main() -> None:
    """Run, judge and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", nargs="*", type=int, default=[2, 4])
    parser.add_argument("--healthy", type=int, default=50)
    asked = parser.parse_args()
    multiprocessing.set_forkserver_preload(["torch", "msprobe.pytorch._framework", "msprobe_core.capture"])
    for world in asked.worlds:
        jobs = list(jobs_of(world, -(-asked.healthy // 6)))
        with tempfile.TemporaryDirectory() as place:
            directory = Path(place)
            torch.multiprocessing.start_processes(run_rank, (world, directory, jobs), world, start_method="forkserver")
            _report(world, directory, jobs)


def _report(world: int, directory: Path, jobs: list[Job]) -> None:
    named, planted, odd = Counter[str](), Counter[str](), Counter[str]()
    gradients = Counter[str]()
    for job in jobs:
        result = check_reduction(SketchedRun(directory / str(job.number)))
        row = f"{job.fault}, {job.dtype}"
        gradients[row] += result.num_judged
        found, others = _named(job, result, world)
        named[row] += found
        planted[row] += 0 if job.fault not in EXPECTED else STEPS - (0 if job.fault == "ignored" else FAULTY_FROM)
        odd[row] += others
        if others or (job.fault in EXPECTED and not found) or result.unjudged:
            print(asdict(job), [(f.step, f.parameter.name, f.explanation.finding.text) for f in result.found][:4])
            print(result.reasons)
    for row, count in planted.items():
        print(f"{world} ranks, {row}: {named[row]} of {count} named, {odd[row]} others of {gradients[row]} gradients")


def _named(job: Job, result: ReductionCheck, world: int) -> tuple[int, int]:
    """Return how many findings are the planted one, and how many are not."""
    ranks = (job.rank,) if job.fault in OF_ONE_RANK else tuple(range(world))
    right = sum(
        fault.parameter.name == job.parameter
        and fault.explanation.code.value == EXPECTED.get(job.fault)
        and fault.explanation.ranks == ranks
        for fault in result.found
    )
    return right, result.num_found - right


if __name__ == "__main__":
    main()
