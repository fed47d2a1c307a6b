"""Time and memory of ``msprobe monitor analyze`` on files of many ranks.

    python bench/monitor_scale.py [--ranks 64] [--rows 10000000]

The files are made of random numbers; they have the form of a monitor's: gradients before and after reduction, and
parameters, of 200 steps, 50 in a file. Ranks are replicas. Analysis runs in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

STEPS, OF_FILE = 200, 50
QUANTITIES = {"grad_unreduced": False, "grad_reduced": True, "param_origin": True, "param_updated": True}
"""And whether replicas share it."""


def write(root: Path, rank: int, num_names: int) -> None:
    """Write the files of one rank."""
    directory = root / f"Nov23_10-00-00-rank{rank}-{rank:08x}"
    directory.mkdir(parents=True)
    names = [f"model.layers.{i // 12}.mlp.{i % 12}.weight" for i in range(num_names)]
    for quantity, is_shared in QUANTITIES.items():
        own = 0 if is_shared else rank
        draw = np.random.default_rng([own, *quantity.encode()])
        for first in range(0, STEPS, OF_FILE):
            count = OF_FILE * num_names
            norm = np.exp(draw.normal(0, 0.1, count))
            micro_step = {} if is_shared else {"micro_step": np.zeros(count, np.int64)}
            frame = pl.DataFrame(
                {
                    "vpp_stage": np.zeros(count, np.int64),
                    "name": names * OF_FILE,
                    "step": np.repeat(np.arange(first, first + OF_FILE), num_names),
                    **micro_step,
                    "norm": norm,
                    "max": norm * draw.uniform(0.1, 0.2, count),
                    "min": -norm * draw.uniform(0.1, 0.2, count),
                    "mean": norm * draw.normal(0, 1e-3, count),
                    "nans": np.zeros(count, np.int64),
                    "shape": ["[1024, 1024]"] * count,
                    "dtype": ["torch.float32"] * count,
                }
            )
            frame.write_csv(directory / f"{quantity}_{first}-{first + OF_FILE - 1}.csv", float_precision=6)


def main() -> None:
    """Write, analyze and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--rows", type=int, default=10_000_000)
    options = parser.parse_args()
    num_names = options.rows // (options.ranks * STEPS * len(QUANTITIES))
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for rank in range(options.ranks):
            write(root, rank, num_names)
        size = sum(path.stat().st_size for path in root.rglob("*.csv"))
        command = [sys.executable, "-m", "msprobe_core", "monitor", "analyze", directory]
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        said, _ = process.communicate()
        seconds = time.perf_counter() - begin
    usage = os.times()
    import resource

    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    rows = options.ranks * STEPS * len(QUANTITIES) * num_names
    print(
        f"{rows:,} rows of {options.ranks} ranks, {size / 1e6:.0f} MB: {seconds:.1f} s "
        f"({usage.children_user + usage.children_system:.1f} s of processors), {peak:.2f} GB; {said.splitlines()[0]}"
    )


if __name__ == "__main__":
    main()
