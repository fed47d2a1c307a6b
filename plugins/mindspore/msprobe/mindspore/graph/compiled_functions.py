"""Functions to be compiled into Cells: flatten and rebuild values, and query what the compiler knows about them.

MindSpore's compiler reads the functions here, in `taps` and in `dumps`; nothing calls them. They use only what the
compiler supports, and it evaluates type tests and loops over containers at compile time. It requires that the first
parameter of a method is named ``self``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, ops
from mindspore.ops import PrimitiveWithInfer, prim_attr_register
from mindspore.ops.primitive import Primitive

from msprobe.mindspore.graph.collector import station
from msprobe.mindspore.graph.layouts import FIRST_RESULT, MAX_DEPTH, TreeReader, is_readable, takes_gradient
from msprobe.mindspore.graph.plan import Point, Tap

# ruff: noqa: RUF005  # the compiler cannot unpack in a tuple

_TENSOR: Any = type(ms.tensor_type)

Abstract = dict[str, Any]
"""What the compiler knows of a value."""


class Inferred(PrimitiveWithInfer):
    """An operator that the compiler evaluates by ``__infer__``, and never runs."""

    @prim_attr_register
    def __init__(self) -> None: ...


def _has_tap(cell: int) -> Callable[[int], bool]:
    plan = station().plan
    return lambda place: plan.tap_at(Point(cell, place)) is not Tap.NONE


def constant_tensor(number: int) -> Abstract:
    """Return a number as a tensor."""
    return {"shape": (1,), "dtype": _TENSOR(ms.int64), "value": Tensor([number], ms.int64)}


def constant(value: int | str) -> Abstract:
    """Return a number or a text."""
    return {"shape": (), "dtype": ms.string if isinstance(value, str) else ms.int64, "value": value}


class _DescribeArguments(Inferred):
    """The number of a layout, from a Cell's number and the compiler's types of its arguments and parameters."""

    def __infer__(self, *args: Abstract) -> Abstract:
        cell, positional, named, parameters = args
        reader = TreeReader(has_tap=_has_tap(cell["value"]))
        # The reader has the same depth limit as the functions below, which get the arguments as a pair.
        pair = reader.read({key: (positional[key], named[key]) for key in ("shape", "dtype", "value")})
        names = station().parameter_names(cell["value"])
        own = zip(names, parameters["shape"], parameters["dtype"], strict=True)
        places = {name: reader.place(shape, dtype) for name, shape, dtype in own}
        return constant(station().layouts.add(cell["value"], pair, places, reader))


class _DescribeResults(Inferred):
    """The number of a layout, from a Cell's number and the compiler's types of its results."""

    def __infer__(self, *args: Abstract) -> Abstract:
        cell, results = args
        reader = TreeReader(FIRST_RESULT, has_tap=_has_tap(cell["value"]))
        tree = reader.read(results)
        return constant(station().layouts.add(cell["value"], tree, {}, reader))


class _IsReadable(Inferred):
    """Whether the values of a tensor can be passed out."""

    def __infer__(self, *args: Abstract) -> Abstract:
        (tensor,) = args
        return constant(int(is_readable(tensor["shape"], tensor["dtype"])))


class _TakesGradient(Inferred):
    """Whether the gradient of a tensor can be passed out."""

    def __infer__(self, *args: Abstract) -> Abstract:
        (tensor,) = args
        return constant(int(takes_gradient(tensor["shape"], tensor["dtype"])))


class _TapAt(Inferred):
    """How the gradient of a tensor is taken at a point of a Cell; see `msprobe.mindspore.graph.plan.Tap`."""

    def __infer__(self, *args: Abstract) -> Abstract:
        cell, place, tensor = args
        if not takes_gradient(tensor["shape"], tensor["dtype"]):
            return constant(Tap.NONE)
        return constant(int(station().plan.tap_at(Point(cell["value"], place["value"]))))


class _PointTensor(Inferred):
    """The number of a point of a Cell, as a tensor."""

    def __infer__(self, *args: Abstract) -> Abstract:
        cell, place = args
        return constant_tensor(station().points.number_of(Point(cell["value"], place["value"])))


class _Number(Inferred):
    """A constant as a tensor."""

    def __infer__(self, *args: Abstract) -> Abstract:
        (number,) = args
        return constant_tensor(number["value"])


describe_arguments = _DescribeArguments()
describe_results = _DescribeResults()
may_be_read = _IsReadable()
may_have_gradient = _TakesGradient()
number_tensor = _Number()
tap_at = _TapAt()
point_tensor = _PointTensor()
_make_dict = Primitive("make_dict")
copied = Primitive("TensorMove")


def plain(x: Any) -> Any:
    """Convert a tensor to a form that our operators accept: not bfloat16, and at least one dimension."""
    if x.dtype == ms.bfloat16:
        x = ops.cast(x, ms.float32)
    if x.ndim == 0:
        x = ops.reshape(x, (1,))
    return x


def like(x: Any, given: Any) -> Any:
    """Undo `plain`: return ``x`` with dtype and number of dimensions of ``given``."""
    if given.dtype == ms.bfloat16:
        x = ops.cast(x, ms.bfloat16)
    if given.ndim == 0:
        x = ops.reshape(x, ())
    return x


def readable(values: Any) -> Any:
    """Return the tensors that can be passed out, in a form that our operators accept."""
    shown = ()
    for x in values:
        if may_be_read(x):
            if isinstance(x, Parameter):
                x = copied(x)  # noqa: PLW2901  # its current value: the program may write to it later
            shown = shown + (plain(ops.stop_gradient(x)),)
    return shown


def _flatten_tensor(x: Any) -> Any:
    return (x,) if isinstance(x, Tensor) else ()


def _rebuild_tensor(x: Any, values: Any, n: Any) -> Any:
    if isinstance(x, Tensor):
        return values[n], n + 1
    return x, n


def _flatten_with(flatten_item: Any) -> Any:
    """Return a function that flattens a container, given one for its items: the compiler supports no recursion."""

    def flatten(x: Any) -> Any:
        values = ()
        if isinstance(x, Tensor):
            values = (x,)
        elif isinstance(x, (tuple, list)):
            for item in x:
                values = values + flatten_item(item)
        elif isinstance(x, dict):
            for key in x:
                values = values + flatten_item(x[key])
        return values

    return flatten


def _rebuild_with(rebuild_item: Any) -> Any:
    """Return a function that rebuilds a container with other tensors, given one for its items."""

    def rebuild(x: Any, values: Any, n: Any) -> Any:
        if isinstance(x, Tensor):
            return values[n], n + 1
        if isinstance(x, tuple):
            items = ()
            for item in x:
                built, n = rebuild_item(item, values, n)
                items = items + (built,)
            return items, n
        if isinstance(x, list):
            items = []
            for item in x:
                built, n = rebuild_item(item, values, n)
                items.append(built)
            return items, n
        if isinstance(x, dict):
            keys = ()
            items = ()
            for key in x:
                built, n = rebuild_item(x[key], values, n)
                keys = keys + (key,)
                items = items + (built,)
            return _make_dict(keys, items), n
        return x, n

    return rebuild


flatten_all: Any = _flatten_tensor
rebuild_all: Any = _rebuild_tensor
for _ in range(MAX_DEPTH):
    flatten_all, rebuild_all = _flatten_with(flatten_all), _rebuild_with(rebuild_all)
