"""NumPy arrays that remember how they were computed, for gradients in float64.

MindSpore's kernels on the CPU are no oracle: many functions have none, some have none for float64, and others compute
in float32 when they are given float64. So the formulas of functions are evaluated with these arrays.
"""

# ruff: noqa: ARG005  # derivatives take what every operation has

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Derivative: TypeAlias = Callable[[Array], Array]

MAX_ELEMENTS = 1 << 26
"""Limit of the elements of an intermediate array: half a GiB."""


class TooLargeError(ValueError):
    """An intermediate array would have more than `MAX_ELEMENTS` elements."""


class Value:
    """An array, and the values that it was computed from.

    Args:
        array: Its elements.
        sources: Each value that it depends on, with the function from the gradient of this value to the part of the
            gradient of that one. Both have the shape of their value.
    """

    __slots__ = ("array", "sources")
    __array_ufunc__ = None  # so that an array as the left operand leaves operators to this class

    def __init__(self, array: Any, sources: Sequence[tuple[Value, Derivative]] = ()) -> None:
        self.array: Array = np.asarray(array)
        self.sources = tuple(sources) if self.is_floating else ()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def ndim(self) -> int:
        return self.array.ndim

    @property
    def size(self) -> int:
        return self.array.size

    @property
    def is_floating(self) -> bool:
        return self.array.dtype.kind == "f"

    def __add__(self, other: Any) -> Value:
        return binary(np.add, self, other, lambda g, a, b: (g, g))

    def __sub__(self, other: Any) -> Value:
        return binary(np.subtract, self, other, lambda g, a, b: (g, -g))

    def __mul__(self, other: Any) -> Value:
        return binary(np.multiply, self, other, lambda g, a, b: (g * b, g * a))

    def __truediv__(self, other: Any) -> Value:
        return binary(np.true_divide, floating(self), other, lambda g, a, b: (g / b, -g * a / (b * b)))

    def __rsub__(self, other: Any) -> Value:
        return value_of(other, self) - self

    def __rtruediv__(self, other: Any) -> Value:
        return value_of(other, self) / self

    def __radd__(self, other: Any) -> Value:
        return value_of(other, self) + self

    __rmul__ = __mul__

    def __pow__(self, other: Any) -> Value:
        return power(self, other)

    def __neg__(self) -> Value:
        return unary(self, np.negative, lambda x, y: -np.ones_like(x))

    def __matmul__(self, other: Any) -> Value:
        return matmul(self, other)

    def __getitem__(self, index: Any) -> Value:
        return moved(self, lambda places: places[index])


def value_of(value: Any, like: Value) -> Value:
    """Return a number or an array as a value, of the dtype of another one if that is floating."""
    if isinstance(value, Value):
        return value
    if isinstance(value, bool | int) and not like.is_floating:
        return Value(np.asarray(value, like.array.dtype if like.array.dtype.kind != "b" else None))
    if isinstance(value, bool | int | float):
        return Value(np.asarray(value, like.array.dtype if like.is_floating else np.float64))
    return Value(value)


def floating(value: Value) -> Value:
    """Return the value itself, or integers as float64."""
    return value if value.is_floating else Value(value.array.astype(np.float64))


def _unbroadcast(gradient: Array, shape: tuple[int, ...]) -> Array:
    if gradient.shape == shape:
        return gradient
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    axes = tuple(i for i, size in enumerate(shape) if size == 1 and gradient.shape[i] != 1)
    return gradient.sum(axis=axes, keepdims=True) if axes else gradient


def _check_size(shape: tuple[int, ...]) -> None:
    if np.prod(shape, dtype=np.float64) > MAX_ELEMENTS:
        raise TooLargeError(f"an intermediate result has the shape {list(shape)}")


def binary(function: Any, x: Any, y: Any, derive: Callable[[Array, Array, Array], tuple[Array, Array]]) -> Value:
    """Apply a NumPy function of two arrays, which are broadcast.

    Args:
        function: The function.
        x: First operand.
        y: Second operand; one of both may be a number.
        derive: Returns both parts of the gradient from the result's gradient and both arrays.
    """
    a = x if isinstance(x, Value) else value_of(x, y)
    b = value_of(y, a)
    _check_size(np.broadcast_shapes(a.shape, b.shape))
    return Value(
        function(a.array, b.array),
        [
            (a, lambda g: _unbroadcast(derive(g, a.array, b.array)[0], a.shape)),
            (b, lambda g: _unbroadcast(derive(g, a.array, b.array)[1], b.shape)),
        ],
    )


def unary(x: Value, function: Any, derivative: Callable[[Array, Array], Array]) -> Value:
    """Apply an elementwise function; its derivative is given the argument and the result."""
    result: Array = np.asarray(function(x.array))
    return Value(result, [(x, lambda g: g * derivative(x.array, result))])


def stopped(array: Any) -> Value:
    """Return a value through which no gradient flows."""
    return Value(np.asarray(array))


def power(x: Value, y: Any) -> Value:
    """Return ``x ** y``."""

    def derive(g: Array, a: Array, b: Array) -> tuple[Array, Array]:
        of_base = np.where(b == 0, 0.0, g * b * np.power(a, np.where(b == 0, 1.0, b - 1)))
        return of_base, np.where((a == 0) & (b >= 0), 0.0, g * np.power(a, b) * np.log(np.where(a > 0, a, 1.0)))

    return binary(np.power, x, y, derive)


def matmul(x: Value, y: Value) -> Value:
    """Return the matrix product with NumPy's rules for vectors and batches."""
    a, b = x.array, y.array
    if a.ndim == 1:
        return matmul(x[None], y)[..., 0, :] if b.ndim > 1 else matmul(x[None], y[:, None])[0, 0]
    if b.ndim == 1:
        return matmul(x, y[:, None])[..., 0]
    return Value(
        np.matmul(a, b),
        [
            (x, lambda g: _unbroadcast(np.matmul(g, np.swapaxes(b, -1, -2)), x.shape)),
            (y, lambda g: _unbroadcast(np.matmul(np.swapaxes(a, -1, -2), g), y.shape)),
        ],
    )


def axes_of(x: Value, axis: Any) -> tuple[int, ...]:
    """Return the dimensions that an ``axis`` argument names, all for ``None`` and an empty tuple."""
    if axis is None or (isinstance(axis, tuple | list) and not axis):
        return tuple(range(x.ndim))
    several = tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    if any(not -max(x.ndim, 1) <= each < max(x.ndim, 1) for each in several):
        raise ValueError(f"dimension {axis} of {x.ndim}")
    return tuple(sorted({each % x.ndim for each in several})) if x.ndim else ()


def total(x: Value, axis: Any = None, keep_dims: bool = False) -> Value:
    """Return the sum over dimensions."""
    axes = axes_of(x, axis)
    array = x.array.sum(axis=axes, keepdims=keep_dims)

    def derive(g: Array) -> Array:
        return np.broadcast_to(g if keep_dims else np.expand_dims(g, axes), x.shape)

    return Value(array, [(x, derive)])


def moved(x: Value, function: Callable[[Array], Array]) -> Value:
    """Return elements of a value in other places: those that a function makes of an array of their indices."""
    return joined([x], lambda places: function(places[0]))


def joined(values: Sequence[Value], function: Callable[[list[Array]], Array]) -> Value:
    """Return elements of several values: those that a function makes of arrays of their indices.

    The indices count through all values.
    """
    places: list[Array] = []
    start = 0
    for value in values:
        places.append(np.arange(start, start + value.size).reshape(value.shape))
        start += value.size
    chosen = np.asarray(function(places))
    _check_size(chosen.shape)
    flat = values[0].array.ravel() if len(values) == 1 else np.concatenate([value.array.ravel() for value in values])
    sources: list[tuple[Value, Derivative]] = []
    for value, own in zip(values, places, strict=True):
        first = int(own.flat[0]) if own.size else 0

        def derive(g: Array, value: Value = value, first: int = first) -> Array:
            return _gathered(g, chosen, start)[first : first + value.size].reshape(value.shape)

        sources.append((value, derive))
    return Value(flat[chosen], sources)


def _gathered(g: Array, places: Array, size: int) -> Array:
    return np.bincount(places.ravel(), weights=g.ravel(), minlength=size).astype(g.dtype)


def accumulated(x: Value, places: Array, source: Value) -> Value:
    """Return ``x`` with the elements of ``source`` added at indices into the flattened ``x``.

    Args:
        x: The first terms.
        places: Indices, of the shape of ``source``. None may be out of range.
        source: The further terms.
    """
    if places.size and (int(places.min()) < 0 or int(places.max()) >= x.size):
        raise IndexError("an index is out of range")
    array = x.array.ravel() + _gathered(source.array, places, x.size)
    return Value(
        array.reshape(x.shape).astype(x.array.dtype), [(x, lambda g: g), (source, lambda g: g.ravel()[places])]
    )


def where(condition: Any, x: Any, y: Any) -> Value:
    """Choose elements of ``x`` where a condition holds, else of ``y``; one of both may be a number."""
    chosen: Array = condition.array if isinstance(condition, Value) else np.asarray(condition)
    a = x if isinstance(x, Value) else value_of(x, y) if isinstance(y, Value) else Value(np.float64(x))
    b = value_of(y, a)
    _check_size(np.broadcast_shapes(chosen.shape, a.shape, b.shape))
    return Value(
        np.where(chosen, a.array, b.array),
        [
            (a, lambda g: _unbroadcast(np.where(chosen, g, 0.0), a.shape)),
            (b, lambda g: _unbroadcast(np.where(chosen, 0.0, g), b.shape)),
        ],
    )


def gradients(ends: Mapping[int, tuple[Value, Array]], leaves: Sequence[Value]) -> list[Array | None]:
    """Return the gradients of leaves, ``None`` for those that no end depends on.

    Args:
        ends: Values and their gradients, by any number.
        leaves: The values whose gradients are wanted.
    """
    found: dict[int, Array] = {}
    order: list[Value] = []
    for value, gradient in ends.values():
        found[id(value)] = found[id(value)] + gradient if id(value) in found else gradient
    seen: set[int] = set()
    stack: list[tuple[Value, bool]] = [(value, False) for value, _ in ends.values()]
    while stack:
        value, is_done = stack.pop()
        if is_done:
            order.append(value)
        elif id(value) not in seen:
            seen.add(id(value))
            stack.append((value, True))
            stack += [(source, False) for source, _ in value.sources]
    for value in reversed(order):
        gradient = found.get(id(value))
        if gradient is None:
            continue
        for source, derive in value.sources:
            if source.is_floating:
                part = derive(gradient)
                found[id(source)] = found[id(source)] + part if id(source) in found else part
    return [found.get(id(leaf)) for leaf in leaves]
