"""Reference formulas of fused activations, norms, products and rearrangements of `torch_npu`.

Source, unless a function says otherwise: the page of the function in the documentation of Ascend Extension for PyTorch
7.3, https://gitcode.com/Ascend/op-plugin/tree/master/docs/zh/custom_APIs/torch_npu. Gradients, where they are functions
of their own, are those of the forward's formula.
"""

# ruff: noqa: A002, ARG001  # dumps have arguments by name, and some that change nothing here
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from msprobe.pytorch._fused_attention import inner_dtype
from msprobe_core.plugin import ReplayError


def _gradients(forward: Callable[..., Tensor], gradient: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of the inputs, each in its own dtype."""
    leaves = [each.detach().requires_grad_() for each in inputs]
    with torch.enable_grad():
        result = forward(*leaves)
    found = torch.autograd.grad(result, leaves, gradient.to(result.dtype), allow_unused=True)
    return tuple(torch.zeros_like(leaf) if one is None else one for one, leaf in zip(found, leaves, strict=True))


def _inner(tensor: Tensor) -> Tensor:
    return tensor.to(inner_dtype(tensor.dtype))


# --- activations ----------------------------------------------------------------------------------------------------


def fast_gelu(self: Tensor) -> Tensor:
    """Return ``x / (1 + exp(-1.702 x))``; what is documented for older devices is equal to it, written otherwise."""
    wide = _inner(self)
    return (wide * torch.sigmoid(1.702 * wide)).to(self.dtype)


def npu_fast_gelu_backward(grad: Tensor, self: Tensor) -> Tensor:
    return _gradients(fast_gelu, grad, self)[0]


def npu_gelu(self: Tensor, *, approximate: str = "none") -> Tensor:
    return functional.gelu(self, approximate=approximate)


def npu_gelu_backward(grad_output: Tensor, self: Tensor, *, approximate: str = "none") -> Tensor:
    return _gradients(lambda x: functional.gelu(x, approximate=approximate), grad_output, self)[0]


def npu_silu(self: Tensor) -> Tensor:
    return functional.silu(self)


def npu_silu_backward(grad_output: Tensor, x0: Tensor, x1: Tensor) -> Tensor:
    """Return the gradient; ``x0`` is the input, and ``x1`` the output, which the formula does not need."""
    return _gradients(functional.silu, grad_output, x0)[0]


def npu_mish(self: Tensor) -> Tensor:
    return functional.mish(self)


def npu_mish_backward(grad: Tensor, input: Tensor) -> Tensor:
    return _gradients(functional.mish, grad, input)[0]


def npu_swiglu(self: Tensor, dim: int = -1) -> Tensor:
    """Return ``silu(A) * B`` of the halves A and B."""
    if self.shape[dim] % 2:
        raise ReplayError(f"its input has {self.shape[dim]} elements along the dimension that is halved")
    first, second = _inner(self).chunk(2, dim)
    return (functional.silu(first) * second).to(self.dtype)


def npu_swiglu_backward(grad_output: Tensor, self: Tensor, dim: int = -1) -> Tensor:
    return _gradients(lambda x: npu_swiglu(x, dim), grad_output, self)[0]


def npu_scaled_masked_softmax(x: Tensor, mask: Tensor, scale: float = 1.0, fixed_triu_mask: bool = False) -> Tensor:
    """Return the softmax of ``scale * x`` over the last dimension, with -10000 where ``mask`` is set.

    Rows that are masked wholly are uniform. Source of the -10000: the operator's tests in the repository op-plugin.
    """
    _refuse_fixed_mask(fixed_triu_mask)
    return (_inner(x) * scale).masked_fill(mask.bool(), -10000.0).softmax(-1).to(x.dtype)


def npu_scaled_masked_softmax_backward(
    y_grad: Tensor, y: Tensor, mask: Tensor, scale: float = 1.0, fixed_triu_mask: bool = False
) -> Tensor:
    """Return the gradient from the forward's result: ``scale * y * (g - sum(g * y))``."""
    _refuse_fixed_mask(fixed_triu_mask)
    result, gradient = _inner(y), _inner(y_grad)
    change = result * (gradient - (gradient * result).sum(-1, keepdim=True))
    return (change * scale).masked_fill(mask.bool(), 0.0).to(y_grad.dtype)


def _refuse_fixed_mask(fixed_triu_mask: bool) -> None:
    if fixed_triu_mask:
        raise ReplayError("fixed_triu_mask is documented as reserved, so there is no reference for it")


# --- norms ----------------------------------------------------------------------------------------------------------


def npu_rms_norm(self: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Return the normalized input and ``1 / rms``, the latter at least in single precision.

    ``gamma`` has the shape of the last dimensions, which are normalized; ``1 / rms`` has 1 in their places.
    """
    wide, rstd = _root_mean_square(self, gamma, epsilon)
    # Only the first result has a gradient.
    return (wide * rstd * gamma.to(wide.dtype)).to(self.dtype), rstd.detach()


def _root_mean_square(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    if not gamma.ndim or gamma.shape != x.shape[x.ndim - gamma.ndim :]:
        raise ReplayError(
            f"gamma of the shape {list(gamma.shape)} is not that of the last dimensions of {list(x.shape)}"
        )
    wide = _inner(x)
    rstd = (wide.square().mean(tuple(range(-gamma.ndim, 0)), keepdim=True) + epsilon).rsqrt()
    return wide, rstd


def npu_rms_norm_backward(dy: Tensor, self: Tensor, gamma: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of input and ``gamma`` from the forward's ``1 / rms``; that of ``gamma`` at least single."""
    wide, gradient, scale = _inner(self), _inner(dy), _inner(gamma)
    rstd = rstd.to(wide.dtype)
    dims = tuple(range(-gamma.ndim, 0))
    normalized = wide * rstd
    inner = gradient * scale
    into_input = rstd * (inner - normalized * (inner * normalized).mean(dims, keepdim=True))
    into_gamma = (gradient * normalized).sum_to_size(gamma.shape)
    return into_input.to(self.dtype), into_gamma


def npu_gemma_rms_norm(self: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """As `npu_rms_norm`, with ``1 + gamma`` as factor."""
    wide, rstd = _root_mean_square(self, gamma, epsilon)
    return (wide * rstd * (1 + gamma.to(wide.dtype))).to(self.dtype), rstd.detach()


def npu_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """Return the norm of ``x1 + x2``, ``1 / rms`` and the sum."""
    total = x1 + x2
    wide, rstd = _root_mean_square(_inner(x1) + _inner(x2), gamma, epsilon)
    return (wide * rstd * gamma.to(wide.dtype)).to(x1.dtype), rstd.detach(), total


def npu_layer_norm_eval(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return functional.layer_norm(input, list(normalized_shape), weight, bias, eps)


def npu_group_norm_silu(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, group: int, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``silu(group_norm(input))``, and mean and ``1 / std`` of each group ``[N, group]``, in its dtype."""
    normalized, mean, rstd = _group_norm(input, weight, bias, group, eps)
    return functional.silu(normalized).to(input.dtype), mean, rstd


def _group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the norm, not rounded to the dtype of the input, and mean and ``1 / std`` ``[N, group]`` in that dtype."""
    wide = _inner(input)
    if group < 1 or input.ndim < 2 or input.shape[1] % group:
        raise ReplayError(f"its input of the shape {list(input.shape)} has not {group} groups of channels")
    scale, shift = (None if each is None else each.to(wide.dtype) for each in (weight, bias))
    normalized = functional.group_norm(wide, group, scale, shift, eps)
    grouped = wide.reshape(input.shape[0], group, -1)
    rstd = (grouped.var(-1, unbiased=False) + eps).rsqrt()
    mean, rstd = (each.detach().to(input.dtype) for each in (grouped.mean(-1), rstd))
    return normalized, mean, rstd


def npu_group_norm_swish(
    input: Tensor,
    num_groups: int,
    weight: Tensor,
    bias: Tensor,
    eps: float | None = 1e-5,
    swish_scale: float | None = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``y * sigmoid(swish_scale * y)`` of the group norm y, and mean and ``1 / std`` of each group."""
    scale = 1.0 if swish_scale is None else swish_scale
    normalized, mean, rstd = _group_norm(input, weight, bias, num_groups, 1e-5 if eps is None else eps)
    return (normalized * torch.sigmoid(scale * normalized)).to(input.dtype), mean, rstd


# --- losses ---------------------------------------------------------------------------------------------------------


def npu_cross_entropy_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the loss, of one element if it is reduced, the logarithms of softmax, and two reserved tensors."""
    if lse_square_scale_for_zloss or return_zloss:
        raise ReplayError("the zloss is documented as reserved, so there is no reference for it")
    wide = _inner(input)
    loss = functional.cross_entropy(
        wide,
        target,
        None if weight is None else weight.to(wide.dtype),
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
    empty = input.new_empty(0)
    return loss.reshape(-1).to(input.dtype), wide.detach().log_softmax(-1).to(input.dtype), empty, empty


def npu_cross_entropy_loss_backward(
    grad_loss: Tensor,
    log_prob: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    grad_zloss: Tensor | None = None,
    lse_for_zloss: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
) -> Tensor:
    """Return the gradient of the input: that of its logarithms of softmax, which only differ by a constant per row."""

    def forward(x: Tensor) -> Tensor:
        arguments = (target, weight, reduction, ignore_index, label_smoothing, lse_square_scale_for_zloss)
        return npu_cross_entropy_loss(x, *arguments)[0]

    return _gradients(forward, grad_loss.reshape(-1), log_prob)[0]


# --- products, rearrangements, selection ------------------------------------------------------------------------------


def npu_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.linear(input, weight, bias)


def npu_linear_backward(grad: Tensor, input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return grad @ weight, grad.transpose(-1, -2) @ input


def matmul_backward(grad: Tensor, self: Tensor, other: Tensor, mask: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """Return the gradients of both factors of ``torch.matmul``, ``None`` for those not asked for."""
    found = _gradients(torch.matmul, grad, self, other)
    return tuple(one if is_wanted else None for one, is_wanted in zip(found, mask, strict=True))


def npu_rotary_mul(
    self: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
) -> Tensor:
    """Return ``x * r1 + rotated(x) * r2``.

    ``rotate`` is a matrix that rotates; without it, ``half`` gives ``(-second half, first half)`` of the last
    dimension, and ``interleave`` exchanges neighbours and negates the first.
    """
    inner = torch.promote_types(inner_dtype(self.dtype), inner_dtype(r1.dtype))
    x, cos, sin = (each.to(inner) for each in (self, r1, r2))
    if rotate is not None:
        turned = x @ rotate.to(inner)
    elif rotary_mode == "half":
        first, second = x.chunk(2, -1)
        turned = torch.cat((-second, first), -1)
    elif rotary_mode == "interleave":
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape)
    else:
        raise ReplayError(f"no reference is written for the rotary_mode {rotary_mode!r}")
    return (x * cos + turned * sin).to(self.dtype)


def npu_rotary_mul_backward(
    grad: Tensor, self: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half"
) -> tuple[Tensor, ...]:
    return _gradients(partial(npu_rotary_mul, rotary_mode=rotary_mode), grad, self, r1, r2)


def npu_transpose(self: Tensor, perm: Sequence[int], require_contiguous: bool = True) -> Tensor:
    return self.permute(*perm)


def npu_confusion_transpose(self: Tensor, perm: Sequence[int], shape: Sequence[int], transpose_first: bool) -> Tensor:
    """Return the input permuted and then reshaped, or, without ``transpose_first``, reshaped and then permuted."""
    if transpose_first:
        return self.permute(*perm).reshape(*shape)
    return self.reshape(*shape).permute(*perm)


def npu_confusion_transpose_backward(
    grad: Tensor, perm: Sequence[int], shape: Sequence[int], transpose_first: bool
) -> Tensor:
    """Undo `npu_confusion_transpose`: ``shape`` is that of its input, and ``transpose_first`` is negated.

    Source of the negation: ``derivatives.yaml`` of the repository op-plugin.
    """
    inverse = sorted(range(len(perm)), key=lambda i: perm[i])
    if transpose_first:
        return grad.permute(*inverse).reshape(*shape)
    return grad.reshape([shape[i] for i in perm]).permute(*inverse)


def npu_moe_gating_top_k_softmax(
    x: Tensor, finished: Tensor | None = None, k: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the ``k`` largest of softmax, their experts, and the numbers of the rows, counted along columns.

    Experts of finished rows are the number of experts. Source of that: the operator's tests in op-plugin.
    """
    chosen = _inner(x).softmax(-1).sort(dim=-1, descending=True, stable=True)
    if not 0 < k <= x.shape[-1]:
        raise ReplayError(f"k is {k}, and there are {x.shape[-1]} experts")
    largest, experts = chosen.values[..., :k], chosen.indices[..., :k]
    if finished is not None:
        experts = experts.masked_fill(finished.bool()[..., None], x.shape[-1])
    num_rows = largest.numel() // k
    rows = torch.arange(largest.numel(), device=x.device).reshape(k, num_rows).transpose(0, 1).reshape(largest.shape)
    return largest.to(x.dtype), experts.to(torch.int32), rows.to(torch.int32)


def npu_sort_v2(self: Tensor, dim: int = -1, descending: bool = False, out: Tensor | None = None) -> Tensor:
    """Return the sorted values, without indices."""
    return self.sort(dim, descending=descending).values
