"""What a follower costs: CPU time of a step, beside that of a training that records the same without following.

    python -m bench.twin_cost [--steps 12] [--rounds 3] [--budget 0.05]

Both record sketches of all steps at level mix. Rounds alternate; the first three steps of each are left out, and what
follows the last step, too. The machine's other programs count little, because CPU time is measured and not wall time.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
import transformers
from msprobe.pytorch import PrecisionDebugger

MODELS = {"small": (64, 2, 32), "large": (512, 6, 256)}
"""Width, layers and tokens of a Llama."""


def train(size: str, place: Path, twin: dict[str, object] | None, num_steps: int) -> list[float]:
    """Train and record; return the CPU time of each step, in seconds."""
    width, layers, tokens = MODELS[size]
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=1024, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
            num_attention_heads=4,
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    config = {"level": "mix", "dump_path": str(place), "statistics": {"summary_mode": "sketch"}, "manifest": False}
    path = place.with_suffix(".json")
    path.write_text(json.dumps(config | ({} if twin is None else {"twin": twin})))
    debugger = PrecisionDebugger(str(path))
    times: list[float] = []
    for step in range(num_steps):
        torch.manual_seed(step)
        ids = torch.randint(2, 1024, (2, tokens))
        begin = time.process_time()
        debugger.start(model)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
        times.append(time.process_time() - begin)
    debugger.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="small,large")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=0.05)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    for size in arguments.sizes.split(","):
        ratios: list[float] = []
        for number in range(arguments.rounds):
            with tempfile.TemporaryDirectory() as work:
                places = [Path(work) / name for name in ("leader", "follower")]
                plain = train(size, places[0], None, arguments.steps)[3:]
                twin = {"leader": str(places[0]), "budget": arguments.budget}
                followed = train(size, places[1], twin, arguments.steps)[3:]
                (file,) = places[1].glob("twin_*.jsonl")
                judged = len(file.read_text().splitlines())
            ratios.append(sum(followed) / sum(plain))
            print(f"{size} {number}: {sum(plain):.2f} s, {sum(followed):.2f} s, {judged} steps judged", flush=True)
        print(f"{size}: ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})", flush=True)


if __name__ == "__main__":
    sys.exit(main())
