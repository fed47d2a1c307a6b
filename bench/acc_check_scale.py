"""Measure `msprobe acc_check`: start-up, speed over a dump of thousands of calls, and memory of one large call.

python bench/acc_check_scale.py [--layers 24] [--side 4096]

A small Llama with many layers is recorded at level L1 with every API, and its dump is checked in one
process and in two. The large call is a product of two square matrices of `side` elements per side.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from msprobe.pytorch import PrecisionDebugger
from transformers import LlamaConfig, LlamaForCausalLM


def record_llama(place: Path, layers: int) -> Path:
    """Record one step of a Llama; return the directory of its dump."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, hidden_size=64, intermediate_size=172, num_hidden_layers=layers, num_attention_heads=4,
            num_key_value_heads=2,
        )
    )  # fmt: skip
    tokens = torch.randint(0, 256, (2, 64))
    debugger = _debugger(place)
    debugger.start(model)
    model(input_ids=tokens, labels=tokens).loss.backward()
    debugger.stop()
    debugger.step()
    debugger.close()
    return next(place.glob("dump/step0/*"))


def record_product(place: Path, side: int) -> Path:
    """Record the product of two square matrices; return the directory of its dump."""
    one, other = torch.randn(side, side), torch.randn(side, side)
    debugger = _debugger(place)
    debugger.start(None)
    torch.matmul(one, other)
    debugger.stop()
    debugger.step()
    debugger.close()
    return next(place.glob("dump/step0/*"))


def _debugger(place: Path) -> PrecisionDebugger:
    place.mkdir()
    config = {"task": "tensor", "level": "L1", "risk_level": "ALL", "dump_path": str(place / "dump")}
    (place / "config.json").write_text(json.dumps(config))
    return PrecisionDebugger(str(place / "config.json"))


def run_msprobe(*arguments: object) -> tuple[float, float, float]:
    """Run msprobe; return seconds of wall time and of CPU time, and the peak of the memory of one process in MiB."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "msprobe_core", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise SystemExit(f"{' '.join(command)}: failed")
    return time.perf_counter() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--side", type=int, default=4096)
    arguments = parser.parse_args()
    helps = [run_msprobe("acc_check", "--help")[0] for _ in range(7)]
    print(f"acc_check --help: median {statistics.median(helps):.2f} s of 7")
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        dump = record_llama(place / "llama", arguments.layers)
        for workers in (0, 2):
            out = place / f"out{workers}"
            wall, cpu, peak = run_msprobe("acc_check", "-api_info", dump, "-o", out, "-n", workers)
            content = json.loads((out / "acc_check.json").read_text())
            calls, counts = content["calls"], {name: num for name, num in content["counts"].items() if num}
            own = sum(call["seconds"] for call in calls)
            first = [call["seconds"] for call in calls if call["stage"] == 1 and call["outputs"]]
            print(f"{len(calls):,} calls, -n {workers}: wall {wall:.1f} s, CPU {cpu:.1f} s, peak {peak:,.0f} MiB")
            print(f"  {counts}")
            print(f"  in calls {own:.1f} s; of stage 1 {len(first):,}, {len(first) / sum(first):.0f} calls per second")
        dump = record_product(place / "product", arguments.side)
        small = record_product(place / "small", 4)
        idle = run_msprobe("acc_check", "-api_info", small, "-o", place / "idle", "-n", 0)[2]
        wall, cpu, peak = run_msprobe("acc_check", "-api_info", dump, "-o", place / "out", "-n", 0)
        own = 3 * 4 * arguments.side**2 / 2**20
        print(
            f"product of {arguments.side:,} x {arguments.side:,}: wall {wall:.1f} s, peak {peak:,.0f} MiB, "
            f"{idle:,.0f} MiB without it; its tensors have {own:,.0f} MiB: {(peak - idle) / own:.1f} times these"
        )


if __name__ == "__main__":
    main()
