"""Points that pass values to Python while the graph runs, on the CPU; see `compiled_functions` for the compiled part.

Each value passes through a Cell that is the identity in forward and backward, so that its gradient can be taken; the
value itself is read by a separate operator. The training's own computation stays the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from msprobe.mindspore.graph.collector import station
from msprobe.mindspore.graph.compiled_functions import (
    copied,
    describe_arguments,
    describe_results,
    flatten_all,
    like,
    number_tensor,
    plain,
    point_tensor,
    readable,
    rebuild_all,
    tap_at,
)
from msprobe.mindspore.graph.layouts import FIRST_RESULT
from msprobe.mindspore.graph.leaf import GRADIENT, MOST, copying, operator, operators
from msprobe.mindspore.graph.plan import Tap

# ruff: noqa: ARG002, RUF005  # the compiler names the arguments of a bprop, and cannot unpack in a tuple

_begin = operators(station().begin, 1)
_more = operators(station().more, 1)
_end = operators(station().end, 2)
_gradient = operator(station().gradient, 3, name=GRADIENT, stays=False)
_parameter_gradient = operator(station().parameter_gradient, 2, stays=False)
_CELL, _OPERATOR = int(Tap.CELL), int(Tap.OPERATOR)


def _taken(_x: Any, point: Any, call: Any, _out: Any, dout: Any) -> Any:
    """Backward of an operator that is a tap, to which the compiler passes its inputs, result and gradient."""
    shown = _gradient(call, point, plain(dout))
    return ops.depend(dout, shown), ops.zeros_like(point), ops.zeros_like(call)


class _Tap(nn.Cell):
    """Returns its first input unchanged, and passes out the gradient with respect to it.

    The result is in a tuple. If a program writes to any parameter, the compiler takes a function that returns one of
    its parameters for one that writes to it, and gives its result to all later uses of the argument: the gradient of
    those would be added to that of this use.
    """

    def construct(self, x: Any, point: Any, call: Any) -> Any:
        return (x,)

    def bprop(self, x: Any, point: Any, call: Any, out: Any, dout: Any) -> Any:
        return _taken(x, point, call, out[0], dout[0])


_tap: Callable[..., tuple[Any]] = _Tap()
_copy = copying(_taken)


def _tapped(values: Any, cell: Any, call: Any, first: Any) -> Any:
    tapped = ()
    for i in range(len(values)):
        x = values[i]
        tap = tap_at(cell, first + i, x)
        # Parameters are passed on without a tap. The compiler treats parameters of one shape as equal arguments, and
        # would give every call of a tap the result of the first; also, the callee may write to them.
        if not isinstance(x, Parameter):
            if tap == _CELL:
                x = _tap(x, point_tensor(cell, first + i), call)[0]
            elif tap == _OPERATOR:
                x = like(_copy(plain(x), point_tensor(cell, first + i), call), x)
        tapped = tapped + (x,)
    return tapped


def opened(cell: Any, parameters: Any, args: Any, kwargs: Any) -> Any:
    """Begin a call: return its number, and the arguments to continue with."""
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
    taken, _ = rebuild_all((args, kwargs), _tapped(given, cell, call, 0), 0)
    return call, taken[0], taken[1]


def closed(cell: Any, call: Any, output: Any) -> Any:
    """End a call: return the results to continue with."""
    results = flatten_all(output)
    shown = readable(results)
    first = shown[:MOST]
    layout = number_tensor(describe_results(cell, output))
    _end[len(first)](layout, call, *first)
    for i in range(MOST, len(shown), MOST):
        following = shown[i : i + MOST]
        _more[len(following)](call, *following)
    output, _ = rebuild_all(output, _tapped(results, cell, call, FIRST_RESULT), 0)
    return output


def construct(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Replace the construct of a Cell while graphs are compiled."""
    call, args, kwargs = opened(self._msprobe_cell, self._msprobe_parameters, args, kwargs)
    return closed(self._msprobe_cell, call, self._msprobe_construct(*args, **kwargs))


def parameter_hook(number: int) -> Any:
    """Return a hook for the parameter with this number, to be compiled into graphs."""
    constant = Tensor([number], ms.int64)

    def hook(gradient: Any) -> Any:
        return ops.depend(gradient, _parameter_gradient(constant, plain(gradient)))

    return hook
