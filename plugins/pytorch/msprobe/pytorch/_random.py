"""PyTorch's random functions and their sources of random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from msprobe.pytorch._dropout import DropoutKernels
from msprobe.pytorch._random_state import TorchState
from msprobe.pytorch._torch_releases import is_compiling
from msprobe_core.interception import RandomFunction, RandomWatch, common_states
from msprobe_core.plugin import RandomDraw

FAMILY = "torch"

_FUNCTIONS = (
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli",
    "multinomial", "poisson", "binomial", "rrelu", "rrelu_",
)  # fmt: skip

_METHODS = (
    "bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "multinomial", "normal_",
    "random_", "uniform_",
)  # fmt: skip


_SEEDING = ("manual_seed", "seed")


def torch_functions() -> list[RandomFunction]:
    """Return the random functions; dropout is watched by `DropoutKernels`."""
    functions = [RandomFunction(torch, name, FAMILY) for name in _FUNCTIONS if hasattr(torch, name)]
    return functions + [RandomFunction(torch.Tensor, name, FAMILY) for name in _METHODS]


def watch_random(draws: Callable[[RandomDraw], Any], *, has_dropout: bool, has_seeding: bool) -> Callable[[], None]:
    """See `msprobe_core.plugin.RandomFramework.watch_random`."""
    state = TorchState()
    functions = torch_functions()
    if has_seeding:
        functions += [RandomFunction(torch, name, FAMILY) for name in _SEEDING]
    watch = RandomWatch(draws, functions, {**common_states(), FAMILY: state}, steps_aside=is_compiling)
    watch.install()
    end_dropout = DropoutKernels.watch(watch, state) if has_dropout else None

    def end() -> None:
        watch.remove()
        if end_dropout is not None:
            end_dropout()

    return end
