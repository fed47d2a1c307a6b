"""Train a tiny model for one step, and record the step; `msprobe demo` runs this program.

python train.py DIRECTORY [--fault]
"""

import sys

import torch
from torch import nn
from torch.nn import functional

from msprobe.pytorch import PrecisionDebugger, seed_all


class Block(nn.Module):
    """A residual block, as transformers have it."""

    def __init__(self, width, eps):
        super().__init__()
        self.norm = nn.LayerNorm(width, eps)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        """Normalise, widen, narrow, add."""
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def main():
    """Train one step, and print the loss."""
    seed_all(1234)
    every_eps = [1e-5, 1e-5, 1e-3 if "--fault" in sys.argv else 1e-5, 1e-5]
    model = nn.Sequential(nn.Embedding(64, 32), *(Block(32, eps) for eps in every_eps), nn.Linear(32, 64))
    tokens = torch.randint(64, (8, 16))

    debugger = PrecisionDebugger(dump_path=sys.argv[1], level="mix")
    debugger.start(model)
    loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    debugger.stop()
    debugger.step()
    print(f"{loss.item():.6f}")


if __name__ == "__main__":
    main()
