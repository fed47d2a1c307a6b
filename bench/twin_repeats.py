"""Plant calls that give another result each time in a training step, and see whether `msprobe twin repeats` names them.

    python -m bench.twin_repeats [--models llama,gpt2] [--dtypes fp32,bf16]

A race adds up in an order that differs from time to time, in the kernels of sums and means, as atomic additions do; a
dropout draws from a generator without a seed. A healthy step has to be bitwise the same.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from msprobe.pytorch import PrecisionDebugger, repeats

from bench.faults.training import Training
from bench.free_benchmark_faults import FAULTS, planted
from msprobe_core.store import layout
from msprobe_core.twin.repeats import StepRepeats, read_repeats

_UNSEEDED = random.SystemRandom()


def _hidden(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel whose own operations are not seen, as those of a device."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return kernel(*args, **kwargs)

    return run


def _sum(_: Training) -> AbstractContextManager[None]:
    return planted({name: _hidden(kernel) for name, kernel in FAULTS["race"][0].items()})


@contextmanager
def _dropout(training: Training) -> Iterator[None]:
    module = training.part("down")
    forward = module.forward

    def dropped(x: torch.Tensor) -> torch.Tensor:
        state = torch.get_rng_state()
        torch.manual_seed(_UNSEEDED.randrange(1 << 31))
        x = torch.nn.functional.dropout(forward(x), 0.1)
        torch.set_rng_state(state)
        return x

    module.forward = dropped
    yield
    module.forward = forward


PLANTS: dict[str, tuple[Callable[[Training], AbstractContextManager[None]], str]] = {
    "sum in any order": (_sum, "sum mean norm softmax addmm"),
    "dropout without a seed": (_dropout, "dropout"),
    "nothing": (lambda _: nullcontext(), ""),
}
"""Plants, and words of which the named call has one. The backward of addmm adds up the gradient of its bias."""


def repeated_step(training: Training, plant: AbstractContextManager[None], place: Path) -> StepRepeats:
    """Record a step and two repetitions; return what they show."""
    layout.make_directory(place)
    config = place / "config.json"
    fields = {"level": "mix", "dump_path": str(place / "run"), "statistics": {"summary_mode": "hash"}}
    config.write_text(json.dumps(fields))
    debugger = PrecisionDebugger(str(config))
    with plant, repeats(debugger, training.model, [training.optimizer]) as runs:
        for _ in runs:
            training.step(0)
    debugger.close()
    (found,) = read_repeats(place / "run")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="llama,gpt2,bert,t5,moe,gemma2")
    parser.add_argument("--dtypes", default="fp32,bf16")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    random.sample = _UNSEEDED.sample  # the state of the module's own generator is put back before each repetition
    right = total = 0
    for model in arguments.models.split(","):
        for dtype in arguments.dtypes.split(","):
            for name, (plant, words) in PLANTS.items():
                training = Training(model, dtype)
                with tempfile.TemporaryDirectory() as work:
                    found = repeated_step(training, plant(training), Path(work) / "place")
                first = found.first
                if first is None:
                    is_right = not words
                else:
                    is_right = bool(words) and any(word in first.entry.lower() for word in words.split())
                    is_right = is_right and not first.inputs
                total, right = total + 1, right + is_right
                said = "the same" if first is None else f"{first.entry} {first.inputs or ''}"
                print(f"{'right' if is_right else 'OTHER':5} {model} {dtype} {name}: {said}", flush=True)
    print(f"{right} of {total}")


if __name__ == "__main__":
    main()
