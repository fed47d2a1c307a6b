"""Reference formulas of the fused optimizer steps of `torch_npu`."""

# ruff: noqa: ARG001  # dumps hold arguments that change nothing here
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from msprobe.pytorch._fused_attention import inner_dtype
from msprobe_core.plugin import ReplayError


def npu_apply_adam(
    beta1_power: Any,
    beta2_power: Any,
    lr: Any,
    beta1: Any,
    beta2: Any,
    epsilon: Any,
    grad: Tensor,
    use_locking: bool | None = None,
    use_nesterov: bool | None = None,
    *,
    out: Sequence[Tensor] = (),
) -> tuple[Tensor, ...]:
    """Return parameter and moments after a step of Adam; ``out`` holds those before it.

    The powers are those of this step. ``epsilon`` is added to the root of the uncorrected second moment, as in the
    paper's last remark. Sources: documentation of ``torch_npu.npu_apply_adam``; TensorFlow's ``ApplyAdam``, whose
    formula the operator has; Kingma and Ba, *Adam*, 2015, section 2.
    """
    parameter, first, second = _state(out)
    gradient = grad.to(first.dtype)
    first = first + (gradient - first) * (1 - beta1)
    second = second + (gradient.square() - second) * (1 - beta2)
    rate = lr * _root(1 - beta2_power) / (1 - beta1_power)
    step = first * beta1 + gradient * (1 - beta1) if use_nesterov else first
    return _like(out, parameter - rate * step / (second.sqrt() + epsilon), first, second)


def npu_apply_adam_w(
    beta1_power: Any,
    beta2_power: Any,
    lr: Any,
    weight_decay: Any,
    beta1: Any,
    beta2: Any,
    epsilon: Any,
    grad: Tensor,
    max_grad_norm: Tensor | None = None,
    amsgrad: bool | None = None,
    maximize: bool | None = None,
    *,
    out: Sequence[Tensor] = (),
) -> tuple[Tensor, ...]:
    """Return parameter and moments after a step of AdamW; ``out`` holds those before it.

    The powers are those of the step before. ``max_grad_norm`` holds the largest second moments for ``amsgrad``.
    Sources: the operator's tests in the repository op-plugin; Loshchilov and Hutter, *Decoupled Weight Decay
    Regularization*, 2019, algorithm 2.
    """
    parameter, first, second = _state(out)
    gradient = grad.to(first.dtype) * (-1 if maximize else 1)
    first = first * beta1 + gradient * (1 - beta1)
    second = second * beta2 + gradient.square() * (1 - beta2)
    largest = second
    if amsgrad:
        if max_grad_norm is None:
            raise ReplayError("with amsgrad it needs max_grad_norm, which it does not have")
        largest = torch.maximum(max_grad_norm.to(second.dtype), second)
    denominator = (largest / (1 - beta2_power * beta2)).sqrt() + epsilon
    decayed = parameter * (1 - lr * weight_decay)
    return _like(out, decayed - lr * first / (1 - beta1_power * beta1) / denominator, first, second)


def _state(out: Sequence[Tensor]) -> list[Tensor]:
    if len(out) != 3:
        raise ReplayError("it needs out=(var, m, v), the parameter and the moments before the step")
    return [each.to(inner_dtype(each.dtype)) for each in out]


def _like(out: Sequence[Tensor], *results: Tensor) -> tuple[Tensor, ...]:
    return tuple(result.to(before.dtype) for result, before in zip(results, out, strict=True))


def _root(number: Any) -> Any:
    return number.sqrt() if isinstance(number, Tensor) else number**0.5
