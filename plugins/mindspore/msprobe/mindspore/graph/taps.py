"""Points that hand values to Python while the graph runs, on the CPU; see `reading` for how they are compiled.

Each value passes through a Cell that does nothing forward and hands on the gradient backward, so that the gradient can
be seen; the value itself is looked at beside the way. Nothing that the training computes is computed otherwise.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops

from msprobe.mindspore.graph.layouts import FIRST_RESULT
from msprobe.mindspore.graph.leaf import MOST, operator, operators
from msprobe.mindspore.graph.reading import (
    copied,
    describe_arguments,
    describe_results,
    flatten_all,
    may_have_gradient,
    number_tensor,
    plain,
    readable,
    rebuild_all,
)
from msprobe.mindspore.graph.station import station

# ruff: noqa: ARG002, RUF005  # the compiler names what a bprop takes, and knows no unpacking in a tuple

_begin = operators(station().begin, 1)
_more = operators(station().more, 1)
_end = operators(station().end, 2)
_gradient = operator(station().gradient, 3)
_parameter_gradient = operator(station().parameter_gradient, 2)


class _Tap(nn.Cell):
    """Hands its first input on, and shows the gradient with respect to it."""

    def construct(self, x: Any, call: Any, number: Any) -> Any:
        return x

    def bprop(self, x: Any, call: Any, number: Any, out: Any, dout: Any) -> Any:
        shown = _gradient(call, number, plain(dout))
        return ops.depend(dout, shown), ops.zeros_like(call), ops.zeros_like(number)


_tap = _Tap()


def _tapped(values: Any, call: Any, first: Any, shown: Any) -> Any:
    tapped = ()
    for i in range(len(values)):
        # What goes on waits for what looks: it may be written to.
        x = ops.depend(values[i], shown)
        if may_have_gradient(x):
            x = _tap(x, call, number_tensor(first + i))
        tapped = tapped + (x,)
    return tapped


def opened(cell: Any, parameters: Any, args: Any, kwargs: Any) -> Any:
    """Begin a call: return its number, and the arguments to go on with."""
    given = flatten_all((args, kwargs))
    own = ()
    for parameter in parameters:
        own = own + (copied(parameter),)
    layout = describe_arguments(cell, args, kwargs, parameters)
    shown = readable(given + own)
    first = shown[:MOST]
    call = ops.stop_gradient(_begin[len(first)](number_tensor(layout), *first))
    for i in range(MOST, len(shown), MOST):
        following = shown[i : i + MOST]
        _more[len(following)](call, *following)
    taken, _ = rebuild_all((args, kwargs), _tapped(given, call, 0, call), 0)
    return call, taken[0], taken[1]


def closed(cell: Any, call: Any, output: Any) -> Any:
    """End a call: return the results to go on with."""
    results = flatten_all(output)
    shown = readable(results)
    first = shown[:MOST]
    layout = number_tensor(describe_results(cell, output))
    end = ops.stop_gradient(_end[len(first)](layout, call, *first))
    for i in range(MOST, len(shown), MOST):
        following = shown[i : i + MOST]
        _more[len(following)](call, *following)
    output, _ = rebuild_all(output, _tapped(results, call, FIRST_RESULT, end), 0)
    return output


def construct(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands for the construct of a Cell while graphs are compiled."""
    call, args, kwargs = opened(self._msprobe_cell, self._msprobe_parameters, args, kwargs)
    return closed(self._msprobe_cell, call, self._msprobe_construct(*args, **kwargs))


def parameter_hook(number: int) -> Any:
    """Return a hook for the parameter with this number, to be compiled into graphs."""
    constant = Tensor([number], ms.int64)

    def hook(gradient: Any) -> Any:
        return ops.depend(gradient, _parameter_gradient(constant, plain(gradient)))

    return hook
