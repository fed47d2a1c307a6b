"""A small convolutional net with batch normalisation in PyTorch."""

import torch
import torch.nn.functional as F  # noqa: N812
from conv_config import ConvConfig, weights
from torch import nn


class Block(nn.Module):
    def __init__(self, before: int, after: int, eps: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, padding=1)
        self.norm = nn.BatchNorm2d(after, eps=eps)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        return self.pool(self.relu(self.norm(self.conv(x))))


class ConvNet(nn.Module):
    def __init__(self, config: ConvConfig, has_fault: bool) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Block(*sizes) for sizes in config.blocks(has_fault)])
        self.head = nn.Linear(config.channels[-1], config.classes)

    def forward(self, images):
        return self.head(self.blocks(images).mean((2, 3)))


def build(config: ConvConfig, has_fault: bool = False) -> ConvNet:
    """Return the model in training mode, with the shared weights and, on request, a wrong epsilon."""
    model = ConvNet(config, has_fault)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights(config).items()})
    return model.train()


def loss_function(logits, labels):
    """Return the cross entropy of logits [batch, class] and labels [batch]."""
    return F.cross_entropy(logits, labels)
