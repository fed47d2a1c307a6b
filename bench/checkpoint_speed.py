"""How fast checkpoints are compared, and how much memory that takes.

python bench/checkpoint_speed.py [--gigabytes 1]

Compares safetensors files of bfloat16 and float32: equal ones, and ones that differ everywhere. Prints bytes of both
sides by wall time and by CPU time, and the peak of resident memory.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from msprobe_core.checkpoint.compare import compare_checkpoints
from msprobe_core.checkpoint.opening import open_checkpoint

ROWS, COLUMNS = 4096, 4096


def peak_mib() -> float:
    """Return the peak of resident memory in MiB since `reset_peak_mib`; Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def reset_peak_mib() -> float:
    """Forget the peak of resident memory, and return what is resident now in MiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mib()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of each side")
    count = max(1, int(parser.parse_args().gigabytes * 1e9 / (ROWS * COLUMNS * 4)))
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as place:
        sides = {"golden": 0.0, "equal": 0.0, "different": 1e-3}
        values = rng.standard_normal((ROWS, COLUMNS), np.float32)
        for side, change in sides.items():
            for i in range(count):
                own = values * np.float32(1 + i / 64) + np.float32(change) * rng.standard_normal(
                    values.shape, np.float32
                )
                directory = Path(place) / side
                directory.mkdir(exist_ok=True)
                save_file({f"model.layers.{i}.mlp.up_proj.weight": own}, directory / f"model-{i}.safetensors")
        del values, own
        for side in ("equal", "different"):
            # In a process of its own, whose peak is not that of writing the files.
            if os.fork():
                os.wait()
                continue
            before = reset_peak_mib()
            paths = Path(place) / side, Path(place) / "golden"
            num_bytes = sum(file.stat().st_size for path in paths for file in path.iterdir())
            begin, begin_cpu = time.perf_counter(), time.process_time()
            found = compare_checkpoints(*map(open_checkpoint, paths))
            wall, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
            print(
                f"{side}: {num_bytes / 1e9:.2f} GB of both sides in {wall:.2f} s, {num_bytes / 1e9 / wall:.2f} GB/s, "
                f"{num_bytes / 1e9 / cpu:.2f} GB/s of CPU time, peak {peak_mib():.0f} MiB after "
                f"{before:.0f} MiB at the start: {found.headline}",
                flush=True,
            )
            os._exit(0)


if __name__ == "__main__":
    main()
