"""Independent formulas of common functions, by which their replays in float64 are checked.

A function that is wrong in every precision is wrong in its replay in float64, too. So each of these is composed of
other operators than the function is, or of NumPy's: norms, softmax, activations and losses of arithmetic; products,
convolutions and moved elements of NumPy. Their gradients come from automatic differentiation. Sources of the formulas:
PyTorch's documentation of the functions.
"""

# ruff: noqa: A002, ARG001  # dumps have arguments by name, and some that change nothing here
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from msprobe_core.plugin import ReplayError

Function = Callable[..., Any]

_MOST = 1 << 24
"""Most elements of what a formula computes in between, 128 MiB in float64."""

_LARGEST_SCORE = 2.0**20
"""The rounding of larger scores reaches the digits that two functions are compared in."""


def _refuse(is_refused: Any, what: str) -> None:
    if is_refused:
        raise ReplayError(f"no independent formula is written for {what}")


# --- of NumPy -------------------------------------------------------------------------------------------------------


class _Product(torch.autograd.Function):
    """The product of matrices, ``[..., M, K]`` and ``[..., K, N]``."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        return torch.from_numpy(np.matmul(left.detach().numpy(), right.detach().numpy()))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (left, right), gradient = ctx.saved_tensors, gradients[0].numpy()
        into_left = np.matmul(gradient, np.swapaxes(right.detach().numpy(), -1, -2))
        into_right = np.matmul(np.swapaxes(left.detach().numpy(), -1, -2), gradient)
        return torch.from_numpy(into_left), torch.from_numpy(into_right)


class _Moved(torch.autograd.Function):
    """A linear function of a tensor, and its transpose for the gradient, both of arrays."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Function, transposed: Function) -> Tensor:
        ctx.transposed = transposed
        return torch.from_numpy(np.array(function(x.detach().numpy())))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return torch.from_numpy(np.array(ctx.transposed(gradients[0].numpy()))), None, None


def _product(left: Tensor, right: Tensor) -> Tensor:
    _refuse(left.is_complex() or right.is_complex(), "complex products")
    batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    left, right = (each.expand(*batch, *each.shape[-2:]) for each in (left, right))
    return _Product.apply(left, right)


def matmul(input: Tensor, other: Tensor) -> Tensor:
    left = input[None] if input.ndim == 1 else input
    right = other[:, None] if other.ndim == 1 else other
    found = _product(left, right)
    found = found.squeeze(-1) if other.ndim == 1 else found
    return found.squeeze(-1 if other.ndim == 1 else -2) if input.ndim == 1 else found


def mm(input: Tensor, mat2: Tensor) -> Tensor:
    return _product(input, mat2)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``input @ weight.T + bias``, as NumPy multiplies."""
    _refuse(weight.ndim != 2, "a weight that is no matrix")
    found = _product(input.reshape(-1, weight.shape[1]), weight.t()).reshape(*input.shape[:-1], weight.shape[0])
    return found if bias is None else found + bias


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    found = _product(mat1, mat2) * alpha
    return found + input * beta if beta else found


def conv(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Return the convolution as a product of windows and weights."""
    sizes = weight.shape[2:]
    x = input if input.ndim == weight.ndim else input[None]
    steps, gaps = (_each(value, len(sizes)) for value in (stride, dilation))
    reaches = [gap * (size - 1) for gap, size in zip(gaps, sizes, strict=True)]
    if isinstance(padding, str):
        around = [(reach // 2, reach - reach // 2) if padding == "same" else (0, 0) for reach in reaches]
    else:
        around = [(each, each) for each in _each(padding, len(sizes))]
    x = functional.pad(x, [each for pair in reversed(around) for each in pair])
    for dim, (step, gap, reach) in enumerate(zip(steps, gaps, reaches, strict=True), 2):
        x = x.unfold(dim, reach + 1, step)[..., ::gap]
    _refuse(x.numel() > _MOST, "windows of this size")
    places, num = x.shape[2 : 2 + len(sizes)], len(x)
    windows = x.reshape(num, groups, x.shape[1] // groups, math.prod(places), math.prod(sizes)).transpose(2, 3)
    kernels = weight.reshape(groups, weight.shape[0] // groups, -1).transpose(-1, -2)
    found = _product(windows.flatten(3), kernels).transpose(-1, -2).reshape(num, weight.shape[0], *places)
    found = found if bias is None else found + bias.reshape(-1, *(1 for _ in sizes))
    return found if input.ndim == weight.ndim else found[0]


def _each(value: Any, number: int) -> Sequence[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * number if len(values) == 1 else values


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Return rows of a table, as NumPy selects them."""
    _refuse(max_norm is not None or scale_grad_by_freq or sparse, "embeddings that scale rows or are sparse")
    rows = input.numpy()

    def transposed(gradient: Any) -> Any:
        found = np.zeros(weight.shape, gradient.dtype)
        np.add.at(found, rows, gradient)
        if padding_idx is not None:
            found[padding_idx] = 0
        return found

    return _Moved.apply(weight, lambda table: table[rows], transposed)


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    places = (slice(None),) * (dim % max(input.ndim, 1)) + (index.reshape(-1).numpy(),)
    _refuse(not input.ndim, "numbers")
    return _picked(input, places)


def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    _refuse(not input.ndim or not index.ndim, "numbers")
    return _picked(input, _grid(dim, index))


def _picked(x: Tensor, places: tuple[Any, ...]) -> Tensor:
    def transposed(gradient: Any) -> Any:
        found = np.zeros(x.shape, gradient.dtype)
        np.add.at(found, places, gradient)
        return found

    return _Moved.apply(x, lambda values: values[places], transposed)


def _added(x: Tensor, places: tuple[Any, ...]) -> Function:
    def added(values: Any) -> Any:
        found = np.zeros(x.shape, values.dtype)
        np.add.at(found, places, values)
        return found

    return added


def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    _refuse(not input.ndim or not index.ndim, "numbers")
    places, part = _grid(dim, index), tuple(slice(size) for size in index.shape)
    return input + _Moved.apply(src[part], _added(input, places), lambda gradient: gradient[places])


def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    _refuse(not input.ndim or not source.ndim, "numbers")
    places = (slice(None),) * (dim % input.ndim) + (index.reshape(-1).numpy(),)
    return input + alpha * _Moved.apply(source, _added(input, places), lambda gradient: gradient[places])


def _grid(dim: int, index: Tensor) -> tuple[Any, ...]:
    grid: list[Any] = list(np.indices(tuple(index.shape)))
    grid[dim] = index.numpy()
    return tuple(grid)


def cumsum(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    x = input if dtype is None else input.to(dtype)
    _refuse(not x.ndim or not x.is_floating_point(), "sums of whole numbers")

    def summed(values: Any) -> Any:
        return np.cumsum(values, dim)

    return _Moved.apply(x, summed, lambda gradient: np.flip(summed(np.flip(gradient, dim)), dim))


# --- norms ----------------------------------------------------------------------------------------------------------


def _normalized(x: Tensor, dims: Any, eps: float) -> Tensor:
    centred = x - x.mean(dims, keepdim=True)
    return centred / ((centred * centred).mean(dims, keepdim=True) + eps).sqrt()


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """Return ``(x - mean) / sqrt(var + eps) * weight + bias`` over the last dimensions."""
    return _scaled(_normalized(input, tuple(range(-len(normalized_shape), 0)), eps), weight, bias)


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Return ``x / sqrt(mean(x^2) + eps) * weight`` over the last dimensions."""
    squares = (input * input).mean(tuple(range(-len(normalized_shape), 0)), keepdim=True)
    return _scaled(input / (squares + (torch.finfo(input.dtype).eps if eps is None else eps)).sqrt(), weight, None)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:  # fmt: skip
    found = _normalized(input.reshape(len(input), num_groups, -1), [-1], eps).reshape(input.shape)
    return _scaled(found, *_per_channel(input, weight, bias))


def _per_channel(x: Tensor, *values: Tensor | None) -> list[Any]:
    return [None if each is None else each.reshape(-1, *(1,) * (x.ndim - 2)) for each in values]


def batch_norm(
    input: Tensor,
    running_mean: Any,
    running_var: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Return ``(x - mean) / sqrt(var + eps) * weight + bias`` per channel, with running values unless ``training``."""
    if training:
        found = _normalized(input, [dim for dim in range(input.ndim) if dim != 1], eps)
    else:
        mean, variance = _per_channel(input, running_mean, running_var)
        found = (input - mean) / (variance + eps).sqrt()
    return _scaled(found, *_per_channel(input, weight, bias))


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    _refuse(not use_input_stats, "running values of an instance norm")
    return _scaled(_normalized(input, tuple(range(2, input.ndim)), eps), *_per_channel(input, weight, bias))


# --- softmax and attention ------------------------------------------------------------------------------------------


def softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return ``exp(x - max) / sum(exp(x - max))``."""
    powers = _below_largest(input, dim, dtype).exp()
    return powers / powers.sum(dim, keepdim=True)


def log_softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return ``x - max - log(sum(exp(x - max)))``."""
    below = _below_largest(input, dim, dtype)
    return below - below.exp().sum(dim, keepdim=True).log()


def _below_largest(x: Tensor, dim: Any, dtype: torch.dtype | None) -> Tensor:
    _refuse(dim is None, "softmax without a dimension")
    x = x if dtype is None else x.to(dtype)
    return x - x.detach().amax(dim, keepdim=True)


def functional_softmax(
    input: Tensor, dim: Any = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Tensor:
    """Return ``exp(x - max) / sum(exp(x - max))``."""
    return softmax(input, dim, dtype)


def functional_log_softmax(
    input: Tensor, dim: Any = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Tensor:
    """Return ``x - max - log(sum(exp(x - max)))``."""
    return log_softmax(input, dim, dtype)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return ``softmax(query @ key.T * scale + mask) @ value``."""
    _refuse(dropout_p, "dropout")
    if enable_gqa:
        key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
    _refuse(math.prod(query.shape[:-1]) * key.shape[-2] > _MOST, "so many scores")
    scores = _product(query, key.transpose(-1, -2)) * (query.shape[-1] ** -0.5 if scale is None else scale)
    may = torch.ones(scores.shape[-2:], dtype=torch.bool)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        may = may & attn_mask
    elif attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        may = may & (torch.arange(may.shape[-2])[:, None] >= torch.arange(may.shape[-1]))
    scores = torch.where(may, scores, -math.inf)
    _refuse(bool((scores == -math.inf).all(-1).any()), "queries that may attend to nothing")
    _refuse(bool((scores.detach().amax(-1).abs() > _LARGEST_SCORE).any()), "scores of this size")
    return _product(softmax(scores, -1), value)


# --- activations ----------------------------------------------------------------------------------------------------


def sigmoid(input: Tensor) -> Tensor:
    return _sigmoid(input)


def _sigmoid(x: Tensor) -> Tensor:
    power = torch.where(x < 0, x, -x).exp()  # exp(-x) of a large negative x is Inf, and the gradient NaN
    return torch.where(x < 0, power, 1.0) / (1 + power)


def tanh(input: Tensor) -> Tensor:
    return _tanh(input)


def _tanh(x: Tensor) -> Tensor:
    sign = torch.where(x < 0, -1.0, 1.0)  # not abs, whose gradient at zero is zero
    power = torch.expm1(-2 * sign * x)  # near zero, 1 - exp(-2 x) has no digits left
    return sign * (-power / (2 + power))


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Return ``x * Phi(x)``, or its approximation by ``tanh``."""
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (input + 0.044715 * input * input * input)
        return 0.5 * input * (1 + _tanh(inner))
    return 0.5 * input * (1 + torch.erf(input / math.sqrt(2)))


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """Return ``x / (1 + exp(-x))``."""
    return input * _sigmoid(input)


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    return torch.where(input <= 0, 0.0, input)  # NaN is kept


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    return torch.where(input > 0, input, input * negative_slope)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    low = torch.where(input > 0, 0.0, input)
    return torch.where(input > 0, input, alpha * torch.expm1(low))


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    return input * _tanh(_softplus(input))


def _softplus(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.0) + torch.log1p((x * torch.where(x > 0, -1.0, 1.0)).exp())


def logsigmoid(input: Tensor) -> Tensor:
    return -_softplus(-input)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    first, second = input.chunk(2, dim)
    return first * _sigmoid(second)


# --- losses ---------------------------------------------------------------------------------------------------------


def _reduced(losses: Tensor, reduction: str, *former: Any) -> Tensor:
    _refuse(any(each is not None for each in former), "the former names of a reduction")
    return losses if reduction == "none" else losses.sum() / (losses.numel() if reduction == "mean" else 1)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return ``-log(softmax(x))`` at the target, of smoothed labels and weighted classes."""
    logs = log_softmax(input, 1 if input.ndim > 1 else 0)
    if not target.is_floating_point():
        former = (size_average, ignore_index, reduce, reduction)
        return _of_classes(logs, target, weight, *former, label_smoothing)
    dim = 1 if input.ndim > 1 else 0
    share = target * (1 - label_smoothing) + label_smoothing / input.shape[dim]
    weights = 1.0 if weight is None else weight.reshape(-1, *(1,) * (input.ndim - dim - 1))
    losses = -(share * logs * weights).sum(dim)
    return _reduced(losses, reduction, size_average, reduce)


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    return _of_classes(input, target, weight, size_average, ignore_index, reduce, reduction, 0.0)


def _of_classes(
    logs: Tensor,
    target: Tensor,
    weight: Tensor | None,
    size_average: bool | None,
    ignore_index: int,
    reduce: bool | None,
    reduction: str,
    smoothing: float,
) -> Tensor:
    _refuse(size_average is not None or reduce is not None, "the former names of a reduction")
    _refuse(logs.numel() > _MOST, "so many classes")
    logs = logs.movedim(1, -1) if logs.ndim > 1 else logs
    is_counted = target != ignore_index
    is_target = (torch.arange(logs.shape[-1]) == target.unsqueeze(-1)) & is_counted.unsqueeze(-1)
    weights = torch.ones(logs.shape[-1], dtype=logs.dtype) if weight is None else weight
    losses = -torch.where(is_target, logs * weights, 0.0).sum(-1) * (1 - smoothing)
    if smoothing:
        of_all = -torch.where(is_counted.unsqueeze(-1), logs * weights, 0.0).sum(-1)
        losses = losses + of_all * (smoothing / logs.shape[-1])
    total = torch.where(is_target, weights, 0.0).sum()
    return losses if reduction == "none" else losses.sum() / (total if reduction == "mean" else 1)


def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    _refuse(weight is not None, "weights of elements")
    difference = input - target
    return _reduced(difference * difference, reduction, size_average, reduce)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Return ``-(t * log(sigmoid(x)) + (1 - t) * log(1 - sigmoid(x)))``."""
    positive = target if pos_weight is None else target * pos_weight
    losses = positive * _softplus(-input) + (1 - target) * _softplus(input)
    return _reduced(losses if weight is None else losses * weight, reduction, size_average, reduce)


# --- steps of optimizers --------------------------------------------------------------------------------------------


def lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    return input * (1 - weight) + end * weight  # a large difference would leave no digits of either


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    return input + value * (tensor1 * tensor2)


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    return input + value * (tensor1 / tensor2)


_METHODS: dict[str, Function] = {
    "softmax": softmax, "log_softmax": log_softmax, "sigmoid": sigmoid, "tanh": tanh, "relu": relu, "matmul": matmul,
    "__matmul__": matmul, "mm": mm, "bmm": mm, "addmm": addmm, "baddbmm": addmm, "cumsum": cumsum,
    "index_select": index_select, "gather": gather, "scatter_add": scatter_add, "index_add": index_add, "lerp": lerp,
    "addcmul": addcmul, "addcdiv": addcdiv,
}  # fmt: skip

_FUNCTIONS: dict[tuple[str, str], Function] = {
    ("Functional", function.__name__): function
    for function in (
        linear, embedding, layer_norm, rms_norm, group_norm, batch_norm, instance_norm, scaled_dot_product_attention,
        gelu, silu, relu, leaky_relu, elu, mish, logsigmoid, glu, sigmoid, tanh, cross_entropy, nll_loss, mse_loss,
        binary_cross_entropy_with_logits,
    )
} | {
    ("Functional", "softmax"): functional_softmax, ("Functional", "log_softmax"): functional_log_softmax,
    ("Torch", "layer_norm"): layer_norm, ("Torch", "rms_norm"): rms_norm, ("Torch", "group_norm"): group_norm,
    **{("Functional", f"conv{number}d"): conv for number in (1, 2, 3)},
    **{("Torch", f"conv{number}d"): conv for number in (1, 2, 3)},
}  # fmt: skip


def find_reference(prefix: str, name: str) -> Function | None:
    """Return the independent formula of a function that a dump names; ``None`` if none is written."""
    if prefix in ("Torch", "Tensor") and (found := _METHODS.get(name if name[-2:] == "__" else name.removesuffix("_"))):
        return found
    return _FUNCTIONS.get((prefix, name))
