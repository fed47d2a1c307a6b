"""Cost of recording: the time of a training step with and without the probe, and the bytes written per step.

    python bench/capture_cost.py [--steps 7] [--threads 2] [--no-optimizer] [--alternate] [--against OTHER/bin/python]

Two Llamas with random weights: a small one, whose step is bound by launching operations, and a large one, bound by
memory bandwidth. Each case runs in a separate process; a step is timed from before ``start`` to after ``stop``, and the
result is the median over the steps after the first two. A step includes that of the optimizer, whose arithmetic on all
parameters is most of what is recorded of a large model; ``--no-optimizer`` leaves it out. ``--against`` measures
another installation of a package ``msprobe.pytorch`` with the same interface, for example mindstudio-probe in its own
virtual environment.

``--alternate`` alternates steps with and without the probe in one process, and shows the ratio of the two medians:
processes differ from each other by more than the probe costs a large model. It requires a probe without any cost when
it does not record, so it is not suitable for ``--against``.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODELS = {
    "small": {"sizes": {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4, "num_attention_heads": 8},
              "batch": (2, 64)},
    "large": {"sizes": {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4,
                        "num_attention_heads": 16}, "batch": (2, 256)},
}  # fmt: skip
MODES = [*(("statistics", mode) for mode in ("statistics", "md5", "xor", "hash", "sketch")), ("tensor", "statistics")]


def make_training(case: dict) -> tuple:
    """Return a model with random weights, its optimizer, and the tokens of a batch."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(case["threads"])
    torch.manual_seed(0)
    spec = MODELS[case["model"]]
    model = LlamaForCausalLM(LlamaConfig(vocab_size=512, max_position_embeddings=512, **spec["sizes"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return model, optimizer, torch.randint(512, spec["batch"])


def run_case(case: dict) -> dict:
    """Train with one setting in this process; return the times of the steps in seconds, and the bytes per step."""
    model, optimizer, tokens = make_training(case)
    debugger = None
    root = Path(case["directory"])
    if case["level"] is not None:
        from msprobe.pytorch import PrecisionDebugger

        options = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": case["summary_mode"]}
        task = case["task"]
        settings = {"task": task, "dump_path": str(root / "run"), "rank": [], "step": [], "level": case["level"],
                    "risk_level": "ALL", task: options}  # fmt: skip
        (root / "config.json").write_text(json.dumps(settings))
        debugger = PrecisionDebugger(config_path=str(root / "config.json"))
    times: list[float] = []
    bare: list[float] = []
    num_turns = 2 if case["alternate"] and debugger is not None else 1
    for i in range(num_turns * (case["steps"] + 2)):
        begin = time.perf_counter()
        records = debugger is not None and not case["idle"] and i % num_turns == num_turns - 1
        if records:
            debugger.start(model=model)
        model(input_ids=tokens, labels=tokens).loss.backward()
        if case["optimizer"]:
            optimizer.step()
            optimizer.zero_grad()
        if records:
            debugger.stop()
            debugger.step()
        (times if i % num_turns == num_turns - 1 else bare).append(time.perf_counter() - begin)
        if not case["optimizer"]:
            optimizer.step()
            optimizer.zero_grad()
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and path.name != "config.json")
    return {"times": times[2:], "bare": bare[2:], "bytes": size / len(times)}


def measure(python: str, case: dict) -> dict:
    """Run one case in a separate process."""
    with tempfile.TemporaryDirectory() as directory:
        program = json.dumps(case | {"directory": directory})
        done = subprocess.run(
            [python, __file__, "--case", program], capture_output=True, text=True, cwd=directory, check=False
        )
        if done.returncode:
            return {"error": done.stderr.strip().splitlines()[-1]}
        return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--modes", nargs="+", default=[mode for _, mode in MODES[:-1]] + ["tensor"])
    parser.add_argument("--no-optimizer", action="store_true", help="the window holds forward and backward only")
    parser.add_argument("--alternate", action="store_true", help="steps with and without the probe by turns")
    parser.add_argument("--against", help="a Python with another msprobe.pytorch")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alternate and arguments.against:
        parser.error("--alternate is not for --against: others cost time when they do not record, too")
    if arguments.case:
        print(json.dumps(run_case(json.loads(arguments.case))))
        return
    pythons = {"ours": sys.executable} | ({"other": arguments.against} if arguments.against else {})
    print(f"median of {arguments.steps} steps, {arguments.threads} threads; factor: over no probe")
    print(
        f"{'model':<7}{'level':<7}{'keeps':<12}"
        + "".join(f"{n + ' ms':>12}{'factor':>8}{'MB/step':>9}" for n in pythons)
    )
    for model in arguments.models:
        base = {"model": model, "steps": arguments.steps, "threads": arguments.threads, "level": None, "idle": False,
                "optimizer": not arguments.no_optimizer, "alternate": arguments.alternate}  # fmt: skip
        plain = statistics.median(measure(sys.executable, base)["times"])
        print(f"{model:<7}{'none':<7}{'':<12}{plain * 1000:>12.1f}{1:>8.2f}{0:>9.2f}")
        cases = [("idle", "mix", "statistics", "statistics")]
        modes = [mode for mode in MODES if (mode[0] if mode[0] == "tensor" else mode[1]) in arguments.modes]
        cases += [(level, level, *mode) for level in ("L0", "L1", "mix") for mode in modes]
        for label, level, task, summary_mode in cases:
            if model == "large" and task == "tensor":
                continue  # gigabytes per step: this would measure the disk
            keeps = "tensors" if task == "tensor" else summary_mode
            line = f"{model:<7}{label:<7}{'' if label == 'idle' else keeps:<12}"
            for python in pythons.values():
                chosen = {"level": level, "task": task, "summary_mode": summary_mode, "idle": label == "idle"}
                result = measure(python, base | chosen)
                if "error" in result:
                    line += f"{'failed':>12}{'':>8}{'':>9}"
                    continue
                median = statistics.median(result["times"])
                factor = median / statistics.median(result["bare"] or [plain])
                line += f"{median * 1000:>12.1f}{factor:>8.2f}{result['bytes'] / 1e6:>9.2f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
