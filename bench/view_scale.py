"""Time `msprobe view` on synthetic statistics dumps, as a whole process, and print a table.

    python bench/view_scale.py [--calls 50000] [--runs 3]

The model has layers of 50 calls, nested three deep, each of which gets the output of the one before; half of the calls
are backward. Cases: one run, two runs that differ from the middle on, four ranks with a quarter of the calls each, and
a monitored training: 500 values in 200 steps on `--ranks` ranks.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from monitored_runs import Training

CALLS_OF_LAYER = 50
APIS = ("Functional.linear", "Functional.layer_norm", "Tensor.__add__", "Torch.softmax", "Functional.gelu")


class Model:
    """Generates the records of one rank."""

    def __init__(self, *, is_faulty: bool) -> None:
        self._random = random.Random(0)
        self._is_faulty = is_faulty
        self._counts: dict[str, int] = {}
        self.data: dict[str, dict] = {}
        self.parents: dict[str, str | None] = {}
        self.stacks: dict[str, list] = {}

    def tensor(self, place: float) -> dict:
        """Return a tensor; with a fault, it differs after the middle of the run."""
        factor = 1.2 if self._is_faulty and place > 0.5 else 1.0
        high, low, mean, norm = (self._random.uniform(0.5, 3) * factor for _ in range(4))
        return {
            "type": "torch.Tensor", "dtype": "torch.bfloat16", "shape": [1, 4096, 5120], "Max": high, "Min": -low,
            "Mean": mean / 100, "Norm": norm * 100, "requires_grad": True,
        }  # fmt: skip

    def record(self, num_calls: int) -> None:
        """Generate all records, forward and backward."""
        num_layers = num_calls // CALLS_OF_LAYER // 2
        for phase in ("forward", "backward"):
            root = f"Module.Model.{phase}.0"
            given = first = self.tensor(0)
            for step in range(num_layers):
                layer = step if phase == "forward" else num_layers - 1 - step
                place = (step / num_layers + (phase == "backward")) / 2
                given = self._layer(layer, phase, root, given, place)
            self._add(root, None, [first], given, phase)

    def _layer(self, layer: int, phase: str, root: str, given: dict, place: float) -> dict:
        outer = f"Module.layers.{layer}.Layer.{phase}.0"
        begin = given
        for block in range(7):
            inner = f"Module.layers.{layer}.block{block}.Block.{phase}.0"
            before = given
            for i in range(6):
                api = APIS[i % len(APIS)]
                number = self._counts.get(api + phase, 0)
                self._counts[api + phase] = number + 1
                made = self.tensor(place)
                entry = f"{api}.{number}.{phase}"
                self._add(entry, inner, [given], made, phase)
                if phase == "forward":
                    self.stacks[entry] = [f"File model.py, line {10 + block}, in forward, x = self.block{block}(x)"]
                given = made
            self._add(inner, outer, [before], given, phase)
        self._add(outer, root, [begin], given, phase)
        return given

    def _add(self, entry: str, parent: str | None, given: list[dict], made: dict, phase: str) -> None:
        names = ("input_args", "output") if phase == "forward" else ("input", "output")
        self.data[entry] = {names[0]: [*given, {"type": "float", "value": 0.5}], names[1]: [made]}
        self.parents[entry] = parent

    def write(self, place: Path) -> None:
        """Write the dump."""
        place.mkdir(parents=True)
        header = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
        (place / "dump.json").write_text(json.dumps(header | {"data": self.data}))
        (place / "construct.json").write_text(json.dumps(self.parents))
        stacks = {str(i): [[entry], frames] for i, (entry, frames) in enumerate(self.stacks.items())}
        (place / "stack.json").write_text(json.dumps(stacks))


def write_run(root: Path, num_calls: int, num_ranks: int, *, is_faulty: bool) -> Path:
    """Write one side, and return its path."""
    for rank in range(num_ranks):
        model = Model(is_faulty=is_faulty and rank == num_ranks - 1)
        model.record(num_calls // num_ranks)
        model.write(root / f"rank{rank}")
    return root if num_ranks > 1 else root / "rank0"


def run(command: list[str]) -> tuple[float, float, float]:
    """Return wall and CPU seconds and peak memory in MB of one run."""
    begin = time.perf_counter()
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=silent)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"it failed: {' '.join(command)}")
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=16, help="ranks of the monitored training")
    parser.add_argument("--keep", type=Path, help="directory that the pages are kept in")
    arguments = parser.parse_args()
    ours = shutil.which("msprobe", path=str(Path(sys.executable).parent))
    if ours is None:
        raise SystemExit("install msprobe-core first")
    print(f"{arguments.calls} calls, median of {arguments.runs} runs, {os.cpu_count()} cores")
    print(f"{'case':<22}{'wall s':>8}{'CPU s':>8}{'peak MB':>9}{'page MB':>9}")
    with tempfile.TemporaryDirectory() as scratch:
        for name, num_ranks, is_pair in (
            ("one run", 1, False), ("two runs", 1, True), ("two runs, 4 ranks", 4, True), ("monitored", 0, False),
        ):  # fmt: skip
            root = Path(scratch) / name.replace(" ", "_")
            if num_ranks:
                sides = [write_run(root / "target", arguments.calls, num_ranks, is_faulty=True)]
            else:
                sides = [Training(ranks=arguments.ranks, layers=124, steps=200).write(root / "target")]
            if is_pair:
                sides.append(write_run(root / "golden", arguments.calls, num_ranks, is_faulty=False))
            page = (arguments.keep or root) / f"{name.replace(' ', '_')}.html"
            command = [ours, "view", *map(str, sides), "-o", str(page)]
            walls, used, peaks = zip(*(run(command) for _ in range(arguments.runs)), strict=True)
            print(
                f"{name:<22}{statistics.median(walls):>8.2f}{statistics.median(used):>8.2f}{max(peaks):>9.0f}"
                f"{page.stat().st_size / 1e6:>9.1f}"
            )


if __name__ == "__main__":
    main()
