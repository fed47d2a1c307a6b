"""Cost of the training monitor: the time of a training step with and without it.

    python bench/monitor_cost.py [--steps 15] [--threads 2] [--models large small] [--framework pytorch]

The Llamas of ``capture_cost.py``; of MindSpore, those of ``mindspore_cost.py``. Every second step is collected, so that
collected steps and others alternate in one process; the result is the ratio of the two medians. Hooks are set at the
end of the step before, once in a training that collects every step, so they are not part of it. ``off`` collects
nothing at all, which shows the noise. A step includes that of the optimizer, at whose end the monitor writes its files.

``MB read`` is what the collected statistics are of, by the shapes in the files: each is read once. ``floor`` is the
factor if nothing but reading the same number of bytes took time, at the rate at which PyTorch sums parameters of the
model here and now. ``--rows`` gives more text to the large model, whose step then takes longer while its parameters
stay the same.
"""

import argparse
import csv
import importlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_BYTES = {"float64": 8, "int64": 8, "bfloat16": 2, "float16": 2, "bool": 1}
FOUR = ["norm", "min", "max", "mean"]
MODELS = {"pytorch": ["large", "small"], "mindspore": ["wide", "small"]}
PLANS = {
    "off": {"wg_distribution": True, "start_step": 1_000_000},
    "wg, norm": {"wg_distribution": True, "ops": ["norm"]},
    "wg and parameters, norm": {"wg_distribution": True, "param_distribution": True, "ops": ["norm"]},
    "wg with sketches, norm": {"msprobe": {"sketch": "grad"}, "ops": ["norm"]},
    "xy, 4 operations": {"xy_distribution": True, "ops": FOUR},
    "xy, wg, mv, parameters, 4 operations": {
        **dict.fromkeys(("xy_distribution", "wg_distribution", "mv_distribution", "param_distribution"), True),
        "ops": FOUR,
    },
    "updates": {"ur_distribution": True},
    "directions": {"mg_direction": True},
    "wg, norm and 3 percentiles": {"wg_distribution": True, "ops": ["norm", "p01", "p50", "p99"]},
    "wg, norm and losses in 16 bits": {"wg_distribution": True, "ops": ["norm", "bf16_underflow", "fp16_underflow"]},
    "wg, norm and losses in 8 bits": {"wg_distribution": True, "ops": ["norm", "fp8_underflow", "fp8_overflow"]},
    "spectra of all linear layers": {
        "recording_l2_features": True,
        "l2_targets": {"linear_hook": ["model.layers.*_proj"]},
    },
}


def training_of(case: dict):
    """Return a model, its optimizer, and a function that trains it for one step."""
    if case["framework"] == "mindspore":
        from mindspore_cost import make_step

        return make_step({"size": case["model"], "variant": "nn"})
    from capture_cost import make_training

    model, optimizer, tokens = make_training(case)
    tokens = tokens.repeat(case["rows"], 1)

    def step() -> None:
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def run_case(case: dict) -> dict:
    """Train in this process; return the seconds of steps that are collected, and of the others."""
    model, optimizer, train = training_of(case)
    plan = Path("monitor.json")
    plan.write_text(json.dumps({"targets": {}, "step_interval": 2, **case["plan"]}))
    os.environ["MONITOR_OUTPUT_DIR"] = str(Path("out").absolute())
    trainer_mon = importlib.import_module(f"msprobe.{case['framework']}").TrainerMon
    monitor = trainer_mon(plan, params_have_main_grad=False)
    monitor.set_monitor(model, optimizer)
    clock = time.process_time if case["cpu_time"] else time.perf_counter
    times: dict[bool, list[float]] = {True: [], False: []}
    for step in range(2 * case["steps"] + 4):
        begin = clock()
        train()
        times[step % 2 == 0].append(clock() - begin)
    monitor.close()
    size = sum(path.stat().st_size for kind in ("*.csv", "*.msgpack") for path in Path("out").rglob(kind))
    count = len(times[True])
    rate = bytes_per_second(model, clock) if case["framework"] == "pytorch" else 0.0
    return {
        "collected": times[True][2:], "others": times[False][2:], "bytes": size / count, "read": bytes_read() / count,
        "rate": rate,
    }  # fmt: skip


def bytes_read() -> int:
    """Return the bytes of all tensors in the monitor's files."""
    found = 0
    for path in Path("out").rglob("*.csv"):
        with path.open(newline="") as file:
            found += sum(
                math.prod(json.loads(row["shape"])) * _BYTES.get(row["dtype"].rpartition(".")[2].lower(), 4)
                for row in csv.DictReader(file)
                if "shape" in row
            )
    return found


def bytes_per_second(model, clock) -> float:
    """Return how fast the parameters are summed: a loop that reads, and does nothing else that takes as long."""
    parameters = [parameter.detach() for parameter in model.parameters()]
    times: list[float] = []
    for _ in range(5):
        begin = clock()
        for parameter in parameters:
            parameter.sum()
        times.append(clock() - begin)
    return sum(parameter.nbytes for parameter in parameters) / statistics.median(times)


def measure(case: dict) -> dict:
    """Run one case in a separate process."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, str(Path(__file__).absolute()), "--case", json.dumps(case)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=directory, check=True)
        return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--framework", choices=MODELS, default="pytorch")
    parser.add_argument("--models", nargs="+", help="those of the framework by default")
    parser.add_argument("--cpu-time", action="store_true", help="of the process, on a machine that others use too")
    parser.add_argument("--rows", type=int, default=1, help="how many times as many sequences in a batch")
    parser.add_argument("--cases", nargs="+", default=list(PLANS), help="names of what is collected")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(run_case(json.loads(arguments.case))))
        return
    print(f"medians of {arguments.steps} steps with and without, {arguments.threads} threads")
    columns = f"{'bare ms':>9}{'ms':>9}{'factor':>8}{'kB/step':>9}{'MB read':>9}{'GB/s':>6}{'floor':>7}"
    print(f"{'model':<7}{'collected':<40}{columns}")
    for model in arguments.models or MODELS[arguments.framework]:
        for name in arguments.cases:
            base = {"framework": arguments.framework, "model": model, "plan": PLANS[name]}
            base |= {each: getattr(arguments, each) for each in ("rows", "steps", "threads", "cpu_time")}
            found = measure(base)
            bare, collected = (1000 * statistics.median(found[key]) for key in ("others", "collected"))
            floor = 1 + 1000 * found["read"] / found["rate"] / bare if found["rate"] else math.nan
            print(
                f"{model:<7}{name:<40}{bare:>9.1f}{collected:>9.1f}{collected / bare:>8.3f}"
                f"{found['bytes'] / 1000:>9.1f}{found['read'] / 1e6:>9.1f}{found['rate'] / 1e9:>6.1f}{floor:>7.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
