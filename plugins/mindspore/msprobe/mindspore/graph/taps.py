"""What is compiled into Cells.

The functions here are read by MindSpore's compiler, not called: they keep to what it understands, and what looks like
a test of a type or a loop over a container is done with while it compiles. The first parameter of a method has to be
named ``self``.

Each value passes through a Cell that does nothing forward and hands on the gradient backward, so that the gradient can
be seen; the value itself is looked at beside the way. Nothing that the training computes is computed otherwise.
"""

# ruff: noqa: ARG002, RUF005  # the compiler names what a bprop takes, and knows no unpacking in a tuple

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.ops import PrimitiveWithInfer, prim_attr_register
from mindspore.ops.primitive import Primitive

from msprobe.mindspore.graph.layouts import FIRST_RESULT, MAX_DEPTH, TreeReader, is_readable, takes_gradient
from msprobe.mindspore.graph.leaf import MOST, operator, operators
from msprobe.mindspore.graph.station import station

_TENSOR: Any = type(ms.tensor_type)

_Abstract = dict[str, Any]


def _constant_tensor(number: int) -> _Abstract:
    return {"shape": (1,), "dtype": _TENSOR(ms.int64), "value": Tensor([number], ms.int64)}


def _constant(number: int) -> _Abstract:
    return {"shape": (), "dtype": ms.int64, "value": number}


class _DescribeArguments(PrimitiveWithInfer):
    """The number of a layout, from a Cell's number and what the compiler knows of its arguments and parameters."""

    @prim_attr_register
    def __init__(self) -> None: ...

    def __infer__(self, *args: _Abstract) -> _Abstract:
        cell, positional, named, parameters = args
        reader = TreeReader()
        # The reader goes as deep as the functions below, for which arguments lie in a pair.
        pair = reader.read({key: (positional[key], named[key]) for key in ("shape", "dtype", "value")})
        names = station().parameter_names(cell["value"])
        own = zip(names, parameters["shape"], parameters["dtype"], strict=True)
        places = {name: reader.place(shape, dtype) for name, shape, dtype in own}
        return _constant_tensor(station().layouts.add(cell["value"], pair, places, reader.places))


class _DescribeResults(PrimitiveWithInfer):
    """The number of a layout, from a Cell's number and what the compiler knows of its results."""

    @prim_attr_register
    def __init__(self) -> None: ...

    def __infer__(self, *args: _Abstract) -> _Abstract:
        cell, results = args
        reader = TreeReader(FIRST_RESULT)
        tree = reader.read(results)
        return _constant_tensor(station().layouts.add(cell["value"], tree, {}, reader.places))


class _IsReadable(PrimitiveWithInfer):
    """Whether the values of a tensor can be handed out."""

    @prim_attr_register
    def __init__(self) -> None: ...

    def __infer__(self, *args: _Abstract) -> _Abstract:
        (tensor,) = args
        return _constant(int(is_readable(tensor["shape"], tensor["dtype"])))


class _TakesGradient(PrimitiveWithInfer):
    """Whether the gradient of a tensor can be handed out."""

    @prim_attr_register
    def __init__(self) -> None: ...

    def __infer__(self, *args: _Abstract) -> _Abstract:
        (tensor,) = args
        return _constant(int(takes_gradient(tensor["shape"], tensor["dtype"])))


class _Number(PrimitiveWithInfer):
    """A constant as a tensor."""

    @prim_attr_register
    def __init__(self) -> None: ...

    def __infer__(self, *args: _Abstract) -> _Abstract:
        (number,) = args
        return _constant_tensor(number["value"])


_describe_arguments = _DescribeArguments()
_describe_results = _DescribeResults()
_is_readable = _IsReadable()
_takes_gradient = _TakesGradient()
_number = _Number()
_make_dict = Primitive("make_dict")
_move = Primitive("TensorMove")

_begin = operators(station().begin, 1)
_more = operators(station().more, 1)
_end = operators(station().end, 2)
_gradient = operator(station().gradient, 3)
_parameter_gradient = operator(station().parameter_gradient, 2)


def _plain(x: Any) -> Any:
    """As the operators take it: neither bfloat16 nor without dimensions."""
    if x.dtype == ms.bfloat16:
        x = ops.cast(x, ms.float32)
    if x.ndim == 0:
        x = ops.reshape(x, (1,))
    return x


def _readable(values: Any) -> Any:
    shown = ()
    for x in values:
        if _is_readable(x):
            shown = shown + (_plain(ops.stop_gradient(x)),)
    return shown


class _Tap(nn.Cell):
    """Hands its first input on, and shows the gradient with respect to it."""

    def construct(self, x: Any, call: Any, number: Any) -> Any:
        return x

    def bprop(self, x: Any, call: Any, number: Any, out: Any, dout: Any) -> Any:
        shown = _gradient(call, number, _plain(dout))
        return ops.depend(dout, shown), ops.zeros_like(call), ops.zeros_like(number)


_tap = _Tap()


def _tapped(values: Any, call: Any, first: Any, shown: Any) -> Any:
    tapped = ()
    for i in range(len(values)):
        # What goes on waits for what looks: it may be written to.
        x = ops.depend(values[i], shown)
        if _takes_gradient(x):
            x = _tap(x, call, _number(first + i))
        tapped = tapped + (x,)
    return tapped


def _flatten_tensor(x: Any) -> Any:
    return (x,) if isinstance(x, Tensor) else ()


def _rebuild_tensor(x: Any, values: Any, n: Any) -> Any:
    if isinstance(x, Tensor):
        return values[n], n + 1
    return x, n


def _flatten_with(flatten_item: Any) -> Any:
    """Return what lines up the tensors in a container, given that for its items: the compiler knows no recursion."""

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
    """Return what puts tensors in the places of those in a container, given that for its items."""

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


_flatten: Any = _flatten_tensor
_rebuild: Any = _rebuild_tensor
for _ in range(MAX_DEPTH):
    _flatten, _rebuild = _flatten_with(_flatten), _rebuild_with(_rebuild)


def opened(cell: Any, parameters: Any, args: Any, kwargs: Any) -> Any:
    """Begin a call: return its number, and the arguments to go on with."""
    given = _flatten((args, kwargs))
    own = ()
    for parameter in parameters:
        own = own + (_move(parameter),)
    layout = _describe_arguments(cell, args, kwargs, parameters)
    shown = _readable(given + own)
    first = shown[:MOST]
    call = ops.stop_gradient(_begin[len(first)](layout, *first))
    for i in range(MOST, len(shown), MOST):
        following = shown[i : i + MOST]
        _more[len(following)](call, *following)
    taken, _ = _rebuild((args, kwargs), _tapped(given, call, 0, call), 0)
    return call, taken[0], taken[1]


def closed(cell: Any, call: Any, output: Any) -> Any:
    """End a call: return the results to go on with."""
    results = _flatten(output)
    shown = _readable(results)
    first = shown[:MOST]
    end = ops.stop_gradient(_end[len(first)](_describe_results(cell, output), call, *first))
    for i in range(MOST, len(shown), MOST):
        following = shown[i : i + MOST]
        _more[len(following)](call, *following)
    output, _ = _rebuild(output, _tapped(results, call, FIRST_RESULT, end), 0)
    return output


def construct(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands for the construct of a Cell while graphs are compiled."""
    call, args, kwargs = opened(self._msprobe_cell, self._msprobe_parameters, args, kwargs)
    return closed(self._msprobe_cell, call, self._msprobe_construct(*args, **kwargs))


def parameter_hook(number: int) -> Any:
    """Return a hook for the parameter with this number, to be compiled into graphs."""
    constant = Tensor([number], ms.int64)

    def hook(gradient: Any) -> Any:
        return ops.depend(gradient, _parameter_gradient(constant, _plain(gradient)))

    return hook
