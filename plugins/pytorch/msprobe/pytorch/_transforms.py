"""Tensors inside ``torch.func``: the inner tensor with its values, and the transforms that wrap it."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

_functorch: Any = cast("Any", torch._C)._functorch

is_wrapped = _functorch.is_functorch_wrapped_tensor
"""Whether ``torch.func.vmap``, ``grad``, ``jvp`` or ``functionalize`` has wrapped a tensor."""


def unwrapped(tensor: Tensor) -> Tensor | None:
    """Return the innermost tensor, with the dimensions that ``vmap`` hides in front, the outermost first.

    Use it only inside a `RecordingGuard`; otherwise active transforms treat the result as one of their own tensors.
    ``None`` under ``functionalize``, which may not have applied all writes yet.
    """
    return None if (found := _unwrap(tensor)) is None else found[0]


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of `unwrapped`; if there is none, the tensor's own."""
    inner = unwrapped(tensor)
    return tuple(int(size) for size in (tensor if inner is None else inner).shape)


def transforms_of(tensor: Tensor) -> str:
    """Return the wrappers by PyTorch's names, the outermost transform first."""
    names: list[str] = []
    while is_wrapped(tensor):
        level = _functorch.maybe_get_level(tensor)
        names.append(f"{_kind_of(tensor)}(lvl={level})")
        tensor = _functorch.get_unwrapped(tensor)
    return ", ".join(reversed(names))


def _unwrap(tensor: Tensor) -> tuple[Tensor, int] | None:
    """Return the inner tensor, and how many leading dimensions it has that the wrapper hides."""
    if not is_wrapped(tensor):
        return tensor, 0
    if _functorch.is_functionaltensor(tensor):
        return None
    found = _unwrap(_functorch.get_unwrapped(tensor))
    if found is None or not _functorch.is_batchedtensor(tensor):
        return found
    inner, num_hidden = found
    return inner.movedim(num_hidden + _functorch.maybe_get_bdim(tensor), num_hidden), num_hidden + 1


def _kind_of(tensor: Tensor) -> str:
    if _functorch.is_batchedtensor(tensor):
        return "BatchedTensor"
    return "GradTrackingTensor" if _functorch.is_gradtrackingtensor(tensor) else "FunctionalTensor"
