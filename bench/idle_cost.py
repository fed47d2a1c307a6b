"""Cost of a debugger that does not record: the time of a training step, relative to that in a process without probe.

    python bench/idle_cost.py [--steps 60] [--rounds 5] [--threads 1]

A small Llama with random weights, whose step is bound by launching operations, the worst case. Each state runs in a
separate process, the states alternate, and the result is the least of the medians of a state's rounds: other load on
the machine can only increase times. Times are CPU times on one thread, for the same reason. They include ``start``,
``stop`` and ``step``.
"""

import argparse
import json
import time
from pathlib import Path

from states import measure_in_turn

STATES = {
    "no probe": None,
    "imported": {},
    "constructed": {},
    "unselected step": {"step": [1000000]},
    "unselected rank": {"rank": [5]},
    "switched off": {"dump_enable": False},
    "finished": {"step": [0]},
    "stopped": {},
}


def run_state(state: str, num_steps: int, num_threads: int) -> list[float]:
    """Train in this process; return the times of the steps in seconds."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(num_threads)
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=512, hidden_size=128, intermediate_size=344, num_hidden_layers=4,
                         num_attention_heads=8, max_position_embeddings=128)  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(512, (2, 64))
    settings = STATES[state]
    debugger = None
    if settings is not None:
        from msprobe.pytorch import PrecisionDebugger

        if state != "imported":
            Path("c.json").write_text(json.dumps({"level": "mix", "dump_path": "run", **settings}))
            debugger = PrecisionDebugger("c.json")
    starts = debugger is not None and state not in {"constructed", "stopped"}

    def train() -> None:
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    if state == "stopped":
        debugger.start(model)
        train()
        debugger.stop()
    times = []
    for _ in range(num_steps + 5):
        begin = time.process_time()
        if starts:
            debugger.start(model)
        train()
        if starts:
            debugger.stop()
            debugger.step()
        times.append(time.process_time() - begin)
    return times[5:]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--state", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.state:
        print(json.dumps(run_state(arguments.state, arguments.steps, arguments.threads)))
        return
    options = ["--steps", str(arguments.steps), "--threads", str(arguments.threads)]
    medians = measure_in_turn(str(Path(__file__).absolute()), STATES, arguments.rounds, options)
    plain = min(medians["no probe"])
    print(f"least of {arguments.rounds} medians of {arguments.steps} steps, {arguments.threads} threads")
    print(f"{'state':<18}{'ms':>8}{'ratio':>8}{'rounds from':>14}{'to':>8}")
    for state, found in medians.items():
        low, high = min(found), max(found)
        print(f"{state:<18}{low:>8.2f}{min(found) / plain:>8.3f}{low:>14.2f}{high:>8.2f}")


if __name__ == "__main__":
    main()
