"""Sizes, weights, batches and the fault, which both sides of the pair share; in NumPy, without a framework."""

from dataclasses import dataclass

import numpy as np

FAULTY_MODULE = "blocks.1.norm"  # its epsilon is FAULTY_EPS
FAULTY_EPS = 1e-2


@dataclass(frozen=True)
class ConvConfig:
    """Sizes of the model; images are square."""

    batch_size: int = 4
    image: int = 16
    channels: tuple[int, ...] = (3, 8, 12)
    classes: int = 10
    eps: float = 1e-5

    def blocks(self, has_fault: bool) -> list[tuple[int, int, float]]:
        """Return input channels, output channels and epsilon of each block."""
        epsilons = [self.eps, FAULTY_EPS if has_fault else self.eps]
        return list(zip(self.channels[:-1], self.channels[1:], epsilons, strict=True))


def weights(config: ConvConfig, seed: int = 4321) -> dict[str, np.ndarray]:
    """Return parameters and running statistics, float32, by their names in PyTorch."""
    random = np.random.RandomState(seed)
    arrays: dict[str, np.ndarray] = {}

    def normal(name: str, *shape: int, scale: float, offset: float = 0.0) -> None:
        arrays[name] = (offset + random.randn(*shape) * scale).astype(np.float32)

    for index, (before, after, _) in enumerate(config.blocks(has_fault=False)):
        prefix = f"blocks.{index}."
        normal(prefix + "conv.weight", after, before, 3, 3, scale=0.2)
        normal(prefix + "conv.bias", after, scale=0.1)
        normal(prefix + "norm.weight", after, scale=0.1, offset=1.0)
        normal(prefix + "norm.bias", after, scale=0.1)
        normal(prefix + "norm.running_mean", after, scale=0.1)
        normal(prefix + "norm.running_var", after, scale=0.05, offset=1.0)
    normal("head.weight", config.classes, config.channels[-1], scale=0.3)
    normal("head.bias", config.classes, scale=0.1)
    return arrays


def batch(config: ConvConfig, step: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return images, float32 [batch, channel, height, width], and labels, int32 [batch]."""
    random = np.random.RandomState(200 + step)
    images = random.randn(config.batch_size, config.channels[0], config.image, config.image).astype(np.float32)
    return images, random.randint(0, config.classes, config.batch_size).astype(np.int32)
