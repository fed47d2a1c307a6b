"""Cost of ``msprobe overflow_check``: time by the number of calls and ranks, with finite and with non-finite values.

    python bench/overflow_scale.py [--calls 20000] [--ranks 1 8 64] [--formats json arrow]

Statistics of two inputs and an output per call. In the non-finite case, a call in the middle of the last rank produces
NaN, which spreads to all later calls on all ranks.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from msprobe_core.overflow import search
from msprobe_core.store.convert import convert

BAD = {"Max": "NaN", "Min": "NaN", "Mean": "NaN", "Norm": "NaN", "num_nan": 3, "num_inf": 0}


def tensor(number: int, *, is_bad: bool) -> dict[str, Any]:
    """Return the record of a tensor."""
    size = 1.0 + number * 1e-6
    values = {"Max": size, "Min": -size, "Mean": 0.0, "Norm": 8.0 * size, "num_nan": 0, "num_inf": 0}
    base = {"type": "torch.Tensor", "dtype": "torch.bfloat16", "shape": [4, 1024], "requires_grad": True}
    return base | (BAD if is_bad else values)


def write(directory: Path, rank: int, num_ranks: int, num_calls: int, *, is_bad: bool) -> None:
    """Write the dump of a rank, in which a tenth of the calls are all-reduces."""
    data: dict[str, Any] = {}
    parents: dict[str, None] = {}
    begin = num_calls // 2
    for number in range(num_calls):
        # Every tenth call is an all-reduce; the first one after the culprit spreads NaN to all ranks.
        reached = is_bad and (number > begin if rank == num_ranks - 1 else number > begin + 10)
        made = (
            reached or (is_bad and rank == num_ranks - 1 and number == begin + 1) or (is_bad and number == begin + 10)
        )
        given = reached and not (rank == num_ranks - 1 and number == begin + 1)
        name = f"Distributed.all_reduce.{number // 10}" if number % 10 == 0 else f"Functional.linear.{number}"
        inputs = [tensor(number, is_bad=given), tensor(-number, is_bad=False)]
        data[f"{name}.forward"] = {
            "input_args": inputs, "input_kwargs": {}, "output": [tensor(number + 1, is_bad=made)],
            "execution": {"sequence": number},
        }  # fmt: skip
        parents[f"{name}.forward"] = None
    directory.mkdir(parents=True)
    header = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
    (directory / "dump.json").write_text(json.dumps(header | {"data": data}))
    (directory / "construct.json").write_text(json.dumps(parents))
    (directory / "stack.json").write_text("{}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--formats", nargs="+", default=["json", "arrow"])
    given = parser.parse_args()
    print(f"{'format':>6} {'ranks':>6} {'calls':>7} {'values':>8} {'time':>8} {'CPU':>8} {'CPU per rank':>13}")
    for num_ranks in given.ranks:
        for is_bad in (False, True):
            with tempfile.TemporaryDirectory() as directory:
                for rank in range(num_ranks):
                    write(Path(directory, "json", "step0", f"rank{rank}"), rank, num_ranks, given.calls, is_bad=is_bad)
                if "arrow" in given.formats:
                    convert(Path(directory, "json"), Path(directory, "arrow"))
                for form in given.formats:
                    start, cpu = time.perf_counter(), time.process_time()
                    result = search(Path(directory, form))
                    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
                    assert (result.first is not None) == is_bad
                    if result.first is not None:
                        assert result.first.first[0].rank == num_ranks - 1, result.first.first[0]
                    values = "NaN" if is_bad else "finite"
                    each = cpu / num_ranks
                    print(
                        f"{form:>6} {num_ranks:6} {given.calls:7} {values:>8} {seconds:7.2f}s {cpu:7.2f}s {each:12.2f}s"
                    )


if __name__ == "__main__":
    main()
