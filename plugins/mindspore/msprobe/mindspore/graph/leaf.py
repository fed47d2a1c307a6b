"""Operators that pass values to Python while a graph runs: MindSpore's CPU backend calls a Python function for them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ops
from numpy.typing import NDArray

_logger = logging.getLogger(__name__)

Arrived = Callable[..., int]
"""Takes the arrays, and returns a number that the graph uses as the operator's result."""

_Array = NDArray[Any]

VALUE = "msprobe_value"
GRADIENT = "msprobe_gradient"
HAND_ON = "msprobe_hand_on"
"""Names in compiled graphs of the operators that pass on values or gradients, and of the one that copies its input."""

MOST = 16
"""Maximum number of tensors per operator. An operator has a fixed number of inputs, so there is one for each number."""


def operator(arrived: Arrived, num_inputs: int, *, name: str = VALUE, stays: bool = True) -> ops.Custom:
    """Return an operator that calls ``arrived`` with ``num_inputs`` arrays, and whose result is the returned number.

    Args:
        arrived: Called with the arrays; an exception is logged, and the result is 0.
        num_inputs: Number of inputs.
        name: Name of the operator in the compiled graph.
        stays: Whether it runs even if its result is unused, in program order with other such operators. Must be false
            in backward: the compiler fails on such operators in Cells that are called several times.
    """

    def call(*arrays: _Array) -> _Array:
        number = 0
        try:
            number = arrived(*arrays)
        except Exception:
            _logger.exception("a value of a static graph could not be recorded")
        return np.array([number], np.int64)

    # MindSpore reads the number of inputs from the function's signature.
    inputs = [inspect.Parameter(f"x{i}", inspect.Parameter.POSITIONAL_ONLY) for i in range(num_inputs)]
    call.__signature__ = inspect.Signature(inputs)  # pyright: ignore[reportFunctionMemberAccess]
    call.__name__ = name
    custom = ops.Custom(call, (1,), ms.int64, func_type="pyfunc")
    if stays:
        custom.add_prim_attr("side_effect_io", True)
    return custom


def operators(arrived: Arrived, num_leading: int) -> tuple[ops.Custom, ...]:
    """Return operators for 0 to `MOST` tensors after ``num_leading`` numbers; the index is the number of tensors."""
    return tuple(operator(arrived, num_leading + number) for number in range(MOST + 1))


def copying(bprop: Callable[..., Any]) -> ops.Custom:
    """Return an operator with the given backward that takes a tensor and two numbers, and returns the tensor."""

    def copy(array: _Array, _point: _Array, _call: _Array) -> _Array:
        return array

    copy.__name__ = HAND_ON
    return ops.Custom(copy, lambda x, *_: x, lambda x, *_: x, func_type="pyfunc", bprop=bprop)
