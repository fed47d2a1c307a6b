"""MindSpore's random functions and their sources of random numbers."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import mindspore as ms
from mindspore import Tensor, mint, ops

from msprobe.mindspore._framework import MindSporeFramework
from msprobe.mindspore._jit import is_tracing
from msprobe.mindspore._quiet import RecordingGuard
from msprobe_core.interception import RandomFunction, RandomLog

_seeds: Any = import_module("mindspore.common.seed")  # the package has a function of that name
_layers: Any = mint.nn

FAMILY = "mindspore"

_FUNCTIONS = (
    "bernoulli", "choice_with_mask", "dropout", "dropout1d", "dropout2d", "dropout3d", "gamma", "gumbel_softmax",
    "laplace", "multinomial", "multinomial_with_replacement", "normal", "poisson", "rand", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "random_gamma", "random_poisson", "randperm", "rrelu", "shuffle",
    "standard_laplace", "standard_normal", "uniform",
)  # fmt: skip

_METHODS = ("bernoulli", "bernoulli_", "exponential_", "multinomial", "normal_", "random_", "uniform_")

_LAYERS = ("Dropout", "Dropout2D", "Dropout3D")
"""Operators that Cells hold and that draw from a state of their own, which cannot be restored."""


class MindSporeState:
    """The default generator, and how often each seeded operator has drawn; compare `RandomState` of the core."""

    def get(self) -> Any:
        """Return the state."""
        with RecordingGuard():
            return ms.get_rng_state().copy(), dict(_seeds._KERNEL_SEED)

    def set(self, state: Any) -> None:
        """Restore a state; an operator that has drawn for the first time since then starts again."""
        generator, counts = state
        with RecordingGuard():
            ms.set_rng_state(generator.copy())
        _seeds._KERNEL_SEED.clear()
        _seeds._KERNEL_SEED.update(counts)


def mindspore_functions() -> list[RandomFunction]:
    """Return the random functions of this release."""
    owners: list[tuple[Any, tuple[str, ...]]] = [
        (ops, _FUNCTIONS),
        (mint, _FUNCTIONS),
        (_layers.functional, _FUNCTIONS),
        (Tensor, _METHODS),
        *[(getattr(ops, name), ("__call__",)) for name in _LAYERS],
    ]
    return [RandomFunction(owner, name, FAMILY) for owner, names in owners for name in names if hasattr(owner, name)]


def random_save(output_path: str | os.PathLike[str] = "./output") -> RandomLog:
    """Log every call of a random function of Python, NumPy and MindSpore from now on, with its stack.

    Rows go to ``{output_path}/random_rank{id}_{time}.csv``, outside of a job to ``random_proc{pid}_{time}.csv``. They
    are on disk before the function runs, so a killed process loses none. Draws of a compiled graph are not logged.

    Args:
        output_path: Directory; created if it does not exist.

    Returns: a handle; its ``stop`` ends the log, and so does leaving it if used as a context manager.

    Raises:
        ConfigError: ``output_path`` is not a path.
        StoreError: the file cannot be created.
    """
    return RandomLog(
        output_path,
        MindSporeFramework(),
        functions=mindspore_functions(),
        states={FAMILY: MindSporeState()},
        steps_aside=is_tracing,
    )
