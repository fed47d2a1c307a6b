"""Train a small Llama for one step while one call of one kernel is wrong, and record the step with its tensors.

python examples/check/record.py --dump demo_output/check/dump

There is no second run to compare with: `msprobe acc_check` finds the call among all others by itself.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import torch
from msprobe.pytorch import PrecisionDebugger, seed_all

sys.path.insert(0, str(Path(__file__).parents[1] / "demo"))

from train import batches, build_model, train_step  # from examples/demo

WRONG_CALL = 4
"""Number of the call that the wrong kernel serves: the activation of the layer with this number."""

BLOCK = 8
"""Number of elements at the end of a row that the wrong kernel computes in another way."""


@contextmanager
def wrong_kernel(number: int) -> Iterator[None]:
    """Let one call of ``silu`` be served by a wrong kernel, below what msprobe intercepts; its backward stays right.

    The last block of each row has a slope that is 2 % steeper.
    """
    kernel, calls = torch._C._nn.silu, count()

    def silu(values: torch.Tensor) -> torch.Tensor:
        result = kernel(values)
        if next(calls) == number:
            with torch.no_grad():
                tail = values[..., -BLOCK:]
                result[..., -BLOCK:] = tail * torch.sigmoid(1.02 * tail)
        return result

    torch._C._nn.silu = silu
    try:
        yield
    finally:
        torch._C._nn.silu = kernel


def main() -> None:
    """Train one step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dump", required=True, help="directory for the dump")
    arguments = parser.parse_args()

    seed_all(seed=1234, mode=True)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    debugger = PrecisionDebugger(dump_path=arguments.dump, task="tensor", level="mix", step=[0])
    with wrong_kernel(WRONG_CALL):
        debugger.start(model)
        loss = train_step(model, optimizer, next(batches(num_steps=1)))
        debugger.stop()
    debugger.step()
    print(f"one step with a wrong kernel in layer {WRONG_CALL}: loss {loss:.6f}")


if __name__ == "__main__":
    main()
