"""Points that write values to files, for Ascend; `compiled_functions` has the compiled part, `tensordump` the reader.

On Ascend a running graph cannot pass values to Python, but ``TensorDump`` can write them. Nothing in the graph
identifies a call; the order of the files does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from msprobe.mindspore.graph.compiled_functions import (
    Abstract,
    Inferred,
    constant,
    copied,
    describe_arguments,
    describe_results,
    flatten_all,
    plain,
    readable,
    rebuild_all,
    tap_at,
)
from msprobe.mindspore.graph.layouts import FIRST_RESULT
from msprobe.mindspore.graph.tensordump import Kind, arrivals

# ruff: noqa: ARG002, RUF005  # the compiler names the arguments of a bprop, and cannot unpack in a tuple

_VALUE, _GRADIENT, _PARAMETER = (kind.value for kind in (Kind.VALUE, Kind.GRADIENT, Kind.PARAMETER))

_NOTHING = Tensor([0], ms.int32)


class _File(Inferred):
    """The name of a file, from its kind and two numbers."""

    def __infer__(self, *args: Abstract) -> Abstract:
        kind, first, second = (arg["value"] for arg in args)
        return constant(arrivals().stem(Kind(kind), first, second))


_file = _File()
_dump = ops.TensorDump()


def _dumped(layout: Any, values: Any) -> Any:
    if len(values) == 0:
        values = (_NOTHING,)  # a call without values needs a file too, or the reader would miss it
    done = ()
    for i in range(len(values)):
        done = done + (_dump(_file(_VALUE, layout, i), values[i]),)
    return done


class _Tap(nn.Cell):
    """Returns its first input unchanged, and writes the gradient with respect to it.

    The result is in a tuple for the reason given in `msprobe.mindspore.graph.taps`.
    """

    def construct(self, x: Any, layout: Any, number: Any) -> Any:
        return (x,)

    def bprop(self, x: Any, layout: Any, number: Any, out: Any, dout: Any) -> Any:
        done = _dump(_file(_GRADIENT, layout, number), plain(dout[0]))
        return ops.depend(dout[0], done), layout, number


_tap: Callable[..., tuple[Any]] = _Tap()


def _tapped(values: Any, cell: Any, layout: Any, first: Any) -> Any:
    tapped = ()
    for i in range(len(values)):
        x = values[i]
        # Parameters are passed on without a tap: see `msprobe.mindspore.graph.taps`.
        if not isinstance(x, Parameter) and tap_at(cell, first + i, x):
            x = _tap(x, layout, first + i)[0]
        tapped = tapped + (x,)
    return tapped


def opened(cell: Any, parameters: Any, args: Any, kwargs: Any) -> Any:
    """Begin a call: return its layout, and the arguments to continue with."""
    given = flatten_all((args, kwargs))
    own = ()
    for parameter in parameters:
        own = own + (copied(parameter),)
    layout = describe_arguments(cell, args, kwargs, parameters)
    _dumped(layout, readable(given + own))
    taken, _ = rebuild_all((args, kwargs), _tapped(given, cell, layout, 0), 0)
    return layout, taken[0], taken[1]


def closed(cell: Any, _call: Any, output: Any) -> Any:
    """End a call: return the results to continue with."""
    results = flatten_all(output)
    layout = describe_results(cell, output)
    _dumped(layout, readable(results))
    output, _ = rebuild_all(output, _tapped(results, cell, layout, FIRST_RESULT), 0)
    return output


def construct(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Replace the construct of a Cell while graphs are compiled."""
    call, args, kwargs = opened(self._msprobe_cell, self._msprobe_parameters, args, kwargs)
    return closed(self._msprobe_cell, call, self._msprobe_construct(*args, **kwargs))


def parameter_hook(number: int) -> Any:
    """Return a hook for the parameter with this number, to be compiled into graphs."""
    name = arrivals().stem(Kind.PARAMETER, number, 0)

    def hook(gradient: Any) -> Any:
        return ops.depend(gradient, _dump(name, plain(gradient)))

    return hook
