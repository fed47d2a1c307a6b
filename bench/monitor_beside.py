"""The training monitor beside that of mindstudio-probe: time of a step, size of the files, and the values in them.

    python bench/monitor_beside.py --theirs /path/of/another/venv/bin/python [--steps 9] [--threads 2] [--cpu-time]

The other interpreter has ``mindstudio-probe``, PyTorch and transformers. Each case trains the small Llama of
``capture_cost.py`` in a process of its own: without a monitor, with ours and with theirs, which collects the same
quantities in every second step. Times are medians; values are compared place by place.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from capture_cost import make_training
from monitor_cost import PLANS

COMPARED = ("norm", "min", "max", "mean")
SHARED = (
    "off", "wg, norm", "wg and parameters, norm", "xy, 4 operations", "xy, wg, mv, parameters, 4 operations",
)  # fmt: skip
"""What both collect."""


def run_case(case: dict) -> dict:
    """Train in this process; return the seconds of steps that are collected, and of the others."""
    model, optimizer, tokens = make_training(case)
    os.environ["MONITOR_OUTPUT_DIR"] = str(Path("out").absolute())
    if case["plan"] is not None:
        plan = Path("monitor.json")
        plan.write_text(json.dumps({"targets": {}, "step_interval": 2, "ndigits": 12, **case["plan"]}))
        with contextlib.redirect_stdout(sys.stderr):
            from msprobe.pytorch import TrainerMon

            monitor = TrainerMon(str(plan), params_have_main_grad=False)
            monitor.set_monitor(model, optimizer)
    clock = time.process_time if case["cpu_time"] else time.perf_counter
    times: dict[bool, list[float]] = {True: [], False: []}
    with contextlib.redirect_stdout(sys.stderr):
        for step in range(2 * case["steps"] + 4):
            begin = clock()
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            times[step % 2 == 0].append(clock() - begin)
    return {"collected": times[True][2:], "others": times[False][2:]}


def measure(python: str, directory: Path, case: dict) -> tuple[float, float]:
    """Run one case in a separate process; return the medians of collected steps and of the others, in ms."""
    command = [python, str(Path(__file__).absolute()), "--case", json.dumps(case)]
    directory.mkdir()
    done = subprocess.run(command, capture_output=True, text=True, cwd=directory, check=False)
    if done.returncode:
        sys.exit(f"{python}: {done.stderr.strip()[-2000:]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return 1000 * statistics.median(found["collected"]), 1000 * statistics.median(found["others"])


def agreement(ours: Path, theirs: Path) -> str:
    """Return how many values both have, and how far apart they are at most."""
    import polars as pl

    from msprobe_core.monitoring.files import read_monitored

    keys = ["quantity", "stage", "name", "micro_step", "step"]
    one, other = (read_monitored(path).frame for path in (ours, theirs))
    both = one.join(other, on=keys, how="inner", suffix="_theirs", nulls_equal=True)
    columns = [name for name in COMPARED if name in one.columns]
    # Means cancel, so they are compared in units of the norm per element's largest magnitude.
    size = pl.max_horizontal(*(pl.col(name).abs() for name in columns))
    far = [((pl.col(name) - pl.col(f"{name}_theirs")).abs() / (size + 1e-12)).max() for name in columns]
    furthest = both.select(pl.max_horizontal(*far)).item()
    return f"{both.height} of our {one.height} and their {other.height} rows are shared; furthest apart {furthest:.1e}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--theirs", help="interpreter that has mindstudio-probe")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="of the process, on a machine that others use too")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(run_case(json.loads(arguments.case))))
        return
    if not arguments.theirs:
        parser.error("--theirs is required")
    print(f"{'collected':<40}{'bare ms':>9}{'ours':>9}{'theirs':>9}   {'others: ours':>12}{'theirs':>9}")
    for name in SHARED:
        plan, base = PLANS[name], {"model": "small", "steps": arguments.steps, "threads": arguments.threads}
        base |= {"framework": "pytorch", "cpu_time": arguments.cpu_time}
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(temporary)
            bare = measure(sys.executable, directory / "bare", {**base, "plan": None})[1]
            ours = measure(sys.executable, directory / "ours", {**base, "plan": plan})
            theirs = measure(arguments.theirs, directory / "theirs", {**base, "plan": plan})
            factors = [each / bare for each in (ours[0], theirs[0], ours[1], theirs[1])]
            print(
                f"{name:<40}{bare:>9.1f}{factors[0]:>9.2f}{factors[1]:>9.2f}   {factors[2]:>12.2f}{factors[3]:>9.2f}",
                flush=True,
            )
            if name != "off":
                print(f"  {agreement(directory / 'ours' / 'out', directory / 'theirs' / 'out')}", flush=True)


if __name__ == "__main__":
    main()
