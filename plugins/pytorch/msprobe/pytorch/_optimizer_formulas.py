"""Formulas of the fused optimizer steps of PyTorch, by which recorded ones are checked.

Each returns the parameters after the step, as these functions write them; kernels compute in float32 at least. In the
calls, ``grads`` are scaled by ``grad_scale``, and nothing changes if ``found_inf`` is 1, as
``torch.amp.GradScaler`` asks for. Sources: the algorithms in the documentation of ``torch.optim.Adam``, ``AdamW``,
``SGD`` and ``Adagrad``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from msprobe.pytorch._fused_attention import inner_dtype

Tensors = Sequence[Tensor]


def fused_adam(
    params: Tensors, grads: Tensors, exp_avgs: Tensors, exp_avg_sqs: Tensors, max_exp_avg_sqs: Tensors,
    state_steps: Tensors, *, lr: Any, beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool,
    maximize: bool, grad_scale: Tensor | None = None, found_inf: Tensor | None = None, is_decoupled: bool = False,
) -> list[Tensor]:  # fmt: skip
    """Return ``p - lr * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)``."""
    found: list[Tensor] = []
    for i, (before, gradient) in enumerate(_given(params, grads, maximize, grad_scale)):
        step = state_steps[i].to(before.dtype)
        p = before * (1 - lr * weight_decay) if is_decoupled else before
        g = gradient if is_decoupled else gradient + weight_decay * before
        first = beta1 * exp_avgs[i].to(p.dtype) + (1 - beta1) * g
        second = beta2 * exp_avg_sqs[i].to(p.dtype) + (1 - beta2) * g * g
        if amsgrad:
            second = torch.maximum(second, max_exp_avg_sqs[i].to(p.dtype))
        found.append(p - lr * first / (1 - beta1**step) / ((second / (1 - beta2**step)).sqrt() + eps))
    return _taken(found, params, found_inf)


def fused_adamw(*args: Any, **kwargs: Any) -> list[Tensor]:
    """Return a step of Adam of parameters that were multiplied by ``1 - lr * weight_decay`` before."""
    return fused_adam(*args, **kwargs, is_decoupled=True)


def fused_sgd(
    params: Tensors, grads: Tensors, momentum_buffer_list: Tensors, *, weight_decay: float, momentum: float, lr: Any,
    dampening: float, nesterov: bool, maximize: bool, is_first_step: bool, grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    """Return ``p - lr * b``, where ``b = momentum * b + (1 - dampening) * g``."""
    found: list[Tensor] = []
    for i, (p, gradient) in enumerate(_given(params, grads, maximize, grad_scale)):
        step = g = gradient + weight_decay * p
        if momentum:
            b = g if is_first_step else momentum * momentum_buffer_list[i].to(p.dtype) + (1 - dampening) * g
            step = g + momentum * b if nesterov else b
        found.append(p - lr * step)
    return _taken(found, params, found_inf)


def fused_adagrad(
    params: Tensors, grads: Tensors, state_sums: Tensors, state_steps: Tensors, *, lr: Any, lr_decay: float,
    weight_decay: float, eps: float, maximize: bool, grad_scale: Tensor | None = None, found_inf: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    """Return ``p - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s + g^2) + eps)``."""
    found: list[Tensor] = []
    for i, (p, gradient) in enumerate(_given(params, grads, maximize, grad_scale)):
        g = gradient + weight_decay * p
        rate = lr / (1 + (state_steps[i].to(p.dtype) - 1) * lr_decay)
        found.append(p - rate * g / ((state_sums[i].to(p.dtype) + g * g).sqrt() + eps))
    return _taken(found, params, found_inf)


def _given(params: Tensors, grads: Tensors, maximize: bool, grad_scale: Tensor | None) -> list[tuple[Tensor, Tensor]]:
    scale, sign = 1 if grad_scale is None else grad_scale, -1 if maximize else 1
    return [
        (parameter.to(inner_dtype(parameter.dtype)), gradient.to(inner_dtype(parameter.dtype)) / scale * sign)
        for parameter, gradient in zip(params, grads, strict=True)
    ]


def _taken(found: Tensors, params: Tensors, found_inf: Tensor | None) -> list[Tensor]:
    steps = [new.to(old.dtype) for new, old in zip(found, params, strict=True)]
    if found_inf is None:
        return steps
    return [torch.where(found_inf == 1, old, new) for new, old in zip(steps, params, strict=True)]


FORMULAS: dict[str, Callable[..., Any]] = {
    "_fused_adam_": fused_adam, "_fused_adamw_": fused_adamw, "_fused_sgd_": fused_sgd,
    "_fused_adagrad_": fused_adagrad,
}  # fmt: skip
"""By name in ``torch``."""
