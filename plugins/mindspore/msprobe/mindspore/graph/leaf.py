"""The operators that hand values to Python while a graph runs: MindSpore's CPU backend calls a function for them."""

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
"""Takes the arrays that have arrived, and returns a number for the graph to go on with."""

_Array = NDArray[Any]

VALUE = "msprobe_value"
GRADIENT = "msprobe_gradient"
HAND_ON = "msprobe_hand_on"
"""What compiled graphs call operators that hand values or gradients to Python, and the one that returns its input."""

MOST = 16
"""How many tensors one operator takes: it has a fixed number of inputs, so there is one operator for each number."""


def operator(arrived: Arrived, num_inputs: int, *, name: str = VALUE, stays: bool = True) -> ops.Custom:
    """Return an operator that calls ``arrived`` with so many arrays, and whose result is the number that it returns.

    Args:
        arrived: See above.
        num_inputs: See above.
        name: What the compiled graph calls it.
        stays: Whether it runs where nothing uses its result, and keeps the order of the program among its like. In
            backward it must not: the compiler fails over such operators in Cells that are called several times.
    """

    def call(*arrays: _Array) -> _Array:
        number = 0
        try:
            number = arrived(*arrays)
        except Exception:
            _logger.exception("a value of a static graph could not be recorded")
        return np.array([number], np.int64)

    # The operator asks the function how many inputs it has.
    inputs = [inspect.Parameter(f"x{i}", inspect.Parameter.POSITIONAL_ONLY) for i in range(num_inputs)]
    call.__signature__ = inspect.Signature(inputs)  # pyright: ignore[reportFunctionMemberAccess]
    call.__name__ = name
    custom = ops.Custom(call, (1,), ms.int64, func_type="pyfunc")
    if stays:
        custom.add_prim_attr("side_effect_io", True)
    return custom


def operators(arrived: Arrived, num_leading: int) -> tuple[ops.Custom, ...]:
    """Return operators for up to `MOST` tensors after ``num_leading`` numbers, by how many tensors they take."""
    return tuple(operator(arrived, num_leading + number) for number in range(MOST + 1))


def copying(bprop: Callable[..., Any]) -> ops.Custom:
    """Return an operator of a tensor and two numbers, which returns the tensor, with this backward."""

    def copy(array: _Array, _point: _Array, _call: _Array) -> _Array:
        return array

    copy.__name__ = HAND_ON
    return ops.Custom(copy, lambda x, *_: x, lambda x, *_: x, func_type="pyfunc", bprop=bprop)
