"""Cost of checking calls while training: the share of the time that the task ``acc_check`` takes.

    python bench/acc_check_cost.py [--seconds 90] [--budget 0.05] [--threads 1] [--models small large] [--cpu-time]
                                 [--task free_benchmark --pert-mode bit_noise]

The Llamas of ``capture_cost.py``. The share is that by which sampled steps exceed the medians of the five steps before
each, of the time of all steps; the first step, in which PyTorch allocates, is compared with those after it. Beside it
is the share that the check has measured itself by the clock on the wall, which is what it keeps below its budget, its
two parts in seconds, and what the time was used for. ``--cpu-time`` counts the time of the process, on a machine that
others use too.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def run_case(case: dict) -> dict:
    """Train in this process; return the seconds of steps with and without the check, and its totals."""
    from capture_cost import make_training
    from msprobe.pytorch import PrecisionDebugger

    model, optimizer, tokens = make_training(case)
    clock = time.process_time if case["cpu_time"] else time.perf_counter
    task, options = case["task"], {"budget": case["budget"]}
    if task == "free_benchmark":
        options |= {"pert_mode": case["pert_mode"], "max_sample": 1_000_000}
    Path("config.json").write_text(json.dumps({"task": task, task: options}))

    def train(seconds: float, debugger: PrecisionDebugger) -> list[float]:
        times: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            begin = clock()
            debugger.start(model)
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            debugger.stop()
            debugger.step()
            times.append(clock() - begin)
        return times

    debugger = PrecisionDebugger("config.json", dump_path="run")
    times = train(case["seconds"], debugger)
    debugger.close()
    sampled = sorted(int(path.name.removeprefix("step")) for path in Path("run").glob("step*"))
    plain = [number for number in range(len(times)) if number not in set(sampled)]
    excess = 0.0
    for number in sampled:
        near = [times[other] for other in plain if other < number][-5:] or [times[other] for other in plain[:5]]
        excess += times[number] - statistics.median(near)
    (coverage,) = Path("run").glob(f"{task}_coverage_*.json")
    totals = json.loads(coverage.read_text())["totals"]
    size = sum(path.stat().st_size for path in Path("run").rglob("*") if path.is_file())
    bare = statistics.median(times[number] for number in plain)
    return {"bare": bare, "share": excess / sum(times), "totals": totals, "bytes": size}


def measure(case: dict) -> dict:
    """Run one case in a separate process."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, str(Path(__file__).absolute()), "--case", json.dumps(case)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=directory, check=True)
        return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--budget", type=float, default=0.05)
    parser.add_argument("--task", choices=["acc_check", "free_benchmark"], default="acc_check")
    parser.add_argument("--pert-mode", default="bit_noise")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--models", nargs="+", default=["small", "large"])
    parser.add_argument("--cpu-time", action="store_true", help="of the process, on a machine that others use too")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(run_case(json.loads(arguments.case))))
        return
    print(f"budget {arguments.budget}, {arguments.threads} threads, {arguments.seconds:.0f} s")
    print(
        f"{'model':<7}{'bare ms':>9}{'share':>8}{'own':>8}{'steps':>7}{'sampled':>9}{'calls':>7}{'kinds':>12}{'kB':>7}"
    )
    for model in arguments.models:
        keys = ("seconds", "budget", "threads", "cpu_time", "task", "pert_mode")
        case = {key: getattr(arguments, key) for key in keys}
        found = measure({"model": model, **case})
        totals = found["totals"]
        print(
            f"{model:<7}{1000 * found['bare']:>9.1f}{found['share']:>8.3f}{totals['share']:>8.3f}"
            f"{totals['check_s']:>8.2f}"
            f"{totals['recording_s']:>7.2f}{totals['num_steps']:>7}{totals['num_recorded']:>9}{totals['num_calls']:>7}"
            f"{totals['num_kinds_checked']:>6} of {totals['num_kinds']:<3}{found['bytes'] / 1000:>6.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
