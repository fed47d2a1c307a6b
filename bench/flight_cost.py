"""Cost of the flight recorder: the time of a training step with it, relative to the time without.

    python bench/flight_cost.py [--steps 60] [--rounds 5] [--threads 1] [--width 128]

The small Llama of ``idle_cost.py``, whose step is bound by launching operations, the worst case for a cost per call;
``--width`` makes its tensors larger. Each state runs in a separate process, the states alternate, and the result is the
least of the medians of a state's rounds. Times are CPU times.
"""

import argparse
import json
import time
from pathlib import Path

from states import measure_in_turn

STATES = {"bare": None, "recorder": {}, "without weights": {"weights": False}}


def run_state(state: str, num_steps: int, num_threads: int, width: int) -> list[float]:
    """Train in this process; return the times of the steps in seconds."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(num_threads)
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=512, hidden_size=width, intermediate_size=8 * width // 3, num_hidden_layers=4,
                         num_attention_heads=8, max_position_embeddings=128)  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(512, (4, 128))
    recorder = None
    if STATES[state] is not None:
        from msprobe.pytorch import FlightRecorder

        recorder = FlightRecorder(model, "flight", **STATES[state])
    times = []
    for _ in range(num_steps + 5):
        begin = time.process_time()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if recorder is not None:
            recorder.step()
        times.append(time.process_time() - begin)
    return times[5:]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--state", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.state:
        print(json.dumps(run_state(given.state, given.steps, given.threads, given.width)))
        return
    options = ["--steps", str(given.steps), "--threads", str(given.threads), "--width", str(given.width)]
    medians = measure_in_turn(str(Path(__file__).absolute()), STATES, given.rounds, options)
    bare = min(medians["bare"])
    print(f"width {given.width}, least of {given.rounds} medians of {given.steps} steps, {given.threads} threads")
    print(f"{'state':<18}{'ms':>8}{'ratio':>8}")
    for state, found in medians.items():
        print(f"{state:<18}{min(found):>8.2f}{min(found) / bare:>8.3f}")


if __name__ == "__main__":
    main()
