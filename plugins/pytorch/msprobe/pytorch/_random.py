"""PyTorch's random functions and their sources of random numbers."""

from __future__ import annotations

import os

import torch

from msprobe.pytorch._dropout import DropoutKernels
from msprobe.pytorch._framework import PyTorchFramework
from msprobe.pytorch._random_state import TorchState
from msprobe.pytorch._releases import is_compiling
from msprobe_core.interception import RandomFunction, RandomLog

FAMILY = "torch"

_FUNCTIONS = (
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli",
    "multinomial", "poisson", "binomial", "rrelu", "rrelu_",
)  # fmt: skip

_METHODS = (
    "bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "multinomial", "normal_",
    "random_", "uniform_",
)  # fmt: skip


def torch_functions() -> list[RandomFunction]:
    """Return the random functions; dropout is watched by `DropoutKernels`."""
    functions = [RandomFunction(torch, name, FAMILY) for name in _FUNCTIONS if hasattr(torch, name)]
    return functions + [RandomFunction(torch.Tensor, name, FAMILY) for name in _METHODS]


def random_save(output_path: str | os.PathLike[str] = "./output") -> RandomLog:
    """Log every call of a random function of Python, NumPy and PyTorch from now on, with its stack.

    Rows go to ``{output_path}/random_rank{id}_{time}.csv``, outside of a job to ``random_proc{pid}_{time}.csv``. They
    are on disk before the function runs, so a killed process loses none.

    Args:
        output_path: Directory; created if it does not exist.

    Returns: a handle; its ``stop`` ends the log, and so does leaving it if used as a context manager.

    Raises:
        ConfigError: ``output_path`` is not a path.
        StoreError: the file cannot be created.
    """
    state = TorchState()
    log = RandomLog(
        output_path,
        PyTorchFramework(),
        functions=torch_functions(),
        states={FAMILY: state},
        steps_aside=is_compiling,
    )
    log.on_stop = DropoutKernels.watch(log.watch, state)
    return log
