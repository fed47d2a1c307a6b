"""The published perturbations of a call's inputs, on copies of them.

All but `PertMode.IMPROVE_PRECISION` change the first floating-point tensor only. The numbers are the published ones.
`line_through` moves all inputs, to measure the noise of a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from msprobe_core.config.schema import PertMode
from msprobe_core.findings import Finding
from msprobe_core.free_benchmark.reaction_codes import ReactionCode
from msprobe_core.model import ReplayCall, ReplayTensor
from msprobe_core.replay.judge import norm_of
from msprobe_core.replay.replays import mapped_call
from msprobe_core.store.dtype_values import FORMS, rounded

Array: TypeAlias = NDArray[Any]

NOISE = {"bfloat16": 1e-4, "float16": 1e-6, "float32": 1e-8, "float64": 1e-16}
"""What ``add_noise`` adds, by dtype, to elements of a magnitude above its square root; other dtypes as float32."""

STEPS = (-2, -1, 1, 2)
"""Places along a line of inputs, besides 0, whose results show the noise of a call; see `line_through`."""

_STEP_BITS = {"bfloat16": 2, "float16": 3, "float32": 13, "float64": 39}
"""Binary logarithm of the step in units of the last digit, by dtype.

The step is about the square root of the last digit, so that a smooth function is a cubic along the line to within its
rounding, and an intermediate result of half as many digits is rounded to other values.
"""

_SEED = 20260201

_HALF = ("float16", "bfloat16")


@dataclass(frozen=True)
class Perturbed:
    """A call with perturbed inputs.

    Attributes:
        call: The call.
        is_small: Whether the change is of the size of rounding, and not of the values themselves.
    """

    call: ReplayCall
    is_small: bool


def perturbed(call: ReplayCall, mode: PertMode) -> Perturbed | Finding:
    """Return a call with inputs perturbed by one of the modes that change them.

    Returns: the call, or the reason why this mode does not apply to it.
    """
    if mode is PertMode.IMPROVE_PRECISION:
        return _improved(call)
    first = _First(_CHANGES[mode])
    found = first.apply(call)
    if first.refusal is not None or not first.is_done:
        return first.refusal or Finding(ReactionCode.NO_FLOATING_INPUT)
    return Perturbed(found, is_small=mode is not PertMode.CHANGE_VALUE)


@dataclass(frozen=True)
class Line:
    """Calls whose inputs are on one line.

    Attributes:
        calls: One for each of `STEPS`.
        relative: Norm of one step relative to that of the inputs.
    """

    calls: tuple[ReplayCall, ...]
    relative: float


def line_through(call: ReplayCall) -> Line | None:
    """Return calls with all floating-point inputs at equal steps along a random line; ``None`` if nothing can move.

    Each element moves up or down by a fixed number of its last digits. So its values at all steps are numbers of its
    dtype, and the results differ by what the function makes of them only.
    """
    moved = [_Moved(step) for step in STEPS]
    calls = tuple(each.apply(call) for each in moved)
    difference, scale = (sum(getattr(moved[-1], name)) ** 0.5 for name in ("differences", "scales"))
    if not difference or not scale:
        return None
    return Line(calls, difference / scale / STEPS[-1])


@dataclass
class _Moved:
    """Moves all floating-point tensors of a call by some steps; the directions are the same for all numbers of steps.

    Attributes:
        step: Number of steps.
        differences: Squared norm of the change of each tensor.
        scales: Squared norm of each tensor.
    """

    step: int
    differences: list[float] = field(default_factory=list[float])
    scales: list[float] = field(default_factory=list[float])
    _random: Any = field(default_factory=lambda: np.random.default_rng(_SEED))
    _seen: dict[int, ReplayTensor] = field(default_factory=dict[int, ReplayTensor])

    def apply(self, call: ReplayCall) -> ReplayCall:
        return mapped_call(call, self._moved)

    def _moved(self, value: ReplayTensor) -> ReplayTensor:
        if value.dtype not in _STEP_BITS or value.values.dtype.kind != "f":
            return value
        if value.identity is not None and value.identity in self._seen:
            return self._seen[value.identity]
        values = value.values.astype(np.float64)
        signs = np.where(self._random.random(values.shape) < 0.5, -1.0, 1.0)
        steps: Array = self.step * 2.0 ** _STEP_BITS[value.dtype] * signs * _last_digit(values, value.dtype)
        with np.errstate(all="ignore"):
            after = rounded(values + np.where(np.isfinite(values) & (values != 0), steps, 0.0), value.dtype)
        reached: Array = after.astype(np.float64)
        finite = np.isfinite(values) & np.isfinite(reached)
        self.differences.append(norm_of(reached[finite] - values[finite]) ** 2)
        self.scales.append(norm_of(values[finite]) ** 2)
        found = msgspec.structs.replace(value, values=np.reshape(after, values.shape).astype(value.values.dtype))
        if value.identity is not None:
            self._seen[value.identity] = found
        return found


def _last_digit(values: Array, dtype: str) -> Array:
    """Return the distance to the next number away from zero, of each element; of 0 that of subnormal numbers."""
    form = FORMS[dtype]
    _, exponents = np.frexp(np.where(np.isfinite(values), values, 0.0))
    return np.ldexp(1.0, np.maximum(exponents, form.least_exponent + 1) - form.precision)


def _improved(call: ReplayCall) -> Perturbed | Finding:
    """Return a call whose half-precision tensors are all float32."""
    changed: list[str] = []

    def improve(value: ReplayTensor) -> ReplayTensor:
        if value.dtype not in _HALF:
            return value
        changed.append(value.dtype)
        return msgspec.structs.replace(value, dtype="float32", values=value.values.astype(np.float32))

    found = mapped_call(call, improve)
    return Perturbed(found, is_small=True) if changed else Finding(ReactionCode.NO_HALF_INPUT)


_Change: TypeAlias = Callable[[Array, str], "Array | Finding"]


@dataclass
class _First:
    """Changes the first floating-point tensor that it meets."""

    change: _Change
    is_done: bool = False
    refusal: Finding | None = None
    _seen: dict[int, ReplayTensor] = field(default_factory=dict[int, ReplayTensor])

    def apply(self, call: ReplayCall) -> ReplayCall:
        return mapped_call(call, self._changed, with_gradients=False)

    def _changed(self, value: ReplayTensor) -> ReplayTensor:
        if value.identity is not None and value.identity in self._seen:  # one tensor in two places changes in both
            return self._seen[value.identity]
        if self.is_done or value.dtype not in FORMS:
            return value
        self.is_done = True
        if value.values.size == 0:
            self.refusal = Finding(ReactionCode.EMPTY_INPUT)
            return value
        before = value.values.astype(np.float64)
        after = self.change(before, value.dtype)
        if isinstance(after, Finding):
            self.refusal = after
            return value
        values = rounded(after, value.dtype)
        if np.array_equal(values, before, equal_nan=True):
            self.refusal = Finding(ReactionCode.NOTHING_CHANGED)
            return value
        found = msgspec.structs.replace(value, values=np.reshape(values, value.values.shape).astype(value.values.dtype))
        if value.identity is not None:
            self._seen[value.identity] = found
        return found


def _with_noise(values: Array, dtype: str) -> Array:
    noise = NOISE.get(dtype, NOISE["float32"])
    return np.where(np.abs(values) > noise**0.5, values + noise, values)


def _with_other_bit(values: Array, dtype: str) -> Array:
    """Flip the last bit of the mantissa of each normal number."""
    digit = _last_digit(values, dtype)
    is_normal = np.isfinite(values) & (np.abs(values) > 2.0 ** FORMS[dtype].least_exponent)
    with np.errstate(all="ignore"):
        is_odd = np.where(is_normal, np.abs(values) / digit, 0.0) % 2 == 1
    away = np.where(is_odd, -digit, digit) * np.sign(values)
    return np.where(is_normal, values + away, values)


def _with_swapped_ends(values: Array, dtype: str) -> Array | Finding:  # noqa: ARG001
    if values.size < 2:
        return Finding(ReactionCode.ONE_ELEMENT)
    flat: Array = np.array(np.ravel(values))
    flat[[0, -1]] = flat[[-1, 0]]
    return np.reshape(flat, values.shape)


_CHANGES: dict[PertMode, _Change] = {
    PertMode.ADD_NOISE: _with_noise,
    PertMode.BIT_NOISE: _with_other_bit,
    PertMode.CHANGE_VALUE: _with_swapped_ends,
}
