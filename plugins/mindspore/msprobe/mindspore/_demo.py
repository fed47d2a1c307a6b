"""Train a tiny model for one step, and record the step; `msprobe demo` runs this program.

python train.py DIRECTORY [--fault]
"""

import sys

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

from msprobe.mindspore import PrecisionDebugger, seed_all


class Block(nn.Cell):
    """A residual block, as transformers have it."""

    def __init__(self, width, epsilon):
        super().__init__()
        self.norm = nn.LayerNorm((width,), epsilon=epsilon)
        self.up = nn.Dense(width, 4 * width)
        self.down = nn.Dense(4 * width, width)

    def construct(self, x):
        """Normalise, widen, narrow, add."""
        return x + self.down(ops.gelu(self.up(self.norm(x))))


def main():
    """Train one step, and print the loss."""
    seed_all(1234)
    epsilons = [1e-5, 1e-5, 1e-3 if "--fault" in sys.argv else 1e-5, 1e-5]
    model = nn.SequentialCell(nn.Embedding(64, 32), *(Block(32, each) for each in epsilons), nn.Dense(32, 64))
    tokens = Tensor(np.random.default_rng(0).integers(0, 64, (8, 16)), mindspore.int32)

    def forward(tokens):
        return ops.cross_entropy(model(tokens).reshape(-1, 64), tokens.reshape(-1))

    debugger = PrecisionDebugger(dump_path=sys.argv[1], level="mix")
    debugger.start(model)
    loss, _ = mindspore.value_and_grad(forward, None, model.trainable_params())(tokens)
    debugger.stop()
    debugger.step()
    print(f"{loss.asnumpy():.6f}")


if __name__ == "__main__":
    main()
