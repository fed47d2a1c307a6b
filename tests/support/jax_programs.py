"""A small network in flax and in PyTorch, with equal weights, and one training step of each."""

from __future__ import annotations

from typing import Any

import flax.linen as flax_nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

LEARNING_RATE = 0.1


def weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    shapes = {"embed.weight": (11, 8), "block.up.weight": (16, 8), "block.up.bias": (16,), "block.down.weight": (8, 16),
              "block.norm.weight": (8,), "block.norm.bias": (8,), "head.weight": (5, 8)}  # fmt: skip
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


TOKENS, LABELS = (np.random.default_rng(4).integers(0, n, (2, 6)) for n in (11, 5))


class FlaxBlock(flax_nn.Module):
    scale: float = 1.0

    def setup(self) -> None:
        self.up = flax_nn.Dense(16)
        self.down = flax_nn.Dense(8, use_bias=False)
        self.norm = flax_nn.LayerNorm(epsilon=1e-5)

    def __call__(self, x: Any, *, gain: float = 1.0) -> Any:
        return self.norm(x + self.down(jax.nn.relu(self.up(x))) * self.scale * gain)


class FlaxNet(flax_nn.Module):
    scale: float = 1.0

    def setup(self) -> None:
        self.embed = flax_nn.Embed(11, 8)
        self.block = FlaxBlock(self.scale)
        self.head = flax_nn.Dense(5, use_bias=False)

    def __call__(self, tokens: Any) -> Any:
        return self.head(self.block(self.embed(tokens), gain=0.5))


def flax_parameters(arrays: dict[str, np.ndarray]) -> Any:
    names = {"embed.weight": "embedding", "block.norm.weight": "scale"}
    tree: dict[str, Any] = {}
    for full, array in arrays.items():
        *path, name = full.split(".")
        place = tree
        for part in path:
            place = place.setdefault(part, {})
        is_matrix = name == "weight" and full not in names
        place[names.get(full, "kernel" if is_matrix else name)] = jnp.asarray(array.T if is_matrix else array)
    return tree


class FlaxRun:
    """A network of flax with its parameters and the gradients of its last step."""

    def __init__(self, *, scale: float = 1.0, compiled: bool = False) -> None:
        self.model = FlaxNet(scale)
        self.parameters = flax_parameters(weights())
        self.gradients: Any = None
        self.loss_of = jax.value_and_grad(self._loss)
        if compiled:
            self.loss_of = jax.jit(self.loss_of)

    def _loss(self, parameters: Any) -> Any:
        scores = self.model.apply({"params": parameters}, jnp.asarray(TOKENS))
        picked = jnp.take_along_axis(jax.nn.log_softmax(scores), jnp.asarray(LABELS)[..., None], -1)
        return -picked.mean()

    def step(self) -> float:
        loss, self.gradients = self.loss_of(self.parameters)
        self.parameters = jax.tree.map(
            lambda own, gradient: own - LEARNING_RATE * gradient, self.parameters, self.gradients
        )
        return float(loss)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8, bias=False), nn.LayerNorm(8)

    def forward(self, x: Any, *, gain: float = 1.0) -> Any:
        return self.norm(x + self.down(torch.relu(self.up(x))) * gain)


class TorchNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(11, 8), Block(), nn.Linear(8, 5, bias=False)
        self.load_state_dict({name: torch.from_numpy(array) for name, array in weights().items()})

    def forward(self, tokens: Any) -> Any:
        return self.head(self.block(self.embed(tokens), gain=0.5))


def torch_step(model: TorchNet) -> float:
    scores = model(torch.from_numpy(TOKENS))
    loss = nn.functional.cross_entropy(scores.reshape(-1, 5), torch.from_numpy(LABELS).reshape(-1))
    loss.backward()
    return loss.item()
