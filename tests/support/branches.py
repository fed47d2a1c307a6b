"""Modules that use their argument twice, and it comes from a node of autograd, for tests of gradients that are sums."""

from torch import nn


class Two(nn.Module):
    """Two results, each of which has a use of the argument of its own."""

    def forward(self, x):
        return x * 2, x * 3


class Scaled(nn.Module):
    """A module, called ``two``, whose argument is no leaf."""

    def __init__(self, two):
        super().__init__()
        self.two = two

    def forward(self, x):
        return self.two(x * 1)
