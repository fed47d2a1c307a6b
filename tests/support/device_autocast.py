"""``torch.autocast`` for a simulated device: PyTorch leaves it to each device which operators run in which dtype."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

_KEY = "AutocastPrivateUse1"

_LOWER = (
    "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "conv1d", "conv2d", "scaled_dot_product_attention",
)  # fmt: skip

_FLOAT32 = ("softmax.int", "log_softmax.int", "layer_norm", "mse_loss", "cross_entropy_loss", "nll_loss", "norm.Scalar")


def register_autocast(kind: str) -> list[torch.library.Library]:
    """Register it; the libraries returned end it when they are freed."""
    others, ours = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, _KEY)
    for name in _LOWER:
        ours.impl(name, partial(_cast, _operator(name), lambda: torch.get_autocast_dtype(kind), kind), _KEY)
    for name in _FLOAT32:
        ours.impl(name, partial(_cast, _operator(name), lambda: torch.float32, kind), _KEY)
    return [others, ours]


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _cast(operator: Any, dtype_of: Callable[[], torch.dtype], kind: str, *args: Any, **kwargs: Any) -> Any:
    dtype = dtype_of()

    def cast(tensor: Tensor) -> Tensor:
        takes = tensor.device.type == kind and tensor.is_floating_point() and tensor.dtype is not torch.float64
        return tensor.to(dtype) if takes else tensor

    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
    # Of PyTorch's own devices this is C++, which no function mode sees.
    with torch._C._ExcludeDispatchKeyGuard(keys), torch._C.DisableTorchFunction():
        return operator(*tree_map_only(Tensor, cast, args), **tree_map_only(Tensor, cast, kwargs))
