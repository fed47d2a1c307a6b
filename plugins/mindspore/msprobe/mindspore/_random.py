"""MindSpore's random functions and their sources of random numbers."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import mindspore as ms
from mindspore import Tensor, mint, ops

from msprobe.mindspore._jit import is_tracing
from msprobe.mindspore._quiet import RecordingGuard
from msprobe_core.interception import RandomFunction, RandomWatch, common_states
from msprobe_core.plugin import RandomDraw

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

RANDOM_NAMES = frozenset((*_FUNCTIONS, *_METHODS))
"""Functions and methods that draw random numbers, some of them from states that cannot be read."""

RANDOM_OPERATORS = ("Dropout", "Dropout2D", "Dropout3D")
"""Operators that Cells hold and that draw from a state of their own, which cannot be restored."""


_SEEDING = ("manual_seed", "set_seed", "seed")


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
        *[(getattr(ops, name), ("__call__",)) for name in RANDOM_OPERATORS],
    ]
    return [RandomFunction(owner, name, FAMILY) for owner, names in owners for name in names if hasattr(owner, name)]


def watch_random(draws: Callable[[RandomDraw], Any], *, has_dropout: bool, has_seeding: bool) -> Callable[[], None]:
    """See `msprobe_core.plugin.RandomFramework.watch_random`."""
    functions = mindspore_functions()
    if not has_dropout:
        functions = [each for each in functions if "dropout" not in each.name.lower()]
    if has_seeding:
        functions += [RandomFunction(ms, name, FAMILY) for name in _SEEDING]
    watch = RandomWatch(draws, functions, {**common_states(), FAMILY: MindSporeState()}, steps_aside=is_tracing)
    watch.install()
    return watch.remove
