"""Cost of ordering the calls of many ranks: CPU time and memory by the number of ranks.

    python bench/order_scale.py [--ranks 1024] [--calls 2000] [--communication 0.1 1.0]

Each rank belongs to a tensor-parallel group of 8, to a pipeline of 4 stages and to a data-parallel group across them;
the given share of its calls is communication in these groups. Reading files is not included; scanning frames is.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any

import polars as pl

from msprobe_core.model import RunHeader
from msprobe_core.order import order_of
from msprobe_core.store.frame import FrameBuilder

TENSOR_PARALLEL, STAGES = 8, 4


class Made:
    """A dump that is generated on access."""

    header = RunHeader(task="statistics", level="mix", framework="pytorch")

    def __init__(self, frame: pl.DataFrame) -> None:
        self.frame = frame


class Job(dict[int, Any]):
    """Dumps by rank; only one of them is in memory at a time."""

    def __init__(self, num_ranks: int, num_calls: int, share: float) -> None:
        super().__init__(dict.fromkeys(range(num_ranks)))
        self._world, self._num_calls, self._share = num_ranks, num_calls, share
        self.seconds = 0.0

    def __getitem__(self, rank: int) -> Made:
        start = time.process_time()
        made = Made(make_frame(rank, self._world, self._num_calls, self._share))
        self.seconds += time.process_time() - start
        return made


def make_frame(rank: int, world: int, num_calls: int, share: float) -> pl.DataFrame:
    """Return the frame of one rank."""
    per_stage = max(TENSOR_PARALLEL, world // STAGES)
    stage, place = divmod(rank, per_stage)
    shard = place % TENSOR_PARALLEL
    first = rank - shard
    groups = {
        "tensor": [r for r in range(first, first + TENSOR_PARALLEL) if r < world],
        "data": [r for r in range(stage * per_stage, min(world, (stage + 1) * per_stage)) if (r - shard) % 8 == 0],
    }
    if rank not in groups["data"]:
        groups["data"] = sorted({*groups["data"], rank})
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": 1.0, "Min": 0.0, "Mean": 0.5,
              "Norm": 1.0, "requires_grad": False}  # fmt: skip
    builder = FrameBuilder()
    every = round(1 / share)
    counts: dict[str, int] = {}

    def add(name: str, *inputs: Any, **kwargs: Any) -> None:
        number = counts.get(name, 0)
        counts[name] = number + 1
        record = {"input_args": [tensor, *inputs], "input_kwargs": kwargs, "output": [tensor]}
        builder.add_entry(f"{name}.{number}.forward", record)

    def ranks(name: str) -> dict[str, Any]:
        return {"type": "torch.ProcessGroup", "group_ranks": groups[name], "group_id": name}

    for number in range(num_calls):
        if number % every:
            add("Functional.linear")
        elif number % (10 * every) == 0 and stage:
            add("Distributed.recv", {"type": "int", "value": rank - per_stage})
        elif number % (10 * every) == every and rank + per_stage < world and stage < STAGES - 1:
            add("Distributed.send", {"type": "int", "value": rank + per_stage})
        elif number % (10 * every) == 2 * every:
            add("Distributed.all_reduce", group=ranks("data"))
        else:
            add("Distributed.all_reduce", group=ranks("tensor"))
    return builder.build()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 1024])
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--communication", type=float, nargs="+", default=[0.1, 1.0])
    given = parser.parse_args()
    print(f"{'ranks':>6} {'calls':>6} {'communication':>14} {'order':>8} {'earliest':>9} {'peak memory':>12}")
    for num_ranks in given.ranks:
        for share in given.communication:
            job = Job(num_ranks, given.calls, share)
            start = time.process_time()
            order = order_of(job)
            ordering = time.process_time() - start - job.seconds
            start = time.process_time()
            found = order.earliest((rank, "Distributed.all_reduce.7.forward") for rank in range(num_ranks))
            asking = time.process_time() - start
            assert found
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            notes = "" if not order.notes else f"  {order.notes[0].text[:80]}"
            print(f"{num_ranks:6} {given.calls:6} {share:14.0%} {ordering:7.1f}s {asking:8.1f}s {peak:8.0f} MiB{notes}")


if __name__ == "__main__":
    main()
