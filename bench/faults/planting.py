"""How faults get into a model: into a kernel, where nothing that records sees them, or into the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Change = Callable[[torch.Tensor], torch.Tensor]

BARE: Any = torch._C.TensorBase
"""Has the methods of tensors that nothing records."""


def same(value: torch.Tensor) -> torch.Tensor:
    """Return a value of its own."""
    return BARE.clone(value)


class _Kernel(torch.autograd.Function):
    """Changes a value, and its gradient, as a wrong kernel does: no recorded call shows it."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, forward: Change, backward: Change) -> torch.Tensor:
        context.own = backward
        with torch._C.DisableTorchFunction():
            return forward(value)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return context.own(gradients[0]), None, None


def in_kernel(value: torch.Tensor, forward: Change = same, backward: Change = same) -> torch.Tensor:
    """Return what a kernel with other results makes of ``value``."""
    return _Kernel.apply(value, forward, backward)  # pyright: ignore[reportReturnType]


def _first(result: Any, change: Change) -> Any:
    if isinstance(result, tuple):
        return (change(result[0]), *result[1:])
    return change(result)


def inside(module: nn.Module, forward: Change = same, backward: Change = same) -> None:
    """Change what ``module`` gives, inside of it and of a kernel; ``backward`` is given the gradient of that."""
    own = module.forward
    module.forward = lambda *args, **kwargs: _first(
        own(*args, **kwargs), lambda value: in_kernel(value, forward, backward)
    )


def in_program(module: nn.Module, change: Change) -> None:
    """Change what ``module`` gives by calls that the program makes inside of it."""
    own = module.forward
    module.forward = lambda *args, **kwargs: _first(own(*args, **kwargs), change)


def in_place_of(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Let ``module`` compute ``forward(own, *args, **kwargs)``, where ``own`` is what it computed."""
    own = module.forward
    module.forward = lambda *args, **kwargs: forward(own, *args, **kwargs)


def change_parameter(module: nn.Module, name: str, change: Change) -> None:
    """Change the values of a parameter."""
    with torch.no_grad():
        parameter = module.get_parameter(name)
        parameter.copy_(change(parameter.clone()))


def with_other_attention(module: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Let a module of attention call its kernel with other arguments.

    Args:
        module: Of `transformers`.
        change: Is given ``query``, ``key``, ``value``, ``mask`` and the options by name, and returns them changed.
    """
    import copy

    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def attend(own: nn.Module, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        given = change({"query": query, "key": key, "value": value, "mask": mask, **options})
        positions = [given.pop(name) for name in ("query", "key", "value", "mask")]
        return sdpa_attention_forward(own, *positions, **given)

    name = f"planted_{id(module):x}"
    AttentionInterface.register(name, attend)
    module.config = copy.copy(module.config)
    module.config._attn_implementation_internal = name


def last_digits(dtype: torch.dtype, seed: int) -> Change:
    """Return what changes each element by a unit of its last place at the most."""
    unit = torch.finfo(dtype).eps
    generator = torch.Generator().manual_seed(seed)

    def change(value: torch.Tensor) -> torch.Tensor:
        signs = BARE.sub(BARE.mul(torch.randint(0, 2, value.shape, generator=generator), 2.0), 1.0)
        return BARE.to(BARE.mul(BARE.double(value), BARE.add(BARE.mul(signs, unit), 1.0)), value.dtype)

    return change
