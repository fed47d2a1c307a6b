"""Replay a call by the formula of its function, without MindSpore."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from msprobe.mindspore import _replay_layers as _registers_layers
from msprobe.mindspore._replay_forms import Dtype, NoFormulaError, find_form, named
from msprobe.mindspore._replay_tape import TooLargeError, Value, gradients
from msprobe_core.interception import NOT_SPECIAL, build_arguments, tensors_by_path
from msprobe_core.plugin import Argument, Phase, ReplayCall, Replayed, ReplayError, ReplayTensor

__all__ = ["NoFormulaError", "by_formula", "has_formula"]

_FLOATING = ("float16", "bfloat16", "float32", "float64")
_ORDER = {"float16": 1, "bfloat16": 1, "float32": 2, "float64": 3}
_CALCULATED_IN: dict[str, Any] = {"float16": np.float32, "bfloat16": np.float32, "float32": np.float32}

assert _registers_layers.form


def has_formula(prefix: str, name: str) -> bool:
    """Whether there is a formula for calls of this name in dumps; not all of their arguments may be handled."""
    return find_form(prefix, name) is not None


def by_formula(call: ReplayCall) -> Replayed:
    """Replay a call by its formula.

    In float64 for a widened call. Otherwise, the arithmetic is that of float32 for the dtypes below, and results are
    rounded to the widest dtype of the inputs: hardware accumulates so.

    Raises:
        NoFormulaError: there is none for these arguments.
        ReplayError: the formula fails for them; an index is out of range, or a result is too large.
    """
    function = find_form(call.site.prefix, call.site.path)
    if function is None:
        raise NoFormulaError("there is no formula")
    try:
        with np.errstate(all="ignore"):
            return _replay(call, function)
    except NoFormulaError:
        raise
    except (TooLargeError, IndexError, ValueError, np.linalg.LinAlgError) as error:
        raise ReplayError(f"it cannot be called again ({' '.join(str(error).split())[:300]})") from error
    except (TypeError, AttributeError, KeyError) as error:
        raise NoFormulaError(str(error)) from error


def _replay(call: ReplayCall, function: Callable[..., Any]) -> Replayed:
    leaves: dict[str, Value] = {}
    by_identity: dict[int, Value] = {}
    dtypes: list[str] = []
    order: list[str] = []

    def make(value: ReplayTensor, path: str) -> Value:
        made = None if value.identity is None else by_identity.get(value.identity)
        if made is None:
            made = Value(_array_of(value, is_widened=call.is_widened))
            if value.identity is not None:
                by_identity[value.identity] = made
        dtypes.append(value.dtype)
        if value.takes_gradient:
            leaves[path] = made
        order.append(path)
        return made

    args, kwargs = build_arguments(call, make, _special)
    known = [each for each in (*args, *kwargs.values()) if isinstance(each, Dtype)]
    asked = next((each.name for each in known), None)
    output = function(*args, **named(kwargs, function))
    values = dict(tensors_by_path(output, Value))
    dtype = "float64" if call.is_widened else asked if asked in _ORDER else _widest(dtypes)
    if call.site.phase is not Phase.BACKWARD:
        return Replayed(values={path: _recorded(value.array, dtype, call) for path, value in values.items()})
    ends: dict[int, tuple[Value, Any]] = {}
    for i, (path, gradient) in enumerate(call.gradients.items()):
        if path in values and values[path].is_floating:
            if values[path].shape != gradient.values.shape:
                raise ReplayError(
                    f"its output {path} has the shape {list(values[path].shape)}, and the gradient another"
                )
            ends[i] = values[path], gradient.values.astype(values[path].array.dtype)
    if not ends or not leaves:
        raise ReplayError("no gradient flows through it from what was recorded")
    found = gradients(ends, list(leaves.values()))
    wanted = dict(zip(order, dtypes, strict=True))
    return Replayed(
        values={
            path: _recorded(
                np.zeros(leaf.shape, leaf.array.dtype) if gradient is None else gradient,
                "float64" if call.is_widened else wanted[path],
                call,
            )
            for (path, leaf), gradient in zip(leaves.items(), found, strict=True)
        }
    )


def _widest(dtypes: list[str]) -> str:
    floating = {dtype for dtype in dtypes if dtype in _ORDER}
    if {"float16", "bfloat16"} <= floating:
        return "float32"
    return max(floating, key=lambda dtype: _ORDER[dtype], default="float32")


def _array_of(value: ReplayTensor, *, is_widened: bool) -> Any:
    if value.values.dtype.kind in "biu":
        return value.values
    if value.dtype not in _FLOATING:
        raise NoFormulaError(f"the dtype {value.dtype}")
    return value.values.astype(np.float64 if is_widened else _CALCULATED_IN.get(value.dtype, np.float64))


def _recorded(array: Any, dtype: str, call: ReplayCall) -> ReplayTensor:
    array = np.asarray(array)
    if array.size > call.max_elements:
        raise ReplayError(
            f"its results have {array.size:,} elements, more than the {call.max_elements:,} replayed here"
        )
    if array.dtype.kind != "f":
        return ReplayTensor(values=array, dtype=str(array.dtype))
    return ReplayTensor(values=_rounded(array, dtype), dtype=dtype)


def _rounded(array: Any, dtype: str) -> Any:
    """Return numbers rounded to a dtype; those of bfloat16 in float32."""
    if dtype == "float64":
        return array.astype(np.float64)
    if dtype == "float16":
        return array.astype(np.float16).astype(np.float32)
    single = array.astype(np.float32)
    if dtype != "bfloat16":
        return single
    bits = np.ascontiguousarray(single).view(np.uint32)
    even = ((bits >> 16) & 1) + np.uint32(0x7FFF)  # to nearest, ties to even
    short = ((bits + even) & np.uint32(0xFFFF0000)).view(np.float32).reshape(array.shape)
    return np.where(np.isnan(single), single, short)


def _special(value: Argument) -> Any:
    if value.type != "mindspore.dtype":
        return NOT_SPECIAL
    return Dtype(str(value.value).lower().replace("bool_", "bool"))
