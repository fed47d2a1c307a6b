"""Operators of ATen that are called for a dump, of the forward and of the backward.

Elementwise operators, views and the like check their arguments, as the functions above them do. Backward operators rely
on autograd to pass shapes and indices that fit, and some read memory without checking its bounds. So those with several
tensors are replayed as formulas, composed of checked functions.
"""

# ruff: noqa: A002, ARG001  # dumps have arguments by name, and some that change nothing here
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from msprobe.pytorch._fused_attention import inner_dtype
from msprobe.pytorch._replay_stand_ins import grouped_mm
from msprobe_core.plugin import ReplayError

Function = Callable[..., Any]

PLAIN = """
    _to_copy _unsafe_view alias slice select view to type_as clone
    detach contiguous copy copy_ fill fill_ zero_ zeros_like ones_like full_like embedding native_layer_norm gelu
    gelu_backward silu silu_ silu_backward sigmoid_backward tanh_backward threshold_backward relu6 leaky_relu
    leaky_relu_ leaky_relu_backward elu elu_ hardtanh hardtanh_ hardswish hardswish_ hardswish_backward hardsigmoid
    hardsigmoid_backward mish mish_backward softplus softplus_backward logit_backward hardshrink softshrink glu prelu
    _prelu_kernel var_mean std_mean cat stack rsub index linalg_vector_norm complex polar _conj _neg_view
"""
"""Whose results are bounded by the tensors among their arguments."""

ENLARGING = """
    zeros ones full arange linspace eye scalar_tensor new_zeros new_ones new_full constant_pad_nd convolution repeat
    expand split split_with_sizes chunk tensor_split unfold diag_embed avg_pool2d max_pool2d
    adaptive_avg_pool2d _adaptive_avg_pool2d select_backward slice_backward diagonal_backward unsafe_split
"""


def gradients(forward: Callable[..., Tensor], gradient: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of the inputs, each in its own dtype."""
    leaves = [each.detach().requires_grad_() for each in inputs]
    with torch.enable_grad():
        result = forward(*leaves)
    return torch.autograd.grad(result, leaves, gradient.to(result.dtype))


def _softmax(self: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return self.softmax(dim, dtype=torch.float32 if half_to_float else None)


def _log_softmax(self: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return self.log_softmax(dim, dtype=torch.float32 if half_to_float else None)


def _safe_softmax(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """As softmax, with zeros where every element is minus infinity."""
    return self.softmax(dim, dtype=dtype).masked_fill((self == -torch.inf).all(dim, keepdim=True), 0.0)


def _softmax_backward_data(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    gradient, result = _wide(grad_output), _wide(output)
    return (result * (gradient - (gradient * result).sum(dim, keepdim=True))).to(input_dtype)


def _log_softmax_backward_data(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    gradient, result = _wide(grad_output), _wide(output)
    return (gradient - result.exp() * gradient.sum(dim, keepdim=True)).to(input_dtype)


def native_layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of input, weight and bias, from the forward's mean and ``1 / std``."""
    shape = tuple(normalized_shape)
    dims = tuple(range(-len(shape), 0))
    gradient, x = _wide(grad_out), _wide(input)
    normalized = (x - mean) * rstd
    inner = gradient if weight is None else gradient * weight
    into_input = rstd * (
        inner - inner.mean(dims, keepdim=True) - normalized * (inner * normalized).mean(dims, keepdim=True)
    )
    into_weight, into_bias = (gradient * normalized).sum_to_size(shape), gradient.sum_to_size(shape)
    dtype = input.dtype if weight is None else weight.dtype
    return _masked(output_mask, into_input.to(input.dtype), into_weight.to(dtype), into_bias.to(dtype))


def embedding_dense_backward(
    grad_output: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    """Return the sum of the gradients of each row of the table."""
    if scale_grad_by_freq:
        raise ReplayError("no reference is written for embeddings with scale_grad_by_freq")
    if num_weights * grad_output.shape[-1] > _MOST:
        raise ReplayError(f"its result would have {num_weights * grad_output.shape[-1]:,} elements")
    rows, numbers = grad_output.reshape(-1, grad_output.shape[-1]), indices.reshape(-1)
    is_kept = (numbers != padding_idx)[:, None]
    total = _wide(rows).new_zeros(num_weights, rows.shape[1]).index_add(0, numbers, _wide(rows) * is_kept)
    return total.to(grad_output.dtype)


_MOST = 1 << 28

_REDUCTIONS = ("none", "mean", "sum")


def nll_loss_forward(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Return the loss and the sum of the weights of all targets, which is 0 without a reduction."""
    loss = functional.nll_loss(self, target, weight, ignore_index=ignore_index, reduction=_REDUCTIONS[reduction])
    is_counted = target != ignore_index
    weights = torch.ones_like(target, dtype=self.dtype) if weight is None else weight[target.where(is_counted, 0)]
    total = (weights * is_counted).sum() if reduction else self.new_zeros(())
    return loss, total


def nll_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    def forward(x: Tensor) -> Tensor:
        return functional.nll_loss(x, target, weight, ignore_index=ignore_index, reduction=_REDUCTIONS[reduction])

    return gradients(forward, grad_output, self)[0]


def convolution_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of input, weight and bias."""

    def forward(x: Tensor, w: Tensor) -> Tensor:
        # The arguments are those of a published function, which is typed as private.
        convolve: Any = torch.convolution
        return convolve(x, w, None, stride, padding, dilation, transposed, output_padding, groups)

    over_all = [dim for dim in range(grad_output.ndim) if dim != 1]
    return _masked(output_mask, *gradients(forward, grad_output, input, weight), grad_output.sum(over_all))


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the result and the logarithm of the sums of softmax, ``[B, N, S]``, at least in single precision."""
    scores = _scores(query, key, dropout_p, is_causal, attn_mask, scale)
    weights = scores.softmax(-1).to(query.dtype)
    return (_wide(weights) @ _wide(_repeated(value, query))).to(query.dtype), scores.logsumexp(-1)


def scaled_dot_product_attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """Return the gradients of query, key and value, from the forward's result and logarithms.

    Source: Dao, *FlashAttention-2*, 2023, algorithm 2.
    """
    scores = _scores(query, key, dropout_p, is_causal, attn_mask, scale)
    weights = (scores - logsumexp[..., None]).exp()
    gradient = _wide(grad_out)
    delta = (gradient * _wide(out)).sum(-1, keepdim=True)
    wide_key, wide_value = (_wide(_repeated(each, query)) for each in (key, value))
    change = weights * (gradient @ wide_value.transpose(-1, -2) - delta) * _scale(query, scale)
    into_key, into_value = change.transpose(-1, -2) @ _wide(query), weights.transpose(-1, -2) @ gradient
    groups = (key.shape[1], query.shape[1] // key.shape[1])
    found = (change @ wide_key, *(each.unflatten(1, groups).sum(2) for each in (into_key, into_value)))
    return tuple(one.to(each.dtype) for one, each in zip(found, (query, key, value), strict=True))


def _repeated(key: Tensor, query: Tensor) -> Tensor:
    """Return the key, or the value, with one head per head of the query."""
    if query.ndim != 4 or key.ndim != 4 or not key.shape[1] or query.shape[1] % key.shape[1]:
        raise ReplayError(f"its query has the shape {list(query.shape)}, and its key {list(key.shape)}")
    return key.repeat_interleave(query.shape[1] // key.shape[1], 1)


def _scores(
    query: Tensor, key: Tensor, dropout_p: float, is_causal: bool, attn_mask: Tensor | None, scale: float | None
) -> Tensor:
    if dropout_p:
        raise ReplayError("it draws random numbers, which no replay draws again")
    scores = _wide(query) @ _wide(_repeated(key, query)).transpose(-1, -2) * _scale(query, scale)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype is torch.bool else scores + attn_mask
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return scores


def _scale(query: Tensor, scale: float | None) -> float:
    return query.shape[-1] ** -0.5 if scale is None else scale


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(inner_dtype(tensor.dtype))


def _masked(mask: Sequence[bool], *results: Tensor) -> tuple[Tensor | None, ...]:
    return tuple(result if is_wanted else None for result, is_wanted in zip(results, mask, strict=True))


def _grouped_mm(
    self: Tensor,
    mat2: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    return grouped_mm(self, mat2, offs=offs, bias=bias, out_dtype=out_dtype)


def lift_fresh(self: Tensor) -> Tensor:
    """Return the tensor; a constant of the program, marked as new."""
    return self


FORMULAS: dict[str, Function] = {
    "_softmax": _softmax, "_log_softmax": _log_softmax, "_safe_softmax": _safe_softmax,
    "_softmax_backward_data": _softmax_backward_data, "_log_softmax_backward_data": _log_softmax_backward_data,
    "native_layer_norm_backward": native_layer_norm_backward, "embedding_dense_backward": embedding_dense_backward,
    "nll_loss_forward": nll_loss_forward, "nll_loss_backward": nll_loss_backward,
    "convolution_backward": convolution_backward, "_grouped_mm": _grouped_mm, "lift_fresh": lift_fresh,
    "_scaled_dot_product_flash_attention_for_cpu": scaled_dot_product_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": scaled_dot_product_attention_backward,
}  # fmt: skip
