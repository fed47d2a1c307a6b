"""Calls of optimizers in the dynamic graph. They have no class in common, but all are Cells that hold parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mindspore import Parameter, Tensor, nn

from msprobe_core.interception import Function, FunctionPatch

Around = Callable[[nn.Cell, Any, Callable[[], Any]], Any]
"""Makes a call of an optimizer, from the optimizer, what it is given, and the call; returns the result."""


def is_optimizer(value: Any) -> bool:
    """Whether a value is a Cell that updates parameters; those of other packages derive from none of MindSpore's."""
    parameters = getattr(value, "parameters", None) if isinstance(value, nn.Cell) else None
    return isinstance(parameters, tuple) and all(isinstance(each, Parameter) for each in parameters)


def by_parameter(optimizer: Any, gradients: Any) -> Mapping[int, Tensor]:
    """Return the gradients that an optimizer is given, by the identity of the parameter; sparse ones are left out."""
    parameters: Sequence[Parameter] = optimizer.parameters
    if not isinstance(gradients, tuple | list) or len(gradients) != len(parameters):
        return {}  # the optimizer itself says what is wrong
    pairs = zip(parameters, gradients, strict=True)
    return {id(parameter): gradient for parameter, gradient in pairs if isinstance(gradient, Tensor)}


def watch_every_optimizer(around: Around) -> Callable[[], None]:
    """Have a function make the calls of all optimizers, also of ones that are created later; return what ends it."""

    def call(function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not is_optimizer(args[0]):
            return function(*args, **kwargs)
        given = next(iter((*args[1:], *kwargs.values())), None)
        return around(args[0], given, lambda: function(*args, **kwargs))

    patch = FunctionPatch(nn.Cell, "__call__", call)
    patch.install()
    return patch.remove
