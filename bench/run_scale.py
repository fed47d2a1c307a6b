"""Time `msprobe compare` on steps of many ranks, recorded with the writer arrow, as a whole command, and print a table.

    python bench/run_scale.py [--ranks 1000] [--rows 10000] [--options "--executor processes"]

Every rank has ``--rows`` values with statistics, three per call; the two runs differ by a relative noise of 1e-4. The
ranks of a run are hard links to the files of the first 8, so that they need no more disk space than those.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

from msprobe_core.model import Batch, Digest, Entry, Phase, RunHeader, Stats, TensorMeta, TensorValue
from msprobe_core.plugins import registry

_DISTINCT = 8
_NAMES = ("Functional.linear", "Tensor.__add__", "Tensor.__mul__", "Functional.softmax", "Torch.matmul")


def write_rank(directory: Path, num_rows: int, *, rank: int, seed: int, noise: float) -> None:
    """Write the dump of one rank; dumps of one rank differ between seeds by a relative ``noise``."""
    shared, own = random.Random(rank), random.Random(1000 * seed + rank)
    meta = TensorMeta("torch.Tensor", "torch.float32", (2, 256, 1024), True)

    def value() -> float:
        return shared.uniform(-3, 3) * (1 + noise * own.uniform(-1, 1))

    def tensor() -> TensorValue:
        stats = Stats(max=abs(value()), min=-abs(value()), mean=value() / 100, l2_norm=abs(value()) * 100)
        return TensorValue(meta, Digest(stats=stats))

    entries = [
        Entry(
            name=f"{_NAMES[i % len(_NAMES)]}.{i // len(_NAMES)}.forward",
            phase=Phase.FORWARD,
            parent=None,
            stack=None,
            sequence=i,
            inputs=[tensor(), tensor()],
            input_kwargs={},
            outputs=[tensor()],
        )
        for i in range(num_rows // 3)
    ]
    directory.mkdir(parents=True)
    header = RunHeader(task="statistics", level="L1", framework="pytorch")
    writer = registry().writers()["arrow"].open(directory, header)
    for begin in range(0, len(entries), 1000):
        part = entries[begin : begin + 1000]
        writer.write(Batch(entries=part, parents={entry.name: None for entry in part}))
    writer.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--options", default="", help="further options of msprobe compare")
    arguments = parser.parse_args()
    command = shutil.which("msprobe", path=str(Path(sys.executable).parent))
    if command is None:
        raise SystemExit("install msprobe-core first")
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for side, seed in (("target", 1), ("golden", 2)):
            for rank in range(arguments.ranks):
                directory = root / side / f"rank{rank}"
                if rank < _DISTINCT:
                    write_rank(directory, arguments.rows, rank=rank, seed=seed, noise=1e-4)
                    continue
                directory.mkdir()
                for file in (root / side / f"rank{rank % _DISTINCT}").iterdir():
                    os.link(file, directory / file.name)
        begin = time.perf_counter()
        argv = [command, "compare", "-tp", str(root / "target"), "-gp", str(root / "golden"), "-o", str(root / "out")]
        silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        pid = os.posix_spawn(command, [*argv, *arguments.options.split()], os.environ, file_actions=silent)
        _, status, usage = os.wait4(pid, 0)
        wall = time.perf_counter() - begin
        if not (root / "out" / "summary.json").exists():
            raise SystemExit(f"no result; exit status {os.waitstatus_to_exitcode(status)}")
        size = sum(path.stat().st_size for path in (root / "out").rglob("*") if path.is_file())
        # The maximum over this process's finished children and their finished children.
        workers = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"{arguments.ranks} ranks of {arguments.rows} rows, {os.cpu_count()} cores, options: {arguments.options}")
        print(f"{'wall s':>8}{'CPU s':>8}{'ms a rank':>11}{'peak MB of the command':>24}{'results MB':>12}")
        cpu = usage.ru_utime + usage.ru_stime
        peak = max(usage.ru_maxrss, workers.ru_maxrss) / 1024
        print(f"{wall:>8.1f}{cpu:>8.1f}{1000 * wall / arguments.ranks:>11.1f}{peak:>24.0f}{size / 1e6:>12.0f}")


if __name__ == "__main__":
    main()
