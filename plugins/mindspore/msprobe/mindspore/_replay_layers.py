"""Formulas of MindSpore's layers over NumPy arrays: products, norms, convolutions, pools, losses and attention."""

# ruff: noqa: ARG001, ARG005  # formulas take all parameters of their functions, and derivatives argument and result

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from msprobe.mindspore._replay_forms import (
    NoFormulaError,
    array_of,
    checked_size,
    exp,
    extreme,
    form,
    forms,
    halves,
    log_softmax,
    mean,
    softmax,
    vector_norm,
)
from msprobe.mindspore._replay_tape import (
    Array,
    Value,
    accumulated,
    joined,
    matmul,
    moved,
    stopped,
    total,
    unary,
    value_of,
    where,
)

# --- products ---------------------------------------------------------------------------------------------------

forms(
    {
        "matmul mm bmm mv dot __matmul__ vdot": matmul,
        "__rmatmul__": lambda x, y: matmul(y, x),
        "addmm addmv": lambda x, mat1, mat2, *, beta=1, alpha=1: x * beta + matmul(mat1, mat2) * alpha,
        "baddbmm": lambda x, batch1, batch2, beta=1, alpha=1: x * beta + matmul(batch1, batch2) * alpha,
        "addbmm": lambda x, batch1, batch2, *, beta=1, alpha=1: x * beta + total(matmul(batch1, batch2), 0) * alpha,
        "addr": lambda x, vec1, vec2, *, beta=1, alpha=1: x * beta + _outer(vec1, vec2) * alpha,
        "bias_add": lambda x, bias: x + _by_channel(bias, x),
    },
)


@form("inner")
def _inner(x: Value, y: Value) -> Value:
    return matmul(x, moved(y, lambda places: np.swapaxes(places, -1, -2) if places.ndim > 1 else places))


@form("outer ger")
def _outer(x: Value, y: Value) -> Value:
    return x[:, None] * y[None, :]


@form("linear dense")
def _linear(x: Value, weight: Value, bias: Value | None = None) -> Value:
    product = matmul(x, moved(weight, np.transpose))
    return product if bias is None else product + bias


@form("einsum")
def _einsum(equation: str, *operands: Any) -> Value:
    values: Sequence[Value] = operands[0] if len(operands) == 1 and isinstance(operands[0], tuple | list) else operands
    given, arrow, result = equation.replace(" ", "").partition("->")
    terms = given.split(",")
    if "." in equation or len(terms) != len(values) or any(len(set(term)) < len(term) for term in terms):
        raise NoFormulaError(f"the equation {equation}")
    if not arrow:
        result = "".join(sorted(name for name in set(given) - {","} if given.count(name) == 1))
    sizes: dict[str, int] = {}
    for term, value in zip(terms, values, strict=True):
        for name, size in zip(term, value.shape, strict=True):
            if sizes.setdefault(name, size) != size:
                raise NoFormulaError("sizes that are broadcast")
    checked_size([sizes[name] for name in result])
    arrays = [value.array for value in values]

    def derivative(place: int) -> Any:
        others = [i for i in range(len(terms)) if i != place]
        known = set(result).union(*(terms[i] for i in others))
        inner = "".join(name for name in terms[place] if name in known)
        subscripts = ",".join([result, *(terms[i] for i in others)]) + "->" + inner
        index = tuple(slice(None) if name in known else None for name in terms[place])

        def derive(g: Array) -> Array:
            found = np.einsum(subscripts, g, *(arrays[i] for i in others), optimize=True)
            return np.broadcast_to(found[index], values[place].shape)

        return derive

    array = np.einsum(f"{given}->{result}", *arrays, optimize=True)
    return Value(array, [(value, derivative(i)) for i, value in enumerate(values)])


@form("inverse linalg_inv")
def _inverse(x: Value) -> Value:
    array: Array = np.linalg.inv(x.array)
    turned = np.swapaxes(array, -1, -2)
    return Value(array, [(x, lambda g: -turned @ g @ turned)])


@form("det matrix_determinant")
def _det(x: Value) -> Value:
    array = np.asarray(np.linalg.det(x.array))
    turned = np.swapaxes(np.linalg.inv(x.array), -1, -2) if (array != 0).all() else None

    def derive(g: Array) -> Array:
        if turned is None:
            raise NoFormulaError("gradient of a determinant that is 0")
        return (g * array)[..., None, None] * turned

    return Value(array, [(x, derive)])


@form("slogdet log_matrix_determinant")
def _slogdet(x: Value) -> Any:
    sign, array = np.linalg.slogdet(x.array)
    return stopped(sign), Value(
        array, [(x, lambda g: np.asarray(g)[..., None, None] * np.swapaxes(np.linalg.inv(x.array), -1, -2))]
    )


@form("cholesky")
def _cholesky(x: Value, upper: bool = False) -> Value:
    lower: Array = np.linalg.cholesky(x.array)

    def derive(g: Array) -> Array:
        # Murray, *Differentiation of the Cholesky decomposition*, 2016, equation 10.
        g = np.swapaxes(g, -1, -2) if upper else g
        inner = np.tril(np.swapaxes(lower, -1, -2) @ g)
        inner = inner - 0.5 * inner * np.eye(lower.shape[-1])
        inverse = np.linalg.inv(lower)
        whole = np.swapaxes(inverse, -1, -2) @ inner @ inverse
        return 0.5 * (whole + np.swapaxes(whole, -1, -2))

    return Value(np.swapaxes(lower, -1, -2) if upper else lower, [(x, derive)])


@form("cdist")
def _cdist(x: Value, y: Value, p: float = 2.0, *_: Any) -> Value:
    wide, across = x[..., :, None, :], y[..., None, :, :]
    checked_size([*x.shape, y.shape[-2]])
    return vector_norm_by_element(wide - across, p)


def vector_norm_by_element(x: Value, order: float) -> Value:
    """Return p-norms along the last dimension, where each has a size of its own."""
    if order != 2:
        return vector_norm(x, order, -1, False)
    return unary(total(x * x, -1), np.sqrt, lambda a, b: np.where(b == 0, 0.0, 0.5 / np.where(b == 0, 1, b)))


@form("cosine_similarity")
def _cosine_similarity(x: Value, y: Value, axis: int = 1, eps: float = 1e-8) -> Value:
    def size(value: Value) -> Value:
        root = unary(total(value * value, axis), np.sqrt, lambda a, b: 0.5 / np.where(b == 0, 1.0, b))
        return where(root.array > eps, root, eps)

    return total(x * y, axis) / (size(x) * size(y))


# --- norms ------------------------------------------------------------------------------------------------------


def _normed(x: Value, axes: Any, eps: float) -> Value:
    centered = x - mean(x, axes, True)
    return centered * _rsqrt(mean(centered * centered, axes, True) + eps)


def _rsqrt(x: Value) -> Value:
    return unary(x, lambda a: 1 / np.sqrt(a), lambda a, b: -0.5 * b / a)


@form("layer_norm")
def _layer_norm(
    x: Value, normalized_shape: Any, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5
) -> Value:
    if isinstance(normalized_shape, Value):
        raise NoFormulaError("no normalized shape")
    count = 1 if isinstance(normalized_shape, int) else len(normalized_shape)
    normed = _normed(x, tuple(range(-count, 0)), eps)
    normed = normed if weight is None else normed * weight
    return normed if bias is None else normed + bias


@form("rms_norm", ("Functional",))
def _rms_norm(x: Value, weight: Value, eps: float = 1e-6) -> Any:
    """Zhang and Sennrich, *Root Mean Square Layer Normalization*, 2019; the second result is 1 by the root."""
    inverse = _rsqrt(mean(x * x, tuple(range(-weight.ndim, 0)), True) + eps)
    return x * inverse * weight, inverse


@form("rms_norm", ("Mint", "MintFunctional"))
def _rms_norm_mint(x: Value, normalized_shape: Any, weight: Value | None = None, eps: float | None = None) -> Value:
    if eps is None:
        raise NoFormulaError("the epsilon of a dtype")
    axes = tuple(range(-len(normalized_shape), 0))
    normed = x * _rsqrt(mean(x * x, axes, True) + eps)
    return normed if weight is None else normed * weight


@form("add_rms_norm", ("Functional",))
def _add_rms_norm(x1: Value, x2: Value, weight: Value, eps: float = 1e-6) -> Any:
    whole = x1 + x2
    return *_rms_norm(whole, weight, eps), whole


def _by_channel(value: Value, x: Value) -> Value:
    return moved(value, lambda places: places.reshape((1, -1) + (1,) * (x.ndim - 2)))


def _scaled(x: Value, weight: Value | None, bias: Value | None) -> Value:
    x = x if weight is None else x * _by_channel(weight, x)
    return x if bias is None else x + _by_channel(bias, x)


@form("group_norm")
def _group_norm(
    x: Value, num_groups: int, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5
) -> Value:
    grouped = moved(x, lambda places: places.reshape(x.shape[0], num_groups, -1))
    normed = moved(_normed(grouped, -1, eps), lambda places: places.reshape(x.shape))
    return _scaled(normed, weight, bias)


def _batch_normed(x: Value, center: Any, spread: Any, weight: Any, bias: Any, training: bool, eps: float) -> Value:
    axes = (0, *range(2, x.ndim))
    if training:
        return _scaled(_normed(x, axes, eps), weight, bias)
    if center is None or spread is None:
        raise NoFormulaError("no running mean")
    return _scaled((x - _by_channel(center, x)) * _by_channel(_rsqrt(spread + eps), x), weight, bias)


@form("batch_norm", ("Functional",))
def _batch_norm(
    x: Value, running_mean: Any, running_var: Any, weight: Any, bias: Any, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Value:  # fmt: skip
    return _batch_normed(x, running_mean, running_var, weight, bias, training, eps)


@form("batch_norm", ("Mint", "MintFunctional"))
def _batch_norm_mint(
    x: Value, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Value:  # fmt: skip
    return _batch_normed(x, running_mean, running_var, weight, bias, training, eps)


@form("normalize")
def _normalize(x: Value, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Value:
    size = (
        unary(total(x * x, axis, True), np.sqrt, lambda a, b: 0.5 / np.where(b == 0, 1.0, b))
        if p == 2
        else vector_norm(x, p, axis, True)
    )
    return x / where(size.array > eps, size, eps)


# --- convolutions -----------------------------------------------------------------------------------------------


def _tuple(value: Any, count: int) -> tuple[int, ...]:
    several = tuple(value) if isinstance(value, tuple | list) else (value,) * count
    several = several * count if len(several) == 1 else several
    if len(several) != count or not all(isinstance(each, int) for each in several):
        raise NoFormulaError(f"{value} for {count} dimensions")
    return several


def _padded(x: Value, pads: Sequence[tuple[int, int]], fill: float = 0.0) -> Value:
    if not any(map(any, pads)):
        return x
    if min(min(each) for each in pads) < 0:
        raise NoFormulaError("a negative padding")
    widths = [(0, 0)] * (x.ndim - len(pads)) + list(pads)
    checked_size([size + a + b for size, (a, b) in zip(x.shape, widths, strict=True)])
    return joined(
        [x, Value(np.asarray([fill], x.array.dtype))],
        lambda places: np.pad(places[0], widths, constant_values=int(places[1][0])),
    )


def _windows(places: Array, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Array:
    """Return windows of the last dimensions: those, and then the dimensions of the kernel."""
    count = len(kernel)
    spans = tuple(dilation[i] * (kernel[i] - 1) + 1 for i in range(count))
    axes = tuple(range(places.ndim - count, places.ndim))
    view: Any = np.lib.stride_tricks.sliding_window_view  # its type hints lack several dimensions
    seen: Array = view(places, spans, axes)
    chosen = tuple(slice(None, None, step) for step in (*stride, *dilation))
    seen = seen[(..., *chosen)]
    checked_size(seen.shape)
    return seen


def convolved(x: Value, weight: Value, bias: Value | None, stride: Any, pads: Any, dilation: Any, groups: int) -> Value:
    """Return a convolution of the last dimensions, as a product with all windows."""
    count = weight.ndim - 2
    stride, dilation = _tuple(stride, count), _tuple(dilation, count)
    padded = _padded(x, pads)
    # [batch, groups, channels, *places, *kernel]
    windows = moved(
        padded,
        lambda places: _windows(
            places.reshape((x.shape[0], groups, -1, *padded.shape[2:])), weight.shape[2:], stride, dilation
        ),
    )
    sizes = windows.shape[3 : 3 + count]
    order = (1, 0, *range(3, 3 + count), 2, *range(3 + count, 3 + 2 * count))
    rows = moved(
        windows,
        lambda places: places.transpose(order).reshape(groups, x.shape[0] * math.prod(sizes), -1),
    )
    columns = moved(weight, lambda places: places.reshape(groups, weight.shape[0] // groups, -1).swapaxes(1, 2))
    product = matmul(rows, columns)  # [groups, batch * places, channels]
    result = moved(
        product,
        lambda places: np.moveaxis(places.reshape(groups, x.shape[0], *sizes, -1), (0, -1), (1, 2)).reshape(
            x.shape[0], weight.shape[0], *sizes
        ),
    )
    return result if bias is None else result + _by_channel(bias, result)


def _pads(
    mode: Any, padding: Any, size: Sequence[int], kernel: Sequence[int], stride: Any, dilation: Any
) -> list[tuple[int, int]]:
    count = len(kernel)
    if mode == "same":
        steps, spread = _tuple(stride, count), _tuple(dilation, count)
        needed = [
            max((-(-size[i] // steps[i]) - 1) * steps[i] + spread[i] * (kernel[i] - 1) + 1 - size[i], 0)
            for i in range(count)
        ]
        return [(each // 2, each - each // 2) for each in needed]
    if mode == "valid":
        return [(0, 0)] * count
    if isinstance(padding, tuple | list) and len(padding) == 2 * count and count > 1:
        return [(padding[2 * i], padding[2 * i + 1]) for i in range(count)]
    return [(each, each) for each in _tuple(padding, count)]


@form("conv1d conv2d conv3d", ("Mint", "MintFunctional"))
def _conv(
    x: Value, weight: Value, bias: Value | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Value:  # fmt: skip
    if x.ndim == weight.ndim - 1:
        return _conv(x[None], weight, bias, stride, padding, dilation, groups)[0]
    mode = padding if isinstance(padding, str) else "pad"
    pads = _pads(mode, padding, x.shape[2:], weight.shape[2:], stride, dilation)
    return convolved(x, weight, bias, stride, pads, dilation, groups)


@form("conv1d conv2d conv3d", ("Functional",))
def _conv_ops(
    x: Value, weight: Value, bias: Value | None = None, stride: Any = 1, pad_mode: str = "valid", padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Value:  # fmt: skip
    pads = _pads(pad_mode, padding, x.shape[2:], weight.shape[2:], stride, dilation)
    return convolved(x, weight, bias, stride, pads, dilation, groups)


@form("conv_transpose2d", ("Mint", "MintFunctional"))
def _conv_transpose2d(
    x: Value, weight: Value, bias: Value | None = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Value:  # fmt: skip
    steps, pads, extra, spread = (_tuple(each, 2) for each in (stride, padding, output_padding, dilation))
    batch, channels = x.shape[0], weight.shape[1]
    kernel = weight.shape[2:]
    full = [(x.shape[2 + i] - 1) * steps[i] + spread[i] * (kernel[i] - 1) + 1 + extra[i] for i in range(2)]
    checked_size([batch, groups, channels, *x.shape[2:], *kernel])
    # [groups, batch * places, in] @ [groups, in, channels * kernel]
    rows = moved(
        x,
        lambda places: (
            places.reshape(batch, groups, -1, x.shape[2] * x.shape[3])
            .transpose(1, 0, 3, 2)
            .reshape(groups, batch * x.shape[2] * x.shape[3], -1)
        ),
    )
    columns = moved(weight, lambda places: places.reshape(groups, weight.shape[0] // groups, -1))
    parts = moved(
        matmul(rows, columns),
        lambda places: places.reshape(groups, batch, x.shape[2], x.shape[3], channels, *kernel).transpose(
            1, 0, 4, 2, 3, 5, 6
        ),
    )
    shape = (batch, groups, channels, *full)
    targets = np.arange(math.prod(shape)).reshape(shape)
    spans = [(x.shape[2 + i] - 1) * steps[i] + spread[i] * (kernel[i] - 1) + 1 for i in range(2)]
    targets = _windows(targets[..., : spans[0], : spans[1]], kernel, steps, spread)
    whole = accumulated(stopped(np.zeros(shape, x.array.dtype)), targets, parts)
    result = moved(
        whole,
        lambda places: places.reshape(batch, groups * channels, *full)[
            :, :, pads[0] : full[0] - pads[0], pads[1] : full[1] - pads[1]
        ],
    )
    return result if bias is None else result + _by_channel(bias, result)


@form("unfold", ("MintFunctional",))
def _unfold(x: Value, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Value:
    kernel, steps = _tuple(kernel_size, 2), _tuple(stride, 2)
    padded = _padded(x, [(each, each) for each in _tuple(padding, 2)])
    windows = moved(padded, lambda places: _windows(places, kernel, steps, _tuple(dilation, 2)))
    return moved(
        windows,
        lambda places: places.transpose(0, 1, 4, 5, 2, 3).reshape(x.shape[0], x.shape[1] * math.prod(kernel), -1),
    )


@form("fold", ("MintFunctional",))
def _fold(x: Value, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Value:
    size, kernel, pads = _tuple(output_size, 2), _tuple(kernel_size, 2), _tuple(padding, 2)
    shape = (x.shape[0], x.shape[1] // math.prod(kernel), size[0] + 2 * pads[0], size[1] + 2 * pads[1])
    checked_size(shape)
    targets = _windows(
        np.arange(math.prod(shape)).reshape(shape), kernel, _tuple(stride, 2), _tuple(dilation, 2)
    ).transpose(0, 1, 4, 5, 2, 3)
    whole = accumulated(
        stopped(np.zeros(shape, x.array.dtype)), targets, moved(x, lambda places: places.reshape(targets.shape))
    )
    return whole[:, :, pads[0] : shape[2] - pads[0], pads[1] : shape[3] - pads[1]]


@form("pixel_shuffle", ("Functional", "MintFunctional"))
def _pixel_shuffle(x: Value, upscale_factor: int) -> Value:
    *batch, channels, height, width = x.shape
    r = upscale_factor
    return moved(
        x,
        lambda places: np.moveaxis(places.reshape(*batch, channels // r**2, r, r, height, width), (-4, -3), (-3, -1))
        .reshape(*batch, channels // r**2, height * r, width * r),
    )  # fmt: skip


# --- pools ------------------------------------------------------------------------------------------------------


def _pooled(
    x: Value, kernel: Any, stride: Any, padding: Any, count: int, ceil_mode: bool, dilation: Any = 1, fill: float = 0.0
) -> Value:
    """Return the windows of a pool: the last dimensions are those of the kernel."""
    if ceil_mode:
        raise NoFormulaError("ceil_mode")
    kernel = _tuple(kernel, count)
    stride = kernel if stride is None or stride == () else _tuple(stride, count)
    pads = [(each, each) for each in _tuple(padding, count)]
    padded = _padded(x, pads, fill)
    return moved(padded, lambda places: _windows(places, kernel, stride, _tuple(dilation, count)))


def _avg_pool(count: int, default_stride: Any) -> Any:
    def apply(
        x: Value, kernel_size: Any = 1, stride: Any = default_stride, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: Any = None,
    ) -> Value:  # fmt: skip
        windows = _pooled(x, kernel_size, stride, padding, count, ceil_mode)
        axes = tuple(range(-count, 0))
        if divisor_override:
            return total(windows, axes) / divisor_override
        if count_include_pad:
            return mean(windows, axes)
        ones = _pooled(stopped(np.ones_like(x.array)), kernel_size, stride, padding, count, ceil_mode)
        return total(windows, axes) / total(ones, axes)

    return apply


def _max_pool(count: int) -> Any:
    def apply(
        x: Value, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, *args: Any,
        return_indices: bool = False, ceil_mode: bool = False,
    ) -> Value:  # fmt: skip
        if return_indices or any(args):
            raise NoFormulaError("indices")
        windows = _pooled(x, kernel_size, stride, padding, count, ceil_mode, dilation, -np.inf)
        flat = moved(windows, lambda places: places.reshape((*windows.shape[:-count], -1)))
        best = flat.array.argmax(-1)[..., None]
        return moved(flat, lambda places: np.take_along_axis(places, best, -1)[..., 0])

    return apply


def _adaptive(count: int, *, is_mean: bool) -> Any:
    def apply(x: Value, output_size: Any, return_indices: bool = False) -> Value:
        if return_indices:
            raise NoFormulaError("indices")
        wanted = tuple(output_size) if isinstance(output_size, tuple | list) else (output_size,) * count
        for axis, size in zip(range(x.ndim - count, x.ndim), wanted, strict=True):
            if size is None or size == -1:
                continue
            length = x.shape[axis]
            parts = [
                x[(slice(None),) * axis + (slice(i * length // size, -(-(i + 1) * length // size)),)]
                for i in range(size)
            ]
            pooled = [
                mean(part, axis, True) if is_mean else extreme(part, axis, True, is_largest=True) for part in parts
            ]
            x = joined(pooled, lambda places, axis=axis: np.concatenate(places, axis))
        return x

    return apply


for _count in (1, 2, 3):
    form(f"avg_pool{_count}d", ("Functional",))(_avg_pool(_count, 1))
    form(f"avg_pool{_count}d", ("MintFunctional",))(_avg_pool(_count, None))
    form(f"max_pool{_count}d", ("Functional", "MintFunctional"))(_max_pool(_count))
    form(f"adaptive_avg_pool{_count}d", ("Functional", "MintFunctional"))(_adaptive(_count, is_mean=True))
    form(f"adaptive_max_pool{_count}d", ("Functional", "MintFunctional"))(_adaptive(_count, is_mean=False))


@form("pad")
def _pad(x: Value, padding: Any, mode: str = "constant", value: Any = None) -> Value:
    numbers = [int(each) for each in (padding.array.tolist() if isinstance(padding, Value) else padding)]
    pairs = list(zip(numbers[::2], numbers[1::2], strict=True))[::-1]
    if mode == "constant":
        return _padded(x, pairs, float(value or 0.0))
    if min(numbers, default=0) < 0:
        raise NoFormulaError("a negative padding")
    widths = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    checked_size([size + a + b for size, (a, b) in zip(x.shape, widths, strict=True)])
    named: Any = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode]
    return moved(x, lambda places: np.pad(places, widths, mode=named))


# --- pictures ---------------------------------------------------------------------------------------------------


@form("interpolate")
def _interpolate(
    x: Value, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: Any = None,
    recompute_scale_factor: Any = None,
) -> Value:  # fmt: skip
    count = x.ndim - 2
    if size is None:
        factors = scale_factor if isinstance(scale_factor, tuple | list) else (scale_factor,) * count
        wanted = [math.floor(x.shape[2 + i] * factors[i]) for i in range(count)]
        exact = all(wanted[i] == x.shape[2 + i] * factors[i] for i in range(count))
        if not exact:
            raise NoFormulaError("sizes that are not whole")
    else:
        wanted = list(_tuple(size, count))
    checked_size([*x.shape[:2], *wanted])
    for i in range(count):
        axis, length, out = 2 + i, x.shape[2 + i], wanted[i]
        if mode == "nearest":
            chosen = np.minimum((np.arange(out) * (length / out)).astype(np.int64), length - 1)
            x = moved(x, lambda places, axis=axis, chosen=chosen: np.take(places, chosen, axis))
        elif mode in ("linear", "bilinear", "trilinear"):
            x = _linear_between(x, axis, out, is_aligned=bool(align_corners))
        else:
            raise NoFormulaError(f"mode {mode}")
    return x


def _linear_between(x: Value, axis: int, out: int, *, is_aligned: bool) -> Value:
    length = x.shape[axis]
    if is_aligned:
        places = np.arange(out) * ((length - 1) / (out - 1) if out > 1 else 0.0)
    else:
        places = np.maximum((np.arange(out) + 0.5) * (length / out) - 0.5, 0)
    low = np.minimum(places.astype(np.int64), length - 1)
    high = np.minimum(low + 1, length - 1)
    share = (places - low).reshape([-1 if i == axis else 1 for i in range(x.ndim)]).astype(x.array.dtype)
    first, second = (moved(x, lambda each, at=at: np.take(each, at, axis)) for at in (low, high))
    return first * stopped(1 - share) + second * stopped(share)


@form("grid_sample", ("Functional", "MintFunctional"))
def _grid_sample(
    x: Value, grid: Value, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: Any = False
) -> Value:
    if x.ndim != 4 or mode != "bilinear" or padding_mode not in ("zeros", "border"):
        raise NoFormulaError(f"mode {mode}")
    batch, _, height, width = x.shape
    sizes = (width, height)
    axes: list[tuple[Value, Array]] = []
    for i in range(2):
        place = grid[..., i]
        place = (place + 1) * ((sizes[i] - 1) / 2) if align_corners else ((place + 1) * sizes[i] - 1) / 2
        if padding_mode == "border":
            place = where(place.array < 0, 0.0 * place, place)
            place = where(place.array > sizes[i] - 1, 0.0 * place + (sizes[i] - 1), place)
        axes.append((place, np.floor(place.array).astype(np.int64)))
    (across, left), (down, top) = axes
    result: Value | None = None
    rows = np.arange(batch).reshape(-1, 1, 1)
    for step_y in (0, 1):
        for step_x in (0, 1):
            at_x, at_y = left + step_x, top + step_y
            inside = (at_x >= 0) & (at_x < width) & (at_y >= 0) & (at_y < height)
            safe_x, safe_y = np.clip(at_x, 0, width - 1), np.clip(at_y, 0, height - 1)
            taken = moved(x, lambda places, y=safe_y, x=safe_x: np.moveaxis(places[rows, :, y, x], -1, 1))
            share_x = across - stopped(left.astype(across.array.dtype)) if step_x else 1 + stopped(left) - across
            share_y = down - stopped(top.astype(down.array.dtype)) if step_y else 1 + stopped(top) - down
            part = taken * moved(share_x * share_y, lambda places: places[:, None])
            part = where(inside[:, None], part, 0.0)
            result = part if result is None else result + part
    assert result is not None
    return result


# --- embeddings and losses --------------------------------------------------------------------------------------


@form("embedding")
def _embedding(
    indices: Value, weight: Value, padding_idx: Any = None, max_norm: Any = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
) -> Value:  # fmt: skip
    if max_norm is not None or scale_grad_by_freq:
        raise NoFormulaError("max_norm and scale_grad_by_freq")
    taken = moved(weight, lambda places: np.take(places, indices.array, 0))
    if padding_idx is None:
        return taken
    # No gradient flows to the row of the padding.
    is_padding = (indices.array == padding_idx % weight.shape[0])[..., None]
    return where(is_padding, stopped(taken.array), taken)


@form("one_hot", ("Mint", "MintFunctional"))
def _one_hot(x: Value, num_classes: int = -1) -> Value:
    return _one_hot_ops(x, int(x.array.max()) + 1 if num_classes == -1 else num_classes)


@form("one_hot", ("Functional",))
def _one_hot_ops(indices: Value, depth: int, on_value: Any = 1, off_value: Any = 0, axis: int = -1) -> Value:
    checked_size([indices.size, depth])
    hot = indices.array[..., None] == np.arange(depth)
    array = np.where(hot, array_of(on_value), array_of(off_value))
    return stopped(array if axis == -1 else np.moveaxis(array, -1, axis))


def _reduced(x: Value, reduction: str, weights: Value | None = None) -> Value:
    if reduction == "none":
        return x
    if reduction == "sum":
        return total(x)
    if reduction != "mean":
        raise NoFormulaError(f"reduction {reduction}")
    return mean(x) if weights is None else total(x) / total(weights)


@form("cross_entropy")
def _cross_entropy(
    x: Value, y: Value, weight: Value | None = None, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Value:  # fmt: skip
    axis = 0 if x.ndim == 1 else 1
    log_p = log_softmax(x, axis)
    if not y.is_floating:
        return _nll(log_p, y, weight, ignore_index, reduction, label_smoothing)
    share = y * (1 - label_smoothing) + label_smoothing / x.shape[axis]
    by_class = log_p * share
    by_class = by_class if weight is None else by_class * _by_channel(weight, x)
    loss = -total(by_class, axis)
    return total(loss) / (loss.size or 1) if reduction == "mean" else _reduced(loss, reduction)


@form("nll_loss")
def _nll(
    x: Value, y: Value, weight: Value | None = None, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Value:  # fmt: skip
    if x.ndim == 1:
        x, y = x[None], moved(y, lambda places: places.reshape(1))
    classes = x.shape[1]
    is_counted = y.array != ignore_index
    chosen = np.where(is_counted, y.array, 0)
    if not ((chosen >= 0) & (chosen < classes)).all():
        raise IndexError("a label is out of range")
    weights = value_of(np.ones(classes, x.array.dtype), x) if weight is None else weight
    by_row = where(is_counted, weights[chosen], 0.0)
    loss = -moved(x, lambda places: np.take_along_axis(places, chosen[:, None], 1)[:, 0]) * by_row
    if label_smoothing:
        wide = where(np.expand_dims(is_counted, 1), -x * _by_channel(weights, x), 0.0)
        loss = loss * (1 - label_smoothing) + total(wide, 1) * (label_smoothing / classes)
    return _reduced(loss, reduction, by_row)


@form("binary_cross_entropy")
def _binary_cross_entropy(x: Value, y: Value, weight: Value | None = None, reduction: str = "mean") -> Value:
    def log(value: Value) -> Value:  # both frameworks limit it to -100
        return unary(
            value,
            lambda a: np.maximum(np.log(a), -100),
            lambda a, b: np.where(b > -100, 1 / np.where(a > 0, a, 1), 0.0),
        )

    loss = -(y * log(x) + (1 - y) * log(1 - x))
    return _reduced(loss if weight is None else loss * weight, reduction)


@form("binary_cross_entropy_with_logits")
def _binary_cross_entropy_with_logits(
    x: Value, y: Value, weight: Value | None = None, pos_weight: Value | None = None, reduction: str = "mean"
) -> Value:
    if isinstance(weight, str) or isinstance(pos_weight, str):
        raise NoFormulaError("a reduction as the third argument")
    plus = unary(-x, lambda a: np.logaddexp(0, a), lambda a, b: 1 / (1 + np.exp(-a)))
    factor = 1.0 if pos_weight is None else (pos_weight - 1) * y + 1
    loss = (1 - y) * x + plus * factor
    return _reduced(loss if weight is None else loss * weight, reduction)


@form("kl_div")
def _kl_div(x: Value, y: Value, reduction: str = "mean", log_target: bool = False) -> Value:
    if log_target:
        loss = exp(y) * (y - x)
    else:
        safe = where(y.array > 0, y, 1.0)
        loss = where(y.array > 0, y * (unary(safe, np.log, lambda a, b: 1 / a) - x), 0.0 * y)
    return total(loss) / x.shape[0] if reduction == "batchmean" else _reduced(loss, reduction)


def _size(x: Value) -> Value:
    return unary(x, np.abs, lambda a, b: np.sign(a))


@form("l1_loss")
def _l1_loss(x: Value, y: Value, reduction: str = "mean") -> Value:
    return _reduced(_size(x - y), reduction)


@form("mse_loss")
def _mse_loss(x: Value, y: Value, reduction: str = "mean") -> Value:
    return _reduced((x - y) * (x - y), reduction)


def _smooth(x: Value, y: Value, beta: float, reduction: str, scale: float) -> Value:
    size = _size(x - y)
    inside = size * size * (0.5 / beta)
    return _reduced(where(size.array < beta, inside, size - 0.5 * beta) * scale, reduction)


@form("smooth_l1_loss", ("Functional",))
def _smooth_l1_ops(x: Value, y: Value, beta: float = 1.0, reduction: str = "none") -> Value:
    return _smooth(x, y, beta, reduction, 1.0)


@form("smooth_l1_loss", ("Mint", "MintFunctional"))
def _smooth_l1(x: Value, y: Value, reduction: str = "mean", beta: float = 1.0) -> Value:
    if beta == 0:
        return _l1_loss(x, y, reduction)
    return _smooth(x, y, beta, reduction, 1.0)


@form("huber_loss")
def _huber_loss(x: Value, y: Value, reduction: str = "mean", delta: float = 1.0) -> Value:
    return _smooth(x, y, delta, reduction, delta)


@form("soft_margin_loss")
def _soft_margin_loss(x: Value, y: Value, reduction: str = "mean") -> Value:
    return _reduced(unary(-y * x, lambda a: np.logaddexp(0, a), lambda a, b: 1 / (1 + np.exp(-a))), reduction)


@form("cosine_embedding_loss")
def _cosine_embedding_loss(x1: Value, x2: Value, y: Value, margin: float = 0.0, reduction: str = "mean") -> Value:
    cosine = _cosine_similarity(x1, x2, -1, 0.0)
    apart = where(cosine.array > margin, cosine - margin, 0.0 * cosine)
    return _reduced(where(y.array == 1, 1 - cosine, apart), reduction)


@form("margin_ranking_loss")
def _margin_ranking_loss(x1: Value, x2: Value, y: Value, margin: float = 0.0, reduction: str = "mean") -> Value:
    loss = -y * (x1 - x2) + margin
    return _reduced(where(loss.array > 0, loss, 0.0 * loss), reduction)


# --- attention --------------------------------------------------------------------------------------------------


@form("scaled_dot_product_attention")
def _attention(
    query: Value, key: Value, value: Value, attn_mask: Value | None = None, dropout_p: float = 0.0,
    is_causal: bool = False,
) -> Value:  # fmt: skip
    if dropout_p:
        raise NoFormulaError("dropout")
    scores = matmul(query, _turned(key)) / math.sqrt(query.shape[-1])
    if is_causal:
        scores = where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    if attn_mask is not None:
        scores = where(attn_mask, scores, -np.inf) if attn_mask.array.dtype.kind == "b" else scores + attn_mask
    return matmul(softmax(scores, -1), value)


def _turned(x: Value) -> Value:
    return moved(x, lambda places: np.swapaxes(places, -1, -2))


_LAYOUTS = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3)}


@form("flash_attention_score", ("Functional",))
def _flash_attention_score(
    query: Value, key: Value, value: Value, head_num: int, real_shift: Value | None = None, drop_mask: Any = None,
    padding_mask: Any = None, attn_mask: Value | None = None, prefix: Any = None, actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None, keep_prob: float = 1.0, scalar_value: float = 1.0, pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647, inner_precise: int = 0, input_layout: str = "BSH", sparse_mode: int = 0,
) -> Value:  # fmt: skip
    """The attention of MindSpore's documentation of ``ops.flash_attention_score``, without dropout."""
    if drop_mask is not None or keep_prob != 1.0:
        raise NoFormulaError("dropout")
    if prefix is not None or sparse_mode > 4:
        raise NoFormulaError(f"sparse mode {sparse_mode}")
    if input_layout == "TND":
        return _of_sequences(
            query, key, value, real_shift, attn_mask, actual_seq_qlen, actual_seq_kvlen, scalar_value,
            (sparse_mode, pre_tokens, next_tokens),
        )  # fmt: skip
    q, k, v = (_as_heads(x, head_num, query, input_layout) for x in (query, key, value))
    mixed = _flash(q, k, v, real_shift, attn_mask, scalar_value, (sparse_mode, pre_tokens, next_tokens))
    return _from_heads(mixed, input_layout)


def _as_heads(x: Value, head_num: int, query: Value, layout: str) -> Value:
    if layout in _LAYOUTS:
        return moved(x, lambda places: places.transpose(_LAYOUTS[layout]))
    if layout not in ("BSH", "SBH") or query.shape[-1] % head_num:
        raise NoFormulaError(f"layout {layout}")
    size = query.shape[-1] // head_num
    first = (0, 2, 1, 3) if layout == "BSH" else (1, 2, 0, 3)
    return moved(x, lambda places: places.reshape(*x.shape[:2], -1, size).transpose(first))


def _from_heads(x: Value, layout: str) -> Value:
    if layout in _LAYOUTS:
        return moved(x, lambda places: places.transpose(_LAYOUTS[layout]))
    order = (0, 2, 1, 3) if layout == "BSH" else (2, 0, 1, 3)
    turned = moved(x, lambda places: places.transpose(order))
    return moved(turned, lambda places: places.reshape(*turned.shape[:2], -1))


def _flash(
    q: Value, k: Value, v: Value, shift: Value | None, mask: Value | None, scale: float, sparse: tuple[int, int, int]
) -> Value:
    """Attention of [batch, heads, length, size]; groups of query heads may share one of the key."""
    shared = q.shape[1] // k.shape[1]
    if shared * k.shape[1] != q.shape[1]:
        raise NoFormulaError("heads that are no multiple")
    if shared > 1:
        k, v = (moved(x, lambda places: np.repeat(places, shared, 1)) for x in (k, v))
    checked_size([*q.shape[:3], k.shape[2]])
    scores = matmul(q, _turned(k)) * scale
    if shift is not None:
        scores = scores + shift
    hidden = _hidden(q.shape[2], k.shape[2], mask, sparse)
    if hidden is None:
        return matmul(softmax(scores, -1), v)
    weights = (
        softmax(where(hidden, -np.inf, scores), -1) if not hidden.all(-1).any() else _with_empty_rows(scores, hidden)
    )
    return matmul(weights, v)


def _with_empty_rows(scores: Value, hidden: Array) -> Value:
    """Return the weights where some queries see nothing: those rows are zero."""
    empty = hidden.all(-1, keepdims=True)
    return where(empty, 0.0, softmax(where(hidden & ~empty, -np.inf, scores), -1))


def _hidden(num_q: int, num_k: int, mask: Value | None, sparse: tuple[int, int, int]) -> Array | None:
    """Return which scores are hidden, by sparse mode: 0 and 1 by the mask, 2 to 4 by a triangle or band.

    Modes 2 and 3 hide what is above the diagonal that ends at the upper left, and at the lower right; 4 is a band.
    Mode 0 with a mask is a band by ``pre_tokens`` and ``next_tokens`` within it.
    """
    mode, before, after = sparse
    rows, columns = np.arange(num_q)[:, None], np.arange(num_k)[None, :]
    if mode == 0:
        if mask is None:
            return None
        band = (columns - rows > after) | (rows - columns > before)
        return mask.array.astype(bool) | band
    if mode == 1:
        if mask is None:
            raise NoFormulaError("sparse mode 1 without a mask")
        return mask.array.astype(bool)
    if mode == 2:
        return columns > rows
    offset = num_k - num_q
    if mode == 3:
        return columns - rows > offset
    return (columns - rows - offset > after) | (rows + offset - columns > before)


def _of_sequences(
    query: Value, key: Value, value: Value, shift: Any, mask: Value | None, ends_q: Any, ends_k: Any, scale: float,
    sparse: tuple[int, int, int],
) -> Value:  # fmt: skip
    """Attention of sequences one after the other: [all tokens, heads, size]."""
    if shift is not None or ends_q is None or ends_k is None:
        raise NoFormulaError("sequences without their ends")
    ends_q, ends_k = (np.asarray(array_of(ends)).tolist() for ends in (ends_q, ends_k))
    if ends_q[-1] != query.shape[0] or ends_k[-1] != key.shape[0] or len(ends_q) != len(ends_k):
        raise NoFormulaError("ends that are not those of the sequences")
    if sparse[0] in (0, 1) and mask is not None:
        raise NoFormulaError("a mask of sequences")
    parts: list[Value] = []
    first_q = first_k = 0
    for last_q, last_k in zip(ends_q, ends_k, strict=True):
        q = moved(query, lambda places, a=first_q, b=last_q: places[a:b].swapaxes(0, 1)[None])
        k, v = (moved(x, lambda places, a=first_k, b=last_k: places[a:b].swapaxes(0, 1)[None]) for x in (key, value))
        mixed = _flash(q, k, v, None, mask, scale, sparse)
        parts.append(moved(mixed, lambda places: places[0].swapaxes(0, 1)))
        first_q, first_k = last_q, last_k
    return joined(parts, lambda places: np.concatenate(places, 0))


@form("rotary_position_embedding", ("Functional",))
def _rotary(x: Value, cos: Value, sin: Value, mode: int = 0) -> Value:
    """Su et al., *RoFormer*, 2021; mode 0 turns both halves, 1 neighbours."""
    if mode == 0:
        first, second = halves(x, -1)
        turned = joined([-second, first], lambda places: np.concatenate(places, -1))
    elif mode == 1:
        even, odd = x[..., ::2], x[..., 1::2]
        turned = joined([-odd, even], lambda places: np.stack(places, -1).reshape(x.shape))
    else:
        raise NoFormulaError(f"mode {mode}")
    return x * cos + turned * sin
