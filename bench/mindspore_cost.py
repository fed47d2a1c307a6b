"""Cost of recording MindSpore: the time of a training step with and without the probe, and the bytes written.

    python bench/mindspore_cost.py [--steps 15] [--variants nn mint] [--sizes small wide] [--against /path/to/python]

The Llama of examples/llama_pair in the dynamic graph, on the CPU, one operator at a time (`launch_blocking`): a step is
forward, backward and SGD. The small one is bound by launching operators; the layers of the wide one have 64 times as
many weights. Each case runs in a separate process, in which steps without and with the probe alternate, so that other
load slows both down; a recorded step is timed from before ``start`` to after ``step``. ``--against`` measures
another installation of a package ``msprobe.mindspore`` with the same interface, in its own virtual environment.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples/llama_pair"
SIZES = {"small": {}, "wide": {"vocab": 1000, "dim": 256, "heads": 8, "kv_heads": 4, "ffn": 688, "layers": 2}}
MODES = {"statistics": ("statistics", "statistics"), "md5": ("statistics", "md5"), "tensor": ("tensor", "statistics")}
NUM_WARM = 3


def make_step(case: dict):
    """Return the model, its optimizer, and a function that trains it for one step."""
    sys.path.insert(0, str(EXAMPLE))
    import mindspore as ms
    import mindspore_llama
    from llama_config import LlamaConfig, batch

    mindspore_llama.set_mode("pynative")
    config = LlamaConfig(**SIZES[case["size"]])
    model = mindspore_llama.build(config, case["variant"])
    parameters = model.trainable_params()
    optimizer = ms.nn.SGD(parameters, learning_rate=0.01)
    loss_and_gradients = ms.value_and_grad(mindspore_llama.WithLoss(model), None, parameters)
    tokens, labels = (ms.Tensor(array) for array in batch(config))

    def step() -> None:
        loss, gradients = loss_and_gradients(tokens, labels)
        optimizer(gradients)
        loss.asnumpy()

    return model, optimizer, step


def make_debugger(case: dict):
    """Return the debugger of the case."""
    from msprobe.mindspore import PrecisionDebugger

    root = Path(case["directory"])
    task, summary_mode = MODES[case["mode"]]
    options = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": summary_mode}
    settings = {"task": task, "dump_path": str(root / "run"), "rank": [], "step": [], "level": case["level"],
                "risk_level": "ALL", task: options}  # fmt: skip
    (root / "config.json").write_text(json.dumps(settings))
    return PrecisionDebugger(config_path=str(root / "config.json"))


def run_case(case: dict) -> dict:
    """Train with one setting in this process; return the times of both kinds of steps in seconds, and the bytes."""
    model, _, step = make_step(case)
    debugger = make_debugger(case)
    times: dict[str, list[float]] = {"bare": [], "recorded": []}
    for _ in range(case["steps"] + NUM_WARM):
        begin = time.perf_counter()
        step()
        middle = time.perf_counter()
        debugger.start(model)
        step()
        debugger.stop()
        debugger.step()
        times["bare"].append(middle - begin)
        times["recorded"].append(time.perf_counter() - middle)
    written = sum(path.stat().st_size for path in Path(case["directory"], "run").rglob("*") if path.is_file())
    return {**{kind: found[NUM_WARM:] for kind, found in times.items()}, "bytes": written / (case["steps"] + NUM_WARM)}


def measure(python: str, case: dict) -> dict:
    """Run one case in a separate process."""
    with tempfile.TemporaryDirectory() as directory:
        command = [python, __file__, "--case", json.dumps(case | {"directory": directory})]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or [f"{done.returncode}"]}
    return json.loads(done.stdout.splitlines()[-1])


def columns(result: dict) -> str:
    """Return the table's columns of one measurement."""
    if "error" in result:
        return f"{'failed':>11}{'':>11}{'':>9}{'':>8}{'':>9}   {result['error'][0][:100]}"
    bare, recorded = (statistics.median(result[kind]) for kind in ("bare", "recorded"))
    added = (recorded - bare) * 1000
    return (
        f"{bare * 1000:>11.1f}{recorded * 1000:>11.1f}{added:>9.1f}{recorded / bare:>8.2f}{result['bytes'] / 1e6:>9.2f}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--variants", nargs="+", choices=("nn", "mint"), default=["nn"])
    parser.add_argument("--levels", nargs="+", default=["L0", "L1", "mix"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--against", help="a Python with another msprobe.mindspore")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(run_case(json.loads(arguments.case))))
        return
    pythons = {"ours": sys.executable} | ({"other": arguments.against} if arguments.against else {})
    print(f"medians of {arguments.steps} steps; factor: recorded over bare, in the same process")
    print(f"{'':<35}{'bare ms':>11}{'recorded':>11}{'added':>9}{'factor':>8}{'MB/step':>9}")
    for size in arguments.sizes:
        for variant in arguments.variants:
            for level in arguments.levels:
                for mode in arguments.modes:
                    case = {"size": size, "variant": variant, "level": level, "mode": mode, "steps": arguments.steps}
                    for name, python in pythons.items():
                        line = f"{size:<7}{variant:<6}{level:<5}{mode:<11}{name:<6}"
                        print(line + columns(measure(python, case)), flush=True)


if __name__ == "__main__":
    main()
