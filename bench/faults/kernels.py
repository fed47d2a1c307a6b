"""Alternative kernels for the same operators, as on another device: healthy, and equal up to rounding."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
_UP = {torch.float32: torch.float64, torch.bfloat16: torch.float32, torch.float16: torch.float32}
_SUMS: dict[Any, tuple[tuple[int, int], tuple[int, int]]] = {
    # operator: for both factors, position of the argument and its dim that is summed over
    _ATEN.mm.default: ((0, 1), (1, 0)),
    _ATEN.bmm.default: ((0, 2), (1, 1)),
    _ATEN.addmm.default: ((1, 1), (2, 0)),
    _ATEN.baddbmm.default: ((1, 2), (2, 1)),
}
_IN_HIGHER_PRECISION = frozenset(
    {
        _ATEN._softmax.default,
        _ATEN._softmax_backward_data.default,
        _ATEN._log_softmax.default,
        _ATEN._log_softmax_backward_data.default,
        _ATEN.native_layer_norm.default,
        _ATEN.native_layer_norm_backward.default,
        _ATEN.gelu.default,
        _ATEN.gelu_backward.default,
        _ATEN.silu.default,
        _ATEN.silu_backward.default,
        _ATEN.tanh.default,
        _ATEN.rsqrt.default,
        _ATEN.convolution.default,
        _ATEN.convolution_backward.default,
        _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
        _ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default,
    }
)
_KEEP_FLOAT32 = {_ATEN._scaled_dot_product_flash_attention_for_cpu.default: 1}
"""Results, by position, that are in float32 for every dtype."""


class OtherKernels(TorchDispatchMode):
    """Runs sums of matrix products in reverse order, and lets other operators round only once, at the end.

    It is below the recorder: calls, their names and arguments stay the same.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():  # operators called here are not calls of the program
            if func in _SUMS:
                return _from_the_other_end(func, list(args), kwargs)
            if func in _IN_HIGHER_PRECISION:
                return _in_higher_precision(func, args, kwargs)
            return func(*args, **kwargs)


class HalvedProducts(TorchDispatchMode):
    """Computes matrix products as two halves of the sum, which are then added."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in (_ATEN.mm.default, _ATEN.bmm.default):
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            (_, one_dim), (_, two_dim) = _SUMS[func]
            dtype = torch.promote_types(args[0].dtype, torch.float32)
            pairs = zip(args[0].to(dtype).chunk(2, one_dim), args[1].to(dtype).chunk(2, two_dim), strict=True)
            first, *rest = [func(one, two) for one, two in pairs]
            return sum(rest, first).to(args[0].dtype)


def _from_the_other_end(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    dtype = args[_SUMS[func][0][0]].dtype
    for position, dim in _SUMS[func]:
        args[position] = args[position].flip(dim)
    if dtype != torch.bfloat16:
        return func(*args, **kwargs)
    return func(*(_cast(arg, torch.bfloat16, torch.float32) for arg in args), **kwargs).to(dtype)


def _in_higher_precision(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    dtype = next((a.dtype for a in args if isinstance(a, torch.Tensor) and a.dtype in _UP), None)
    if dtype is None:
        return func(*args, **kwargs)
    up = _UP[dtype]
    raised = [_cast(arg, dtype, up) for arg in args]
    result = func(*raised, **{name: _cast(arg, dtype, up) for name, arg in kwargs.items()})
    kept = _KEEP_FLOAT32.get(func)
    if isinstance(result, torch.Tensor):
        return _cast(result, up, dtype)
    return tuple(_cast(one, up, torch.float32 if i == kept else dtype) for i, one in enumerate(result))


def _cast(value: Any, origin: torch.dtype, to: torch.dtype) -> Any:
    return value.to(to) if isinstance(value, torch.Tensor) and value.dtype == origin else value
