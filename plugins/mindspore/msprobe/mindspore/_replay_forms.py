"""Formulas of MindSpore's functions over NumPy arrays: arithmetic, reductions, and movements of elements.

The definitions are those of MindSpore's documentation of ``ops``, ``mint`` and ``Tensor``; ``mint`` has PyTorch's.
Where they differ there is one formula for each. What a formula does not handle raises, and is not replayed by it.
"""

# ruff: noqa: A002, ARG001, ARG005  # formulas take the parameters of their functions, derivatives argument and result

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import special as _special

from msprobe.mindspore._replay_tape import (
    MAX_ELEMENTS,
    Array,
    TooLargeError,
    Value,
    accumulated,
    axes_of,
    binary,
    floating,
    joined,
    moved,
    power,
    stopped,
    total,
    unary,
    value_of,
    where,
)

special: Any = _special

Form = Callable[..., Any]

PREFIXES = ("Functional", "Mint", "MintFunctional", "Tensor")
_OPS = ("Functional", "Tensor")
_MINT = ("Mint", "MintFunctional")


class Dtype(NamedTuple):
    """A dtype as an argument.

    Attributes:
        name: Its name in NumPy's spelling, and ``bfloat16``.
    """

    name: str

    @property
    def is_floating(self) -> bool:
        return self.name.startswith(("float", "bfloat"))


class NoFormulaError(ValueError):
    """There is no formula for these arguments."""


FORMS: dict[tuple[str, str], Form] = {}
"""By the prefix and name in dumps."""

_ALIASES: Mapping[str, str] = {
    "dim": "axis", "keepdim": "keep_dims", "keepdims": "keep_dims", "input": "x", "input_x": "x", "self": "x",
    "other": "y", "target": "y", "label": "y", "labels": "y", "logits": "x", "inputs": "x", "epsilon": "eps",
    "mat2": "y", "vec": "y", "vec2": "y", "exponent": "y", "x1": "x", "x2": "y", "mat": "mat1", "input1": "x1",
    "input2": "x2", "threshold": "thr", "dim0": "axis0", "dim1": "axis1", "axis1": "dim1", "axis2": "dim2",
    "input_params": "x", "prediction": "x", "dividend": "x", "divisor": "y", "pad": "padding", "dims": "axis",
    "tensors": "x", "gamma": "weight", "beta": "bias", "tensor": "x", "A": "x",
}  # fmt: skip
"""Names of parameters in MindSpore, and those in formulas."""


def form(names: str, prefixes: tuple[str, ...] = PREFIXES) -> Callable[[Form], Form]:
    """Register a formula under names in dumps; later ones replace earlier ones."""

    def register(function: Form) -> Form:
        for name in names.split():
            for prefix in ("Tensor",) if name.startswith("__") else prefixes:
                FORMS[prefix, name] = function
        return function

    return register


def forms(formulas: Mapping[str, Form]) -> None:
    """Register formulas of one expression each, by their names in dumps, under all prefixes."""
    for names, formula in formulas.items():
        form(names)(formula)


def find_form(prefix: str, name: str) -> Form | None:
    """Return the formula for a name in a dump; ``None`` if there is none."""
    if name.startswith("special_") and prefix == "Mint":
        name = name.removeprefix("special_")
    if (prefix, name) in FORMS:
        return FORMS[prefix, name]
    if name.endswith("_ext"):  # what ``mint`` calls inside
        return FORMS.get(("Mint", name.removesuffix("_ext"))) or FORMS.get(
            ("MintFunctional", name.removesuffix("_ext"))
        )
    if (
        name.endswith("_")
        and not name.endswith("__")
        and name not in _OTHERS
        and (plain := FORMS.get((prefix, name[:-1]))) is not None
    ):
        return plain
    return None


_OTHERS = frozenset({"batch_norm_", "max_", "min_"})
"""Functions of another meaning than those without the underscore."""


def named(kwargs: Mapping[str, Any], function: Form) -> dict[str, Any]:
    """Return keyword arguments under the names of a formula's parameters."""
    known = function.__code__.co_varnames[: function.__code__.co_argcount + function.__code__.co_kwonlyargcount]
    return {name if name in known else _ALIASES.get(name, name): value for name, value in kwargs.items()}


def numbers_of(values: tuple[Any, ...]) -> list[int]:
    """Return sizes or dimensions that are given as several arguments, or as one sequence."""
    if len(values) == 1 and isinstance(values[0], tuple | list | Value):
        first: Any = values[0]
        values = tuple(first.array.tolist() if isinstance(first, Value) else first)
    return [int(value) for value in values]


def array_of(value: Any) -> Any:
    """Return the array of a value, and other arguments as they are."""
    return value.array if isinstance(value, Value) else value


# --- elementwise ------------------------------------------------------------------------------------------------

forms(
    {
        "round": lambda x, decimals=0: unary(x, lambda a: np.round(a, decimals), _zero),
        "neg negative __neg__": lambda x: -x,
        "equal": lambda x, y: stopped(np.array_equal(x.array, y.array)),
        "__rfloordiv__": lambda x, y: stopped(np.floor_divide(array_of(y), x.array)),
        "__rmod__": lambda x, y: _remainder(value_of(y, x), x),
        "__rsub__": lambda x, y: value_of(y, x) - x,
        "mul multiply __mul__ __rmul__ __imul__": lambda x, y: x * y if isinstance(x, Value) else y * x,
        "__rtruediv__": lambda x, y: floating(value_of(y, x)) / floating(x),
        "pow __pow__ __ipow__": lambda x, y: power(x if isinstance(x, Value) else value_of(x, y), y),
        "__rpow__": lambda x, y: power(value_of(y, x), x),
        "float_power": lambda x, y: power(floating(x if isinstance(x, Value) else value_of(x, y)), y),
        "xdivy": lambda x, y: where(stopped(array_of(x) == 0), 0.0, _div(x, y)),
        "ldexp": lambda x, y: x * stopped(np.exp2(y.array.astype(np.float64)).astype(x.array.dtype)),
        "lerp": lambda x, end, weight: x + (end - x) * weight,
        "addcmul": lambda x, tensor1, tensor2, value=1: x + tensor1 * tensor2 * value,
        "addcdiv": lambda x, tensor1, tensor2, value=1: x + tensor1 / tensor2 * value,
        "clip_by_value": lambda x, clip_value_min=None, clip_value_max=None: _clamp(x, clip_value_min, clip_value_max),
        "masked_fill": lambda x, mask, value: where(mask, value_of(value, x), x),
        "where": lambda condition, x=None, y=None: where(condition, x, y),
        "celu": lambda x, alpha=1.0: _elu(x / alpha, 1.0) * alpha,
        "hardshrink": lambda x, lambd=0.5: where(np.abs(x.array) > lambd, x, 0.0),
        "mish": lambda x: x * unary(_softplus(x, 1, np.inf), np.tanh, lambda a, b: 1 - b * b),
        "threshold": lambda x, thr, value: where(x.array > thr, x, value_of(value, x)),
    },
)


_SQRT_2, _2_BY_SQRT_PI = float(np.sqrt(2.0)), float(2 / np.sqrt(np.pi))


def _sigmoid(x: Array) -> Array:
    return special.expit(x)


def _zero(x: Array, y: Array) -> Array:
    return np.zeros_like(x)


_UNARY: dict[str, tuple[Any, Any]] = {
    "abs absolute __abs__": (np.abs, lambda x, y: np.sign(x)),
    "acos arccos": (np.arccos, lambda x, y: -1 / np.sqrt(1 - x * x)),
    "acosh arccosh": (np.arccosh, lambda x, y: 1 / np.sqrt(x * x - 1)),
    "asin arcsin": (np.arcsin, lambda x, y: 1 / np.sqrt(1 - x * x)),
    "asinh arcsinh": (np.arcsinh, lambda x, y: 1 / np.sqrt(1 + x * x)),
    "atan arctan": (np.arctan, lambda x, y: 1 / (1 + x * x)),
    "atanh arctanh": (np.arctanh, lambda x, y: 1 / (1 - x * x)),
    "cos": (np.cos, lambda x, y: -np.sin(x)),
    "cosh": (np.cosh, lambda x, y: np.sinh(x)),
    "sin": (np.sin, lambda x, y: np.cos(x)),
    "sinh": (np.sinh, lambda x, y: np.cosh(x)),
    "tan": (np.tan, lambda x, y: 1 + y * y),
    "tanh": (np.tanh, lambda x, y: 1 - y * y),
    "sinc": (np.sinc, lambda x, y: np.where(x == 0, 0.0, (np.cos(np.pi * x) - y) / np.where(x == 0, 1.0, x))),
    "deg2rad": (np.deg2rad, lambda x, y: np.full_like(x, np.pi / 180)),
    "rad2deg": (np.rad2deg, lambda x, y: np.full_like(x, 180 / np.pi)),
    "exp": (np.exp, lambda x, y: y),
    "exp2": (np.exp2, lambda x, y: y * np.log(2)),
    "expm1": (np.expm1, lambda x, y: y + 1),
    "log": (np.log, lambda x, y: 1 / x),
    "log10": (np.log10, lambda x, y: 1 / (x * np.log(10))),
    "log2": (np.log2, lambda x, y: 1 / (x * np.log(2))),
    "log1p": (np.log1p, lambda x, y: 1 / (1 + x)),
    "sqrt": (np.sqrt, lambda x, y: 0.5 / y),
    "rsqrt": (lambda x: 1 / np.sqrt(x), lambda x, y: -0.5 * y / x),
    "reciprocal inv": (lambda x: 1 / x, lambda x, y: -y * y),
    "square": (np.square, lambda x, y: 2 * x),
    "erf": (special.erf, lambda x, y: _2_BY_SQRT_PI * np.exp(-x * x)),
    "erfc": (special.erfc, lambda x, y: -_2_BY_SQRT_PI * np.exp(-x * x)),
    "erfinv": (special.erfinv, lambda x, y: np.exp(y * y) / _2_BY_SQRT_PI),
    "digamma": (special.digamma, lambda x, y: special.polygamma(1, x)),
    "lgamma": (special.gammaln, lambda x, y: special.digamma(x)),
    "i0 bessel_i0": (special.i0, lambda x, y: special.i1(x)),
    "sigmoid": (_sigmoid, lambda x, y: y * (1 - y)),
    "relu": (lambda x: np.maximum(x, 0), lambda x, y: (x > 0).astype(x.dtype)),
    "relu6": (lambda x: np.clip(x, 0, 6), lambda x, y: ((x > 0) & (x < 6)).astype(x.dtype)),
    "softsign": (lambda x: x / (1 + np.abs(x)), lambda x, y: 1 / np.square(1 + np.abs(x))),
    "tanhshrink": (lambda x: x - np.tanh(x), lambda x, y: np.square(np.tanh(x))),
    "logsigmoid": (lambda x: -np.logaddexp(0, -x), lambda x, y: _sigmoid(-x)),
    "silu swish": (lambda x: x * _sigmoid(x), lambda x, y: _sigmoid(x) * (1 + x * _sigmoid(-x))),
    "hardsigmoid": (lambda x: np.clip(x / 6 + 0.5, 0, 1), lambda x, y: np.where(np.abs(x) < 3, 1 / 6, 0.0)),
    "hardswish": (
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
        lambda x, y: np.where(x <= -3, 0.0, np.where(x < 3, x / 3 + 0.5, 1.0)),
    ),
    "ceil": (np.ceil, _zero), "floor": (np.floor, _zero), "trunc fix": (np.trunc, _zero), "sign sgn": (np.sign, _zero),
    "frac": (lambda x: x - np.trunc(x), lambda x, y: np.ones_like(x)),
}  # fmt: skip


def _unary_form(function: Any, derivative: Any) -> Form:
    def apply(x: Value) -> Value:
        value = x if x.is_floating or function in (np.abs, np.sign, np.square, np.ceil, np.floor) else floating(x)
        return unary(value, function, derivative)

    return apply


for _names, (_function, _derivative) in _UNARY.items():
    form(_names)(_unary_form(_function, _derivative))


@form("positive __pos__ clone copy contiguous detach")
def _same(x: Value) -> Value:
    return moved(x, lambda places: places)


_BINARY: dict[str, tuple[Any, Any]] = {
    "fmod truncate_mod": (np.fmod, lambda g, a, b: (g, -g * np.trunc(a / b))),
    "atan2 arctan2": (np.arctan2, lambda g, a, b: (g * b / (a * a + b * b), -g * a / (a * a + b * b))),
    "hypot": (np.hypot, lambda g, a, b: (g * a / np.hypot(a, b), g * b / np.hypot(a, b))),
    "copysign": (np.copysign, lambda g, a, b: (g * np.sign(a) * np.copysign(1, b), np.zeros_like(g))),
    "logaddexp": (np.logaddexp, lambda g, a, b: (g * _sigmoid(a - b), g * _sigmoid(b - a))),
    "xlogy": (special.xlogy, lambda g, a, b: (g * np.log(b), np.where(a == 0, 0.0, g * a / b))),
}


def _binary_form(function: Any, derivative: Any) -> Form:
    def apply(x: Any, y: Any) -> Value:
        return binary(function, x, y, derivative)

    return apply


for _names, (_function, _derivative) in _BINARY.items():
    form(_names)(_binary_form(_function, _derivative))

_PLAIN: dict[str, Any] = {
    "isfinite": np.isfinite, "isinf": np.isinf, "isnan": np.isnan, "isneginf": np.isneginf, "isposinf": np.isposinf,
    "logical_not": np.logical_not, "signbit": np.signbit, "bitwise_not invert": np.invert,
}  # fmt: skip
_COMPARED: dict[str, Any] = {
    "eq __eq__": np.equal, "ne not_equal __ne__": np.not_equal, "lt less __lt__": np.less,
    "le less_equal __le__": np.less_equal, "gt greater __gt__": np.greater, "ge greater_equal __ge__": np.greater_equal,
    "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
    "bitwise_and __and__": np.bitwise_and, "bitwise_or __or__": np.bitwise_or, "bitwise_xor __xor__": np.bitwise_xor,
    "floor_div floor_divide __floordiv__ __ifloordiv__": np.floor_divide,
}  # fmt: skip


def _plain_form(function: Any) -> Form:
    def apply(x: Value) -> Value:
        return stopped(function(x.array))

    return apply


def _compared_form(function: Any) -> Form:
    def apply(x: Any, y: Any) -> Value:
        return stopped(function(array_of(x), array_of(y)))

    return apply


for _names, _function in _PLAIN.items():
    form(_names)(_plain_form(_function))
for _names, _function in _COMPARED.items():
    form(_names)(_compared_form(_function))


@form("__invert__", ("Tensor",))
def _invert(x: Value) -> Value:
    return stopped(np.logical_not(x.array))  # of integers too


@form("equal", _OPS)
def _equal_ops(x: Any, y: Any) -> Value:
    return stopped(np.equal(array_of(x), array_of(y)))


@form("isclose")
def _isclose(x: Value, y: Value, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Value:
    return stopped(np.isclose(x.array, y.array, rtol, atol, equal_nan))


@form("add __add__ __radd__ __iadd__")
def _add(x: Any, y: Any, alpha: float = 1) -> Value:
    x = x if isinstance(x, Value) else value_of(x, y)
    return x + (y if alpha == 1 else value_of(y, x) * alpha)


@form("sub subtract __sub__ __isub__")
def _sub(x: Any, y: Any, alpha: float = 1) -> Value:
    x = x if isinstance(x, Value) else value_of(x, y)
    return x - (y if alpha == 1 else value_of(y, x) * alpha)


@form("div divide true_divide realdiv __truediv__ __itruediv__")
def _div(x: Any, y: Any, rounding_mode: str | None = None) -> Value:
    x = x if isinstance(x, Value) else value_of(x, y)
    done = x / y
    if rounding_mode is None:
        return done
    return stopped({"floor": np.floor, "trunc": np.trunc}[rounding_mode](done.array))


@form("remainder floor_mod __mod__ __imod__")
def _remainder(x: Any, y: Any) -> Value:
    return binary(np.mod, x, y, lambda g, a, b: (g, -g * np.floor(a / b)))


@form("maximum fmax")
def _maximum(x: Any, y: Any) -> Value:
    def derive(g: Array, a: Array, b: Array) -> tuple[Array, Array]:
        tied = np.where(a == b, g / 2, 0.0)
        return np.where(a > b, g, tied), np.where(b > a, g, tied)

    return binary(np.maximum, x, y, derive)


@form("minimum fmin")
def _minimum(x: Any, y: Any) -> Value:
    return -_maximum(-x, -y)


@form("logaddexp2")
def _logaddexp2(x: Value, y: Value) -> Value:
    def derive(g: Array, a: Array, b: Array) -> tuple[Array, Array]:
        share = _sigmoid((a - b) * np.log(2))
        return g * share, g * (1 - share)

    return binary(np.logaddexp2, x, y, derive)


@form("clamp clip")
def _clamp(x: Value, min: Any = None, max: Any = None) -> Value:
    low = None if min is None else value_of(min, x).array
    high = None if max is None else value_of(max, x).array
    if low is not None:
        x = where(x.array >= low, x, value_of(min, x))
    if high is not None:
        x = where(x.array <= high, x, value_of(max, x))
    return x


@form("logit")
def _logit(x: Value, eps: float | None = None) -> Value:
    x = x if eps is None else _clamp(x, eps, 1 - eps)
    return unary(x, special.logit, lambda a, b: 1 / (a * (1 - a)))


@form("nan_to_num")
def _nan_to_num(x: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Value:
    if np.isinf(x.array).any() and (posinf is None or neginf is None):
        raise NoFormulaError("infinities become the largest number of a dtype, which float64 is not")
    array = np.nan_to_num(x.array, nan=nan or 0.0, posinf=posinf, neginf=neginf)
    return Value(array, [(x, lambda g: np.where(np.isfinite(x.array), g, 0.0))])


form("select", ("Functional",))(where)
form("where", ("Tensor",))(lambda x, condition, y: where(condition, x, y))


@form("elu")
def _elu(x: Value, alpha: float = 1.0) -> Value:
    return unary(
        x, lambda a: np.where(a > 0, a, alpha * np.expm1(np.minimum(a, 0))),
        lambda a, b: np.where(a > 0, 1.0, alpha * np.exp(np.minimum(a, 0))),
    )  # fmt: skip


@form("selu")
def _selu(x: Value) -> Value:
    """Klambauer et al., *Self-Normalizing Neural Networks*, 2017, for the constants."""
    return _elu(x, 1.6732632423543772) * 1.0507009873554805


@form("leaky_relu")
def _leaky_relu(x: Value, negative_slope: float = 0.01) -> Value:
    return where(x.array > 0, x, x * negative_slope)


form("leaky_relu", ("Functional",))(lambda x, alpha=0.2: _leaky_relu(x, alpha))


@form("prelu")
def _prelu(x: Value, weight: Value) -> Value:
    if weight.size > 1:
        weight = moved(weight, lambda places: places.reshape((-1,) + (1,) * max(x.ndim - 2, 0)))
    return where(x.array > 0, x, x * weight)


@form("softshrink soft_shrink")
def _softshrink(x: Value, lambd: float = 0.5) -> Value:
    return where(x.array > lambd, x - lambd, where(x.array < -lambd, x + lambd, 0.0 * x))


@form("softplus")
def _softplus(x: Value, beta: float = 1, threshold: float = 20) -> Value:
    soft = unary(x * beta, lambda a: np.logaddexp(0, a), lambda a, b: _sigmoid(a)) / beta
    return where(x.array * beta > threshold, x, soft)


@form("hardtanh")
def _hardtanh(x: Value, min_val: float = -1.0, max_val: float = 1.0) -> Value:
    inside = (x.array > min_val) & (x.array < max_val)
    return where(inside, x, stopped(np.clip(x.array, min_val, max_val)))


@form("gelu")
def _gelu(x: Value, approximate: Any = "none") -> Value:
    """Hendrycks and Gimpel, *Gaussian Error Linear Units*, 2016."""
    if approximate == "none":
        return x * unary(
            x / _SQRT_2, lambda a: 0.5 * special.erfc(-a), lambda a, b: 0.5 * _2_BY_SQRT_PI * np.exp(-a * a)
        )
    inner = (x + x * x * x * 0.044715) * float(np.sqrt(2 / np.pi))
    return x * 0.5 * (unary(inner, np.tanh, lambda a, b: 1 - b * b) + 1.0)


@form("fast_gelu")
def _fast_gelu(x: Value) -> Value:
    scaled = x * 1.702
    return x * unary(scaled, _sigmoid, lambda a, b: b * (1 - b))


@form("glu")
def _glu(x: Value, axis: int = -1) -> Value:
    first, second = halves(x, axis)
    return first * unary(second, _sigmoid, lambda a, b: b * (1 - b))


@form("swiglu")
def _swiglu(x: Value, axis: int = -1) -> Value:
    """Shazeer, *GLU Variants Improve Transformer*, 2020."""
    first, second = halves(x, axis)
    return FORMS["Mint", "silu"](first) * second


def halves(x: Value, axis: int) -> tuple[Value, Value]:
    """Return both halves along a dimension of even size."""
    if x.shape[axis] % 2:
        raise ValueError(f"dimension {axis} of {list(x.shape)} has no halves")
    first, second = (moved(x, lambda places, i=i: np.split(places, 2, axis)[i]) for i in range(2))
    return first, second


# --- reductions -------------------------------------------------------------------------------------------------

forms(
    {
        "sum reduce_sum": lambda x, axis=None, keep_dims=False, *, dtype=None: total(_asked(x, dtype), axis, keep_dims),
        "amax reduce_max": lambda x, axis=None, keep_dims=False: extreme(x, axis, keep_dims, is_largest=True),
        "amin reduce_min": lambda x, axis=None, keep_dims=False: extreme(x, axis, keep_dims, is_largest=False),
        "softmin": lambda x, axis=-1, *, dtype=None: softmax(-x, axis),
        "dist": lambda x, y, p=2: vector_norm(x - y, p, None, False),
        "trace": lambda x: total(moved(x, np.diagonal)),
        "all": lambda x, axis=None, keep_dims=False: stopped(x.array.all(axes_of(x, axis), keepdims=keep_dims)),
        "any": lambda x, axis=None, keep_dims=False: stopped(x.array.any(axes_of(x, axis), keepdims=keep_dims)),
    },
)


def _asked(x: Value, dtype: Any) -> Value:
    if isinstance(dtype, Dtype) and not dtype.is_floating:
        raise NoFormulaError("it is asked for integers")
    return floating(x) if isinstance(dtype, Dtype) else x


@form("nansum")
def _nansum(x: Value, axis: Any = None, keep_dims: bool = False, *, dtype: Any = None) -> Value:
    return total(where(np.isnan(x.array), 0.0, _asked(x, dtype)), axis, keep_dims)


@form("sum", ("Tensor",))
def _sum_method(x: Value, axis: Any = None, dtype: Any = None, keep_dims: Any = False, initial: Any = None) -> Value:
    if initial is not None:
        raise NoFormulaError("initial")
    if isinstance(dtype, bool):  # as in ``mint``
        dtype, keep_dims = None, dtype
    return total(_asked(x, dtype), axis, keep_dims)


@form("mean reduce_mean")
def mean(x: Value, axis: Any = None, keep_dims: bool = False, *, dtype: Any = None) -> Value:
    """Return the mean over dimensions."""
    x = floating(_asked(x, dtype))
    count = int(np.prod([x.shape[i] for i in axes_of(x, axis)], dtype=np.int64))
    return total(x, axis, keep_dims) / count if count else total(x, axis, keep_dims) * np.nan


def variance(x: Value, axis: Any, correction: float, keep_dims: bool) -> Value:
    """Return the variance over dimensions, with the correction taken from the number of elements."""
    centered = x - mean(x, axis, True)
    count = int(np.prod([x.shape[i] for i in axes_of(x, axis)], dtype=np.int64))
    with np.errstate(all="ignore"):
        return total(centered * centered, axis, keep_dims) / np.float64(max(count - correction, 0)).item()


def _root(x: Value) -> Value:
    return unary(x, np.sqrt, lambda a, b: 0.5 / b)


@form("var", _OPS)
def _var(x: Value, axis: Any = None, ddof: Any = 0, keep_dims: bool = False, *, correction: Any = None) -> Value:
    if isinstance(correction, bool | int | float):
        ddof = correction
    return variance(floating(x), axis, int(ddof), keep_dims)


@form("std", _OPS)
def _std(x: Value, axis: Any = None, ddof: Any = 0, keep_dims: bool = False, *, correction: Any = None) -> Value:
    return _root(_var(x, axis, ddof, keep_dims, correction=correction))


@form("var", _MINT)
def _var_mint(
    x: Value, axis: Any = None, unbiased: Any = None, keep_dims: bool = False, *, correction: Any = 1
) -> Value:
    correction = correction if unbiased is None else int(unbiased)
    return variance(floating(x), axis, 1 if correction is None else correction, keep_dims)


@form("std", _MINT)
def _std_mint(
    x: Value, axis: Any = None, unbiased: Any = None, keep_dims: bool = False, *, correction: Any = 1
) -> Value:
    return _root(_var_mint(x, axis, unbiased, keep_dims, correction=correction))


@form("var_mean", _OPS)
def _var_mean(x: Value, axis: Any = None, ddof: Any = 0, keep_dims: bool = False) -> Any:
    return variance(x, axis, int(ddof), keep_dims), mean(x, axis, keep_dims)


@form("std_mean", _OPS)
def _std_mean(x: Value, axis: Any = None, ddof: Any = 0, keep_dims: bool = False) -> Any:
    return _root(variance(x, axis, int(ddof), keep_dims)), mean(x, axis, keep_dims)


@form("var_mean", _MINT)
def _var_mean_mint(x: Value, axis: Any = None, *, correction: Any = 1, keep_dims: bool = False) -> Any:
    return variance(x, axis, correction, keep_dims), mean(x, axis, keep_dims)


@form("std_mean", _MINT)
def _std_mean_mint(x: Value, axis: Any = None, *, correction: Any = 1, keep_dims: bool = False) -> Any:
    return _root(variance(x, axis, correction, keep_dims)), mean(x, axis, keep_dims)


def extreme(x: Value, axis: Any, keep_dims: bool, *, is_largest: bool) -> Value:
    """Return the largest or smallest elements; equal ones share the gradient."""
    axes = axes_of(x, axis)
    function: Any = np.max if is_largest else np.min
    whole = function(x.array, axis=axes, keepdims=True)
    chosen = x.array == whole

    def derive(g: Array) -> Array:
        wide = g if keep_dims else np.expand_dims(g, axes)
        return np.where(chosen, wide / chosen.sum(axis=axes, keepdims=True), 0.0)

    return Value(whole if keep_dims else np.squeeze(whole, axes), [(x, derive)])


def _picked(x: Value, places: Array, axis: int, keep_dims: bool) -> tuple[Value, Value]:
    """Return one element along a dimension, and its index."""
    wide = np.expand_dims(places, axis)
    values = moved(x, lambda each: np.take_along_axis(each, wide, axis))
    if keep_dims:
        return values, stopped(wide)
    return moved(values, lambda each: np.squeeze(each, axis)), stopped(places)


def _max_or_min(*, is_largest: bool) -> Form:
    pick: Any = np.argmax if is_largest else np.argmin
    combine = _maximum if is_largest else _minimum

    def apply(x: Value, axis: Any = None, keep_dims: bool = False) -> Any:
        if isinstance(axis, Value):
            return combine(x, axis)
        if axis is None:
            return extreme(x, None, False, is_largest=is_largest)
        return _picked(x, pick(x.array, axis), axis, keep_dims)

    def of_ops(x: Value, axis: Any = None, keep_dims: bool = False, *, initial: Any = None, where: Any = None) -> Any:
        if initial is not None or where not in (None, True):
            raise NoFormulaError("initial and where")
        if axis is None:
            return extreme(x, None, False, is_largest=is_largest), stopped(np.asarray(0))
        return _picked(x, pick(x.array, axis), axis, keep_dims)

    def method(
        x: Value, axis: Any = None, keep_dims: bool = False, *, initial: Any = None, where: Any = True,
        return_indices: bool = False,
    ) -> Any:  # fmt: skip
        if initial is not None or where is not True:
            raise NoFormulaError("initial and where")
        if isinstance(axis, Value) or axis is None:
            return apply(x, axis)
        values, places = _picked(x, pick(x.array, axis), axis, keep_dims)
        return (values, places) if return_indices else values

    name = "max" if is_largest else "min"
    form(name, _MINT)(apply)
    form(name, ("Functional",))(of_ops)
    form(name, ("Tensor",))(method)
    return apply


_max_or_min(is_largest=True)
_max_or_min(is_largest=False)


def _arg_form(pick: Any) -> Form:
    def apply(x: Value, axis: Any = None, keep_dims: bool = False) -> Value:
        places = pick(x.array, axis)
        return stopped(np.expand_dims(places, axis) if keep_dims and axis is not None else places)

    return apply


form("argmax")(_arg_form(np.argmax))
form("argmin")(_arg_form(np.argmin))


@form("prod")
def _prod(x: Value, axis: Any = None, keep_dims: bool = False, *, dtype: Any = None) -> Value:
    x = _asked(x, dtype)
    axes = axes_of(x, axis)
    array = np.prod(x.array, axis=axes, keepdims=True)

    def derive(g: Array) -> Array:
        if (x.array == 0).any():
            raise NoFormulaError("gradient of a product with zeros")
        return (g if keep_dims else np.expand_dims(g, axes)) * array / x.array

    return Value(array if keep_dims else np.squeeze(array, axes), [(x, derive)])


@form("count_nonzero")
def _count_nonzero(x: Value, axis: Any = None, keep_dims: bool = False, dtype: Any = None) -> Value:
    return stopped(np.count_nonzero(x.array, axis=axes_of(x, axis), keepdims=keep_dims))


@form("logsumexp")
def logsumexp(x: Value, axis: Any, keep_dims: bool = False) -> Value:
    """Return the logarithm of the sum of exponentials."""
    largest = stopped(np.max(x.array, axis=axes_of(x, axis), keepdims=True))
    largest = stopped(np.where(np.isfinite(largest.array), largest.array, 0.0))
    summed = unary(total(exp(x - largest), axis, True), np.log, lambda a, b: 1 / a) + largest
    return summed if keep_dims else moved(summed, lambda places: np.squeeze(places, axes_of(x, axis)))


def exp(x: Value) -> Value:
    """Return the exponential."""
    return unary(x, np.exp, lambda a, b: b)


@form("softmax")
def softmax(x: Value, axis: Any = None, *rest: Any, dtype: Any = None) -> Value:
    """Return the softmax along a dimension."""
    x = floating(x)
    axis = _axis_of_softmax(x, axis)
    largest = np.max(x.array, axis=axis, keepdims=True)
    raised = exp(x - stopped(largest))
    return raised / total(raised, axis, True)


@form("log_softmax")
def log_softmax(x: Value, axis: Any = None, *rest: Any, dtype: Any = None) -> Value:
    """Return the logarithm of the softmax along a dimension."""
    x = floating(x)
    axis = _axis_of_softmax(x, axis)
    return x - logsumexp(x, axis, True)


def _axis_of_softmax(x: Value, axis: Any) -> int:
    # Without one ``mint`` takes what PyTorch does; ``ops`` the last.
    return (0 if x.ndim in (0, 1, 3) else 1) if axis is None else axis


form("softmax", _OPS)(lambda x, axis=-1, *, dtype=None: softmax(x, axis))
form("log_softmax", _OPS)(lambda x, axis=-1: log_softmax(x, axis))


@form("cumsum")
def _cumsum(x: Value, axis: int, *rest: Any, dtype: Any = None) -> Value:
    if rest not in ((), (None,)):
        raise NoFormulaError("dtype")
    x = _asked(x, dtype)
    return Value(np.cumsum(x.array, axis), [(x, lambda g: np.flip(np.cumsum(np.flip(g, axis), axis), axis))])


@form("cumprod")
def _cumprod(x: Value, axis: int, *, dtype: Any = None) -> Value:
    array = np.cumprod(x.array, axis)

    def derive(g: Array) -> Array:
        if (x.array == 0).any():
            raise NoFormulaError("gradient of a product with zeros")
        return np.flip(np.cumsum(np.flip(g * array, axis), axis), axis) / x.array

    return Value(array, [(x, derive)])


@form("logcumsumexp")
def _logcumsumexp(x: Value, axis: int) -> Value:
    largest = stopped(np.max(x.array, axis=axis, keepdims=True))
    return unary(_cumsum(exp(x - largest), axis), np.log, lambda a, b: 1 / a) + largest


def _running(function: Any) -> Form:
    def apply(x: Value, axis: int) -> Any:
        best = function.accumulate(x.array, axis)
        order = np.arange(x.shape[axis]).reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
        places = np.maximum.accumulate(np.where(x.array == best, order, 0), axis)  # of equal ones the last
        return moved(x, lambda each: np.take_along_axis(each, places, axis)), stopped(places)

    return apply


form("cummax")(_running(np.maximum))
form("cummin")(_running(np.minimum))


@form("norm", _MINT)
def _norm(x: Value, p: Any = "fro", axis: Any = None, keep_dims: bool = False, *, dtype: Any = None) -> Value:
    return vector_norm(x, 2 if p in ("fro", None) else p, axis, keep_dims)


@form("linalg_vector_norm", ("Mint",))
def _vector_norm(x: Value, ord: Any = 2, axis: Any = None, keep_dims: bool = False, *, dtype: Any = None) -> Value:
    return vector_norm(x, ord, axis, keep_dims)


@form("linalg_norm", ("Mint",))
@form("norm", _OPS)
def _norm_ops(x: Value, ord: Any = None, axis: Any = None, keep_dims: bool = False, *, dtype: Any = None) -> Value:
    num_axes = len(axes_of(x, axis))
    if ord not in (None, "fro") and num_axes > 1:
        raise NoFormulaError("a norm of matrices")
    return vector_norm(x, 2 if ord in (None, "fro") else ord, axis, keep_dims)


@form("linalg_matrix_norm", ("Mint",))
def _matrix_norm(
    x: Value, ord: Any = "fro", axis: Any = (-2, -1), keep_dims: bool = False, *, dtype: Any = None
) -> Value:
    if ord != "fro":
        raise NoFormulaError("a norm of matrices")
    return vector_norm(x, 2, axis, keep_dims)


def vector_norm(x: Value, order: float, axis: Any, keep_dims: bool) -> Value:
    """Return the p-norm over dimensions; its gradient at zero is zero."""
    x = floating(x)
    if order == 2:
        scale = float(np.max(np.abs(x.array), initial=0.0)) or 1.0
        if not np.isfinite(scale):
            scale = 1.0
        scaled = x / scale
        root = unary(
            total(scaled * scaled, axis, keep_dims),
            np.sqrt,
            lambda a, b: np.where(b == 0, 0.0, 0.5 / np.where(b == 0, 1, b)),
        )
        return root * scale
    size = unary(x, np.abs, lambda a, b: np.sign(a))
    if order == np.inf:
        return extreme(size, axis, keep_dims, is_largest=True)
    if order == -np.inf:
        return extreme(size, axis, keep_dims, is_largest=False)
    if order == 0:
        return stopped(np.count_nonzero(x.array, axis=axes_of(x, axis), keepdims=keep_dims).astype(x.array.dtype))
    if order == 1:
        return total(size, axis, keep_dims)
    return power(total(power(size, order), axis, keep_dims), 1 / order)


# --- order ------------------------------------------------------------------------------------------------------


def _sorted_places(x: Value, axis: int, descending: bool) -> Array:
    # Stable in both directions.
    return np.argsort(-x.array if descending else x.array, axis, kind="stable")


@form("sort")
def _sort(x: Value, axis: int = -1, descending: bool = False, stable: bool = False) -> Any:
    places = _sorted_places(x, axis, descending)
    return moved(x, lambda each: np.take_along_axis(each, places, axis)), stopped(places)


@form("msort")
def _msort(x: Value) -> Value:
    return _sort(x, 0)[0]


@form("argsort")
def _argsort(x: Value, axis: int = -1, descending: bool = False, stable: bool = False) -> Value:
    return stopped(_sorted_places(x, axis, descending))


@form("topk top_k")
def _topk(x: Value, k: int, axis: Any = None, largest: bool = True, sorted: bool = True) -> Any:
    axis = -1 if axis is None else axis
    if not 0 <= k <= x.shape[axis]:
        raise ValueError(f"k is {k}")
    places = np.take(_sorted_places(x, axis, largest), np.arange(k), axis)
    return moved(x, lambda each: np.take_along_axis(each, places, axis)), stopped(places)


@form("kthvalue")
def _kthvalue(x: Value, k: int, axis: int = -1, keep_dims: bool = False) -> Any:
    if not 1 <= k <= x.shape[axis]:
        raise ValueError(f"k is {k}")
    return _picked(x, np.take(_sorted_places(x, axis, False), k - 1, axis), axis, keep_dims)


@form("median", _MINT)
def _median(x: Value, axis: Any = None, keep_dims: bool = False) -> Any:
    if axis is None:
        order = np.argsort(x.array, None, kind="stable")
        return moved(x, lambda each: each.ravel()[order[(x.size - 1) // 2]])
    return _kthvalue(x, (x.shape[axis] + 1) // 2, axis, keep_dims)


# --- movements --------------------------------------------------------------------------------------------------

forms(
    {
        "reshape view": lambda x, *shape: moved(x, lambda places: places.reshape(numbers_of(shape))),
        "reshape_as view_as": lambda x, y: moved(x, lambda places: places.reshape(y.shape)),
        "t adjoint": lambda x: moved(x, lambda places: places.T if places.ndim <= 2 else np.swapaxes(places, -1, -2)),
        "unsqueeze expand_dims": lambda x, axis: moved(x, lambda places: np.expand_dims(places, axis)),
        "ravel": lambda x: moved(x, np.ravel),
        "expand_as": lambda x, y: moved(x, lambda places: np.broadcast_to(places, y.shape)),
        "flip": lambda x, *axis: moved(x, lambda places: np.flip(places, tuple(numbers_of(axis)))),
        "fliplr": lambda x: moved(x, np.fliplr),
        "flipud": lambda x: moved(x, np.flipud),
        "rot90": lambda x, k=1, axis=(0, 1): moved(x, lambda places: np.rot90(places, k, tuple(axis))),
        "stack": lambda x, axis=0: joined(x, lambda places: np.stack(places, axis)),
        "hstack": lambda x: joined(x, np.hstack),
        "vstack row_stack": lambda x: joined(x, np.vstack),
        "dstack": lambda x: joined(x, np.dstack),
        "column_stack": lambda x: joined(x, np.column_stack),
        "tril": lambda x, diagonal=0: where(np.tril(np.ones(x.shape[-2:], bool), diagonal), x, value_of(0, x)),
        "triu": lambda x, diagonal=0: where(np.triu(np.ones(x.shape[-2:], bool), diagonal), x, value_of(0, x)),
        "zeros_like": lambda x, *, dtype=None: stopped(np.zeros_like(x.array)),
        "full_like": lambda x, fill_value, *, dtype=None: stopped(np.full_like(x.array, fill_value)),
        "ones_like": lambda x, *, dtype=None: stopped(np.ones_like(x.array)),
        "index_select": lambda x, axis, index: moved(x, lambda places: np.take(places, index.array, axis)),
        "take": lambda x, indices: moved(x, lambda places: np.take(places.ravel(), indices.array)),
    },
)


@form("permute")
def _permute(x: Value, *axis: Any) -> Value:
    return moved(x, lambda places: places.transpose(numbers_of(axis)))


@form("transpose", ("Functional",))
def _transpose_ops(x: Value, input_perm: Any) -> Value:
    return _permute(x, input_perm)


@form("transpose", ("Tensor",))
def _transpose_method(x: Value, *axis: Any) -> Value:
    if len(axis) == 2 and all(isinstance(each, int) for each in axis):
        return _swapped(x, *axis)
    return moved(x, lambda places: places.transpose(numbers_of(axis) if axis else None))


@form("transpose", _MINT)
@form("swapaxes swapdims transpose_ext_view")
def _swapped(x: Value, axis0: int, axis1: int) -> Value:
    return moved(x, lambda places: np.swapaxes(places, axis0, axis1))


@form("movedim moveaxis")
def _movedim(x: Value, source: Any, destination: Any) -> Value:
    return moved(x, lambda places: np.moveaxis(places, source, destination))


@form("squeeze")
def _squeeze(x: Value, axis: Any = None) -> Value:
    axes = [each for each in axes_of(x, axis) if x.shape[each] == 1]
    return moved(x, lambda places: np.squeeze(places, tuple(axes)))


@form("flatten", ("Tensor",))
def _flatten_method(x: Value, order: Any = "C", end: Any = None, *, start_dim: int = 0, end_dim: int = -1) -> Value:
    if isinstance(order, int):
        return _flattened(x, order, -1 if end is None else end)
    return _flatten_ops(x, order, start_dim=start_dim, end_dim=end_dim)


@form("flatten", ("Functional",))
def _flatten_ops(x: Value, order: str = "C", *, start_dim: int = 1, end_dim: int = -1) -> Value:
    if order != "C":
        raise NoFormulaError(f"order {order}")
    return _flattened(x, start_dim, end_dim)


@form("flatten", _MINT)
def _flattened(x: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    if x.ndim < 2:
        return moved(x, lambda places: places.reshape(-1))
    start, end = start_dim % x.ndim, end_dim % x.ndim
    return moved(x, lambda places: places.reshape((*x.shape[:start], -1, *x.shape[end + 1 :])))


@form("unflatten")
def _unflatten(x: Value, axis: int, sizes: Any) -> Value:
    axis %= x.ndim
    return moved(x, lambda places: places.reshape((*x.shape[:axis], *numbers_of((sizes,)), *x.shape[axis + 1 :])))


def checked_size(shape: Any) -> None:
    """Raise `TooLargeError` for a shape with too many elements."""
    if np.prod([max(int(size), 1) for size in shape], dtype=np.float64) > MAX_ELEMENTS:
        raise TooLargeError(f"an intermediate result has the shape {list(shape)}")


@form("broadcast_to expand")
def _expand(x: Value, *shape: Any) -> Value:
    sizes = numbers_of(shape)
    before = len(sizes) - x.ndim
    sizes = [x.shape[i - before] if size == -1 and i >= before else size for i, size in enumerate(sizes)]
    checked_size(sizes)
    return moved(x, lambda places: np.broadcast_to(places, sizes))


@form("tile")
def _tile(x: Value, *dims: Any) -> Value:
    numbers = numbers_of(dims)
    checked_size([*numbers, x.size])
    return moved(x, lambda places: np.tile(places, numbers))


@form("repeat_interleave")
def _repeat_interleave(x: Value, repeats: Any, axis: Any = None, *, output_size: Any = None) -> Value:
    numbers = array_of(repeats)
    checked_size([x.size, int(np.max(numbers, initial=1))])
    return moved(x, lambda places: np.repeat(places, numbers, axis))


@form("roll")
def _roll(x: Value, shifts: Any, axis: Any = None) -> Value:
    axis = None if isinstance(axis, tuple | list) and not axis else axis
    return moved(x, lambda places: np.roll(places, shifts, axis))


def _parts(x: Value, ends: list[int], axis: int) -> tuple[Value, ...]:
    starts = [0, *ends[:-1]]
    return tuple(
        moved(x, lambda places, a=a, b=b: np.take(places, np.arange(a, b), axis))
        for a, b in zip(starts, ends, strict=True)
    )


@form("chunk")
def _chunk(x: Value, chunks: int, axis: int = 0) -> Any:
    size = x.shape[axis]
    each = -(-size // chunks) or 1
    return _parts(x, [min(end, size) for end in range(each, size + each, each)], axis)


@form("split")
def _split(x: Value, split_size_or_sections: Any, axis: int = 0) -> Any:
    size = x.shape[axis]
    if isinstance(split_size_or_sections, tuple | list):
        ends = np.cumsum(np.asarray(split_size_or_sections, np.int64)).tolist()
        if not ends or ends[-1] != size:
            raise ValueError(f"{split_size_or_sections} of {size}")
        return _parts(x, ends, axis)
    each = int(split_size_or_sections)
    if each < 1:
        raise ValueError(f"parts of {each}")
    return _parts(x, [min(end, size) for end in range(each, size + each, each)], axis)


@form("tensor_split")
def _tensor_split(x: Value, indices_or_sections: Any, axis: int = 0) -> Any:
    count = len(np.array_split(np.empty((x.shape[axis], 0)), indices_or_sections))
    return tuple(
        moved(x, lambda places, i=i: np.array_split(places, indices_or_sections, axis)[i]) for i in range(count)
    )


@form("unbind unstack")
def _unbind(x: Value, axis: int = 0) -> Any:
    return tuple(moved(x, lambda places, i=i: np.take(places, i, axis)) for i in range(x.shape[axis]))


@form("narrow")
def _narrow(x: Value, axis: int, start: int, length: int) -> Value:
    return moved(x, lambda places: np.take(places, np.arange(start, start + length), axis))


@form("select_ext")
@form("select", ("Mint", "Tensor"))
def _select(x: Value, axis: int, index: int) -> Value:
    return moved(x, lambda places: np.take(places, index, axis))


@form("cat concat concatenate")
def concat(x: Any, axis: int = 0) -> Value:
    """Join values along a dimension."""
    return joined(x, lambda places: np.concatenate(places, axis))


@form("diagonal")
def _diagonal(x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    return moved(x, lambda places: np.diagonal(places, offset, dim1, dim2))


@form("fill_", ("Tensor",))
def _fill(x: Value, value: Any) -> Value:
    return moved(value_of(value, x), lambda places: np.broadcast_to(places, x.shape))


@form("zero_", ("Functional", "Tensor"))
def _zero_(x: Value) -> Value:
    return stopped(np.zeros_like(x.array))


@form("copy_", ("Tensor",))
def _copy_(x: Value, source: Value, *_: Any) -> Value:
    return moved(source, lambda places: np.broadcast_to(places, x.shape))


@form("diag", _MINT)
def _diag(x: Value, diagonal: int = 0) -> Value:
    if x.ndim == 2:
        return moved(x, lambda places: np.diagonal(places, diagonal))
    if x.ndim != 1:
        raise ValueError(f"{x.ndim} dimensions")
    checked_size([x.size + abs(diagonal)] * 2)
    zero = Value(np.zeros(1, x.array.dtype))
    size = x.size + abs(diagonal)
    inside = np.eye(size, k=diagonal, dtype=bool)

    def place(places: list[Array]) -> Array:
        result = np.full((size, size), places[1][0])
        result[inside] = places[0]
        return result

    return joined([x, zero], place)


@form("cross", ("Mint", "Tensor"))
def _cross(x: Value, y: Value, axis: Any = None) -> Value:
    if axis is None:
        axis = next(i for i, size in enumerate(x.shape) if size == 3)
    if x.shape != y.shape or x.shape[axis] != 3:
        raise NoFormulaError("shapes that are broadcast")
    after = (_roll(x, -1, axis), _roll(y, -2, axis))
    before = (_roll(x, -2, axis), _roll(y, -1, axis))
    return after[0] * after[1] - before[0] * before[1]


@form("diff", _MINT)
def _diff(x: Value, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Value:
    if prepend is not None or append is not None or not 0 <= n < 64:
        raise NoFormulaError("prepend and append")
    for _ in range(n):
        steps = np.arange(x.shape[axis])
        upper, lower = (moved(x, lambda places, at=at: np.take(places, at, axis)) for at in (steps[1:], steps[:-1]))
        x = upper - lower
    return x


@form("slice", ("Functional",))
def _slice(x: Value, begin: Any, size: Any) -> Value:
    starts, sizes = (numbers_of((each,)) for each in (begin, size))
    if len(starts) != x.ndim or any(a < 0 for a in starts):
        raise ValueError(f"begin {starts}")
    chosen = tuple(
        slice(a, x.shape[i] if length == -1 else a + length)
        for i, (a, length) in enumerate(zip(starts, sizes, strict=True))
    )
    return moved(x, lambda places: places[chosen])


@form("strided_slice", ("Functional",))
def _strided_slice(x: Value, begin: Any, end: Any, strides: Any, *masks: Any, **kwargs: Any) -> Value:
    if any(masks) or any(kwargs.values()):
        raise NoFormulaError("masks")
    chosen = tuple(slice(*each) for each in zip(*map(numbers_of, ((begin,), (end,), (strides,))), strict=True))
    return moved(x, lambda places: places[chosen])


@form("type_as", ("Functional", "Tensor"))
def _type_as(x: Value, y: Value) -> Value:
    if x.array.dtype.kind != y.array.dtype.kind:
        raise NoFormulaError("another kind of numbers")
    return _same(x)


@form("__getitem__", ("Tensor",))
def _getitem(x: Value, index: Any) -> Value:
    chosen = _index(index)
    return moved(x, lambda places: places[chosen])


@form("__setitem__", ("Tensor",))
def _setitem(x: Value, index: Any, value: Any) -> Value:
    chosen, source = _index(index), value_of(value, x)

    def place(places: list[Array]) -> Array:
        result = places[0].copy()
        result[chosen] = places[1]
        return result

    return joined([x, source], place)


def _index(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(map(_index, index))
    if isinstance(index, list):
        return [_index(each) for each in index]
    return array_of(index)


@form("gather_elements gather_d")
@form("gather", _MINT)
def _gather(x: Value, axis: int, index: Value) -> Value:
    # Dimensions other than ``axis`` may be larger than those of the index.
    return moved(x, lambda places: np.take_along_axis(_cropped(places, index.shape, axis), index.array, axis))


@form("gather", ("Tensor",))
def _gather_method(x: Value, first: Any = None, second: Any = None, *rest: Any, **kwargs: Any) -> Value:
    if isinstance(second, Value):
        return _gather(x, first, second)
    return _gather_ops(x, first, second, *rest, **kwargs)


@form("gather", ("Functional",))
def _gather_ops(x: Value, input_indices: Value, axis: Any, batch_dims: int = 0) -> Value:
    if batch_dims:
        raise NoFormulaError("batch_dims")
    return moved(x, lambda places: np.take(places, input_indices.array, int(array_of(axis))))


def _cropped(places: Array, shape: tuple[int, ...], axis: int) -> Array:
    return places[tuple(slice(None) if i == axis % places.ndim else slice(size) for i, size in enumerate(shape))]


@form("gather_nd")
def _gather_nd(x: Value, indices: Value) -> Value:
    chosen = tuple(np.moveaxis(indices.array, -1, 0))
    return moved(x, lambda places: places[chosen])


@form("take", ("Tensor",))
def _take_method(x: Value, indices: Value, axis: Any = None, mode: str = "clip") -> Value:
    if not ((indices.array >= 0).all() and (indices.array < (x.size if axis is None else x.shape[axis])).all()):
        raise NoFormulaError("indices out of range")
    return moved(x, lambda places: np.take(places, indices.array, axis))


@form("take_along_dim")
def _take_along_dim(x: Value, indices: Value, axis: Any = None) -> Value:
    if axis is None:
        return moved(x, lambda places: places.ravel()[indices.array.ravel()])
    return _gather(x, axis, indices)


@form("masked_select")
def _masked_select(x: Value, mask: Value) -> Value:
    wide = np.broadcast_shapes(x.shape, mask.shape)
    return moved(x, lambda places: np.broadcast_to(places, wide)[np.broadcast_to(mask.array, wide)])


@form("masked_scatter", ("Functional", "Tensor"))
def _masked_scatter(x: Value, mask: Value, source: Value) -> Value:
    chosen = np.broadcast_to(mask.array, x.shape)
    count = int(np.count_nonzero(chosen))
    if count > source.size:
        raise IndexError(f"{count} places for {source.size} elements")

    def place(places: list[Array]) -> Array:
        result = places[0].copy()
        result[chosen] = places[1].ravel()[:count]
        return result

    return joined([x, source], place)


def _flat_places(x: Value, axis: int, index: Array) -> Array:
    """Return the places in the flattened value that ``index`` names along a dimension, as for a scatter."""
    places = np.arange(x.size).reshape(x.shape)
    return np.take_along_axis(_cropped(places, index.shape, axis), index, axis)


@form("scatter")
def _scatter(x: Value, axis: int, index: Value, src: Any, *, reduce: Any = None) -> Value:
    if reduce not in (None, "none"):
        raise NoFormulaError(f"reduce {reduce}")
    chosen = _flat_places(x, axis, index.array)
    source = value_of(src, x)

    def place(places: list[Array]) -> Array:
        result = places[0].copy().ravel()
        given = places[1] if places[1].ndim == 0 else places[1][tuple(map(slice, index.shape))]
        result[chosen] = given
        return result.reshape(x.shape)

    return joined([x, source], place)


@form("scatter_add tensor_scatter_elements", ("Mint", "Tensor"))
def _scatter_add(x: Value, axis: int, index: Value, src: Value) -> Value:
    return accumulated(x, _flat_places(x, axis, index.array), src[tuple(map(slice, index.shape))])


@form("tensor_scatter_elements")
def _tensor_scatter_elements(x: Value, indices: Value, updates: Value, axis: int = 0, reduction: str = "none") -> Value:
    if reduction == "add":
        return _scatter_add(x, axis, indices, updates)
    if reduction != "none":
        raise NoFormulaError(f"reduction {reduction}")
    return _scatter(x, axis, indices, updates)


@form("tensor_scatter_add")
def _tensor_scatter_add(x: Value, indices: Value, updates: Value) -> Value:
    places = np.arange(x.size).reshape(x.shape)
    return accumulated(x, places[tuple(np.moveaxis(indices.array, -1, 0))], updates)


@form("index_add", ("Mint", "Tensor"))
def _index_add(x: Value, axis: int, index: Value, source: Value, *, alpha: float = 1) -> Value:
    places = np.take(np.arange(x.size).reshape(x.shape), index.array, axis)
    return accumulated(x, places, source if alpha == 1 else source * alpha)


@form("index_add", ("Functional",))
def _index_add_ops(
    x: Value, indices: Value, y: Value, axis: int, use_lock: bool = True, check_index_bound: bool = True
) -> Value:
    return _index_add(x, axis, indices, y)


@form("index_fill")
def _index_fill(x: Value, axis: int, index: Value, value: Any) -> Value:
    mask = np.zeros(x.shape[axis], bool)
    mask[index.array] = True
    return where(mask.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)]), value_of(value, x), x)


@form("unsorted_segment_sum")
def _unsorted_segment_sum(x: Value, segment_ids: Value, num_segments: Any) -> Value:
    rest = x.shape[segment_ids.ndim :]
    shape = (int(array_of(num_segments)), *rest)
    checked_size(shape)
    places = np.take(np.arange(int(np.prod(shape))).reshape(shape), segment_ids.array, 0)
    return accumulated(stopped(np.zeros(shape, x.array.dtype)), places, x)


@form("nonzero", ("Functional", "Mint", "Tensor"))
def _nonzero(x: Value, *, as_tuple: bool = False) -> Any:
    found = np.nonzero(x.array)
    return tuple(map(stopped, found)) if as_tuple else stopped(np.stack(found, -1))
