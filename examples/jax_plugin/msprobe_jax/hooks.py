"""Modules of flax.linen in JAX programs, eager and compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msprobe_core.plugin import ApiMap, FrameworkOffer, hookimpl

if TYPE_CHECKING:
    from msprobe_jax.framework import JaxFramework


def load() -> JaxFramework:
    """Import the framework."""
    from msprobe_jax.framework import JaxFramework

    return JaxFramework()


@hookimpl
def msprobe_register_frameworks() -> Sequence[FrameworkOffer]:
    """Offer it for programs that import flax."""
    return [FrameworkOffer("jax", "flax", load)]


@hookimpl
def msprobe_register_api_maps() -> Sequence[ApiMap]:
    """Say what PyTorch calls modules and parameters of flax, and how it orders their dimensions."""
    return [
        ApiMap(
            name="jax",
            module_types={"Dense": "Linear", "Embed": "Embedding", "Conv": "Conv2d"},
            parameters={"": {"kernel": "weight", "scale": "weight", "embedding": "weight"}},
            permuted={"Dense": {"kernel": (1, 0)}, "Conv": {"kernel": (3, 2, 0, 1)}},
        )
    ]
