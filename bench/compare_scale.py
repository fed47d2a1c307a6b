"""Time `msprobe compare` on synthetic statistics dumps, as a whole process, and print a table.

    python bench/compare_scale.py [--apis 20000] [--runs 5] [--against /path/to/other/bin/msprobe]

Each API has two inputs and one output, so that 20,000 APIs are 60,000 rows; some cases have other sizes. ``--against``
runs the same comparisons with another command that has the same options, alternating with ours, for example that of
mindstudio-probe in its own virtual environment; the ratio of medians is printed.
"""

import argparse
import json
import multiprocessing
import os
import random
import resource
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """One comparison to time.

    Attributes:
        name: Name in the table.
        options: Options of the command.
        num_apis: Number of calls in each dump; ``None`` uses that of the command line.
        checksum: Whether the records have checksums.
        num_equal: Number of checksums out of ten that are equal on both sides.
        num_ranks: Number of dumps on each side; with more than one, the two sides are step directories.
        shuffles: Whether one side has neighbouring calls in another order.
        lacks: Whether one side lacks a call in the middle.
        is_foreign: Whether the golden side is of MindSpore.
        is_calibrated: Whether a noise profile is measured before, from one repetition of the golden side.
    """

    name: str
    options: tuple[str, ...] = ()
    num_apis: int | None = None
    checksum: bool = False
    num_equal: int = 0
    num_ranks: int = 1
    shuffles: bool = False
    lacks: bool = False
    is_foreign: bool = False
    is_calibrated: bool = False


LONG = 100_000
"""Number of calls of dumps whose rows are kept in files; they have three rows each."""

CASES = (
    Case("statistics to csv"),
    Case("statistics, 300,000 rows", num_apis=100_000),
    Case("statistics, 1,000,000 rows", num_apis=333_334),
    Case("statistics to xlsx", ("--xlsx",)),
    Case("md5, all differ", checksum=True),
    Case("md5, a tenth differs", checksum=True, num_equal=9),
    Case("fuzzy, 8,000 APIs", ("-fm",), num_apis=8000, shuffles=True),
    Case("-da, 4 ranks x 2,000", ("-da",), num_apis=2000, num_ranks=4),
    Case("long, a call lacks", num_apis=LONG, lacks=True),
    Case("long, --compat c", ("--compat", "c"), num_apis=LONG),
    Case("long, --compat a", ("--compat", "a"), num_apis=LONG),
    Case("long, -da, 2 ranks", ("-da",), num_apis=LONG, num_ranks=2),
    Case("long, 2 ranks", num_apis=LONG, num_ranks=2),
    Case("long, --noise closed", ("--noise", "closed"), num_apis=LONG),
    Case("long, --noise measured", ("--noise", "measured"), num_apis=LONG, is_calibrated=True),
    Case("long, two frameworks", num_apis=LONG, is_foreign=True),
)


def write_side(root: Path, case: Case, num_apis: int, seed: int) -> None:
    """Write one side of a comparison: a directory for each rank."""
    for rank in range(case.num_ranks):
        write_dump(
            root / f"rank{rank}",
            num_apis,
            noise=1e-4,
            checksum=case.checksum,
            seed=seed + 10 * rank,
            num_equal=case.num_equal,
            shuffles=case.shuffles and seed == 1,
            lacks=case.lacks and seed == 1,
            is_foreign=case.is_foreign and seed != 1,
        )


def write_dump(
    path: Path,
    num_apis: int,
    *,
    noise: float,
    checksum: bool,
    seed: int,
    num_equal: int = 0,
    shuffles: bool = False,
    lacks: bool = False,
    is_foreign: bool = False,
) -> None:
    """Write a dump of ``num_apis`` calls whose values differ between seeds by a relative ``noise``."""
    shared, own = random.Random(0), random.Random(seed)

    def value() -> float:
        return shared.uniform(-3, 3) * (1 + noise * own.uniform(-1, 1))

    def tensor() -> dict:
        types = ("mindspore.Tensor", "Float32") if is_foreign else ("torch.Tensor", "torch.float32")
        fields = {"type": types[0], "dtype": types[1], "shape": [2, 256, 1024]}
        fields |= {
            "Max": abs(value()),
            "Min": -abs(value()),
            "Mean": value() / 100,
            "Norm": abs(value()) * 100,
        }
        fields |= {"requires_grad": True}
        if checksum:
            source = shared if shared.randrange(10) < num_equal else own
            fields["md5"] = f"{source.getrandbits(32):08x}"
        return fields

    names = ["Functional.linear", "Tensor.__add__", "Tensor.__mul__", "Functional.softmax", "Torch.matmul"]
    if is_foreign:
        names = ["MintFunctional.linear", "Tensor.__add__", "Tensor.__mul__", "MintFunctional.softmax", "Mint.matmul"]
    data = {}
    for i in range(num_apis):
        record = {"input_args": [tensor(), tensor()], "input_kwargs": {}, "output": [tensor()]}
        data[f"{names[i % len(names)]}.{i // len(names)}.forward"] = record
    if lacks:
        del data[list(data)[num_apis // 2]]
    if shuffles:
        entries = list(data.items())
        for i in range(0, len(entries), 40):
            own.shuffle(block := entries[i : i + 40])
            entries[i : i + 40] = block
        data = dict(entries)
    path.mkdir(parents=True)
    header = {
        "task": "statistics",
        "level": "L1",
        "framework": "mindspore" if is_foreign else "pytorch",
        "dump_data_dir": None,
        "data": data,
    }
    (path / "dump.json").write_text(json.dumps(header))


def run(command: list[str], out: Path) -> tuple[float, float, float]:
    """Return wall and CPU seconds and peak memory in MB of one run, which must leave a table in ``out``."""
    begin = time.perf_counter()
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0), (os.POSIX_SPAWN_DUP2, 1, 2)]
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=silent)
    _, _, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - begin
    # The exit status does not show success: 1 means "different" for ours, but failure for others.
    if not any(out.rglob("*.*")):
        raise SystemExit(f"no table came out of: {' '.join(command)}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--apis", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--against", help="another msprobe command")
    parser.add_argument("--only", default="", help="cases whose names have this text")
    parser.add_argument("--long-apis", type=int, help=f"calls of the long dumps, {LONG:,} by default")
    arguments = parser.parse_args()

    ours = shutil.which("msprobe", path=str(Path(sys.executable).parent))
    if ours is None:
        raise SystemExit("install msprobe-core first")
    commands = {"ours": ours} | ({"other": arguments.against} if arguments.against else {})
    print(f"{arguments.apis} APIs, {3 * arguments.apis} rows, median of {arguments.runs} runs, {os.cpu_count()} cores")
    print(f"{'case':<28}{'command':<8}{'wall s':>8}{'min':>8}{'max':>8}{'CPU s':>8}{'peak MB':>9}")
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for i, case in enumerate(CASES):
            if arguments.only not in case.name:
                continue
            if case.num_apis == LONG and arguments.long_apis:
                case = replace(case, num_apis=arguments.long_apis)  # noqa: PLW2901  # the same case
            sides = [root / f"case{i}" / side for side in ("target", "golden")]
            for seed, side in enumerate(sides, 1):
                # In another process: the peak memory of a child starts at that of its parent.
                place = side / "step0" if case.is_calibrated else side
                writer = spawn.Process(target=write_side, args=(place, case, case.num_apis or arguments.apis, seed))
                writer.start()
                writer.join()
            if case.is_calibrated:
                repeat = root / f"case{i}" / "repeat"
                writer = spawn.Process(
                    target=write_side, args=(repeat / "step0", case, case.num_apis or arguments.apis, 3)
                )
                writer.start()
                writer.join()
                run([ours, "calibrate", str(sides[1]), str(repeat)], repeat)
            given = (
                sides if case.num_ranks > 1 or case.is_calibrated else [side / "rank0" / "dump.json" for side in sides]
            )
            paths = ["-tp", str(given[0]), "-gp", str(given[1])]
            times: dict[str, list[float]] = {name: [] for name in commands}
            cpu: dict[str, list[float]] = {name: [] for name in commands}
            peaks: dict[str, float] = {}
            for _ in range(arguments.runs):
                for name, command in commands.items():
                    out = root / f"case{i}/out_{name}"
                    shutil.rmtree(out, ignore_errors=True)
                    wall, used, peak = run([command, "compare", *paths, "-o", str(out), *case.options], out)
                    times[name].append(wall)
                    cpu[name].append(used)
                    peaks[name] = max(peak, peaks.get(name, 0))
            for name, walls in times.items():
                median = statistics.median(walls)
                used = statistics.median(cpu[name])
                print(
                    f"{case.name:<28}{name:<8}{median:>8.2f}{min(walls):>8.2f}{max(walls):>8.2f}{used:>8.2f}"
                    f"{peaks[name]:>9.0f}"
                )
            if len(times) == 2:
                ratio = statistics.median(times["other"]) / statistics.median(times["ours"])
                print(f"{'':<28}other/ours: {ratio:.1f}")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
