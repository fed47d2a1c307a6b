"""Ways to plant a fault into a model: into a kernel, where no recorder sees it, or into the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Change = Callable[[torch.Tensor], torch.Tensor]

BARE: Any = torch._C.TensorBase
"""Has the methods of tensors, without being recorded."""


def same(value: torch.Tensor) -> torch.Tensor:
    """Return a separate tensor with the same values."""
    return BARE.clone(value)


class _Kernel(torch.autograd.Function):
    """Changes a value and its gradient like a wrong kernel: no recorded call shows it."""

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
    """Return ``value`` as changed by a faulty kernel."""
    return _Kernel.apply(value, forward, backward)  # pyright: ignore[reportReturnType]


def _first(result: Any, change: Change) -> Any:
    if isinstance(result, tuple):
        return (change(result[0]), *result[1:])
    return change(result)


def inside(module: nn.Module, forward: Change = same, backward: Change = same) -> None:
    """Change the result of ``module`` inside a kernel; ``backward`` changes the gradient of that result."""
    own = module.forward
    module.forward = lambda *args, **kwargs: _first(
        own(*args, **kwargs), lambda value: in_kernel(value, forward, backward)
    )


def in_program(module: nn.Module, change: Change) -> None:
    """Change the result of ``module`` by calls of the program inside it."""
    own = module.forward
    module.forward = lambda *args, **kwargs: _first(own(*args, **kwargs), change)


def in_place_of(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Let ``module`` compute ``forward(own, *args, **kwargs)``, where ``own`` is its original forward."""
    own = module.forward
    module.forward = lambda *args, **kwargs: forward(own, *args, **kwargs)


def change_parameter(module: nn.Module, name: str, change: Change) -> None:
    """Change the values of a parameter."""
    with torch.no_grad():
        parameter = module.get_parameter(name)
        parameter.copy_(change(parameter.clone()))


def with_other_attention(module: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Let an attention module call its kernel with other arguments.

    Args:
        module: A module of `transformers`.
        change: Called with ``query``, ``key``, ``value``, ``mask`` and the options by name; returns them changed.
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
    """Return a function that changes each element by at most one ulp."""
    unit = torch.finfo(dtype).eps
    generator = torch.Generator().manual_seed(seed)

    def change(value: torch.Tensor) -> torch.Tensor:
        signs = BARE.sub(BARE.mul(torch.randint(0, 2, value.shape, generator=generator), 2.0), 1.0)
        return BARE.to(BARE.mul(BARE.double(value), BARE.add(BARE.mul(signs, unit), 1.0)), value.dtype)

    return change
