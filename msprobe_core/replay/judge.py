"""Judge the recorded outputs of a call against its float64 replay, within what round-off explains.

The allowed Euclidean norm of the error of one output is:

* ``rounding``: three times the larger of the error of a replay in the call's own precision and the error of rounding an
  exact result once; plus the error that float32 sums in another order may add. The latter is the probabilistic bound of
  Higham and Mary (*A New Approach to Probabilistic Rounding Error Analysis*, SIAM J. Sci. Comput. 41(5), 2019, Theorem
  2.4): a sum of n terms has a backward error of about ``sqrt(n) u`` rather than ``n u``. The replays with disturbed
  inputs measure how much a backward error changes the result. Terms with equal indices, which are added up one by one,
  may be off by more: see `msprobe_core.replay.accumulation`.
* ``condition``: the effect on the result of a backward error of one unit round-off in the inputs, measured as the
  largest change among the replays with disturbed inputs. Rounding the inputs would have caused an error up to this size
  as well. Source: Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., sec. 1.6; measured by random
  disturbance like Parker's Monte Carlo arithmetic (D. S. Parker, UCLA CSD-970002, 1997; Verificarlo: Denis et al.,
  ARITH 2016).

In addition to the norm, each element is judged separately, so that a few wrong elements among many are not missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from msprobe_core.findings import Finding
from msprobe_core.model import ReplayTensor
from msprobe_core.replay.accumulation import SHARE
from msprobe_core.replay.choices import name_the_same
from msprobe_core.replay.limits import Limits, cover
from msprobe_core.replay.norms import norm_of, slices_of
from msprobe_core.replay.replay_codes import ReplayCode
from msprobe_core.replay.replays import UNIT_ROUNDOFF, Replays
from msprobe_core.store.dtype_values import FORMS

FACTOR = 3.0
"""By how much an error may exceed that of the replay; the deviation of an average over elements is far smaller."""

ROUNDING = 0.4
"""Root mean square of the relative error of rounding to nearest, in units of u: 1/sqrt(3) of u at the lower end of a
binade, and a third less on average over a binade."""

ELEMENT_FACTOR = 4.0
"""Limit of an element's error in units of its allowance: the largest of 10^7 normal errors is 5.3 deviations."""

ILL_CONDITIONED = 8.0
"""The amplification of relative errors from which a call is called ill-conditioned."""

SUBNORMAL = {"float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133, "float64": 2.0**-1074}
_BEYOND = {dtype: FORMS[dtype].largest * (1 + UNIT_ROUNDOFF[dtype]) for dtype in ("float16", "bfloat16", "float32")}
"""Magnitude of an exact element from which the result is Inf; results of other dtypes are never expected to be."""

Array = NDArray[Any]


class Held(str, Enum):
    """How a recorded output compares with the float64 replay."""

    RIGHT = "right"
    CONDITION = "condition"
    WRONG = "wrong"


@dataclass(frozen=True, kw_only=True)
class OutputJudgement:
    """One output of one side, compared with the float64 replay of that side's own inputs.

    Attributes:
        path: Path of the output.
        dtype: The recorded dtype.
        held: The verdict.
        error: Euclidean norm of the error, relative to that of the oracle; for integers the share of differing
            elements.
        own_error: Error of the replay in the call's own precision, in the same unit; ``None`` without such a replay.
        rounding: Error that round-off explains, in the same unit.
        last_digit: Error that rounding the result itself explains; part of ``rounding``.
        condition: Error that rounding the inputs explains, in the same unit.
        element: Largest error of an element divided by its allowance; the limit is 4.
        worst: Place of that element, as an index into the flattened output; ``None`` if no element differs.
        amplification: Factor by which the call multiplies relative errors of its inputs; ``None`` without floating
            inputs.
        reason: Explanation of the verdict.
        scale: Euclidean norm of the oracle, the unit of the errors.
        size: Number of elements.
    """

    path: str
    dtype: str
    held: Held
    error: float
    own_error: float | None
    rounding: float
    last_digit: float
    condition: float
    element: float
    worst: int | None
    amplification: float | None
    reason: Finding
    scale: float
    size: int


def judge_outputs(outputs: Mapping[str, ReplayTensor], replays: Replays) -> list[OutputJudgement]:
    """Judge recorded outputs against replays of the call from the same inputs.

    Returns: one judgement per output, in their order.
    """
    return [judge_of(path, value, replays).judgement for path, value in outputs.items()]


class OutputJudge(Protocol):
    """Judges one recorded output, and says which other values it would have accepted in its place."""

    @property
    def judgement(self) -> OutputJudgement:
        """The verdict on the recorded values."""
        ...

    def accepts(self, values: Array) -> bool:
        """Whether other values, finite where the recorded ones are, would not have been judged wrong."""
        ...

    @property
    def limits(self) -> Limits:
        """What is allowed, in numbers by which the recorded values have the same verdict."""
        ...


def judge_of(path: str, recorded: ReplayTensor, replays: Replays) -> OutputJudge:
    """Return the judge of one recorded output.

    Args:
        path: Path of the output.
        recorded: Its recorded values.
        replays: Replays of the call from the same inputs.
    """
    oracle = replays.oracle[path].values
    if recorded.values.dtype.kind not in "fc" or oracle.dtype.kind not in "fc":
        return _ExactJudge(path, recorded, replays)
    return _NumberJudge(path, recorded, replays)


def _own_and_disturbed(path: str, replays: Replays) -> tuple[Array | None, list[Array]]:
    own = None if replays.own is None or path not in replays.own else replays.own[path].values
    return own, [each[path].values for each in replays.disturbed if path in each]


# --- numbers ----------------------------------------------------------------------------------------------------


class _NumberJudge:
    """Judges floating-point and complex numbers, slice by slice: nothing of the size of the output is made here."""

    def __init__(self, path: str, recorded: ReplayTensor, replays: Replays) -> None:
        own, disturbed = _own_and_disturbed(path, replays)
        oracle = np.ravel(replays.oracle[path].values)
        self._wide = "complex128" if oracle.dtype.kind == "c" else "float64"
        self._path, self._dtype, self._size = path, recorded.dtype, oracle.size
        self._values, self._oracle = np.ravel(recorded.values), oracle
        self._own = None if own is None else np.ravel(own)
        self._accumulated = replays.accumulated.get(path)
        self._disturbed = [np.ravel(each) for each in disturbed]
        self._slices = slices_of(oracle.size)
        self._bad = num_not_finite(self._values, oracle, self._own, recorded.dtype)
        self._num_strange_of_own = 0 if self._own is None else num_not_finite(self._own, oracle, None, recorded.dtype)
        self._picks = [self._finite_in(part) for part in self._slices]
        self._scale = self._norm(self._oracle_in)
        self._allowance = self._measured(replays)
        # Those of a small output are computed once; of a large one they would take as much memory as the oracle.
        self._only = self._allowed_in(0) if len(self._slices) == 1 else None
        self._amplification = None
        if replays.roundoff and self._scale:
            # The product of the divisors may underflow.
            self._amplification = self._allowance.condition / self._scale / replays.roundoff

    def _measured(self, replays: Replays) -> _Allowance:
        own = None if self._own is None else self._norm(partial(self._change_in, self._own))
        condition = max((self._norm(partial(self._disturbance_in, each)) for each in self._disturbed), default=0.0)
        num = sum(part.stop - part.start if pick is None else int(np.count_nonzero(pick))
                  for part, pick in zip(self._slices, self._picks, strict=True))  # fmt: skip
        found = _Allowance.of(own, own or 0.0, condition, self._scale, num, self._dtype, replays)
        if self._accumulated is None:
            return found
        # What is explained by the sums of some elements is not allowed of all others.
        beyond = 0.0 if self._own is None else self._norm(partial(self._beyond_sums_in, self._own, found.sum_roundoff))
        found = _Allowance.of(own, beyond, condition, self._scale, num, self._dtype, replays)
        return replace(found, rounding=found.rounding + found.sum_roundoff * self._norm(self._accumulated_in))

    @property
    def judgement(self) -> OutputJudgement:
        norm, element, worst = self._errors(self._values)
        allowance, unit = self._allowance, self._scale or 1.0
        held, reason = _held(norm, element, self._bad, allowance, self._amplification or 0.0)
        return OutputJudgement(
            path=self._path, dtype=self._dtype, held=held, error=norm / unit,
            own_error=None if allowance.own is None else allowance.own / unit, rounding=allowance.rounding / unit,
            last_digit=allowance.last_digit / unit, condition=allowance.condition / unit, element=element,
            worst=worst, amplification=self._amplification, reason=reason, scale=self._scale, size=self._size,
        )  # fmt: skip

    def accepts(self, values: Array) -> bool:
        norm, element, _ = self._errors(np.ravel(values))
        return _held(norm, element, self._bad, self._allowance, 0.0)[0] is not Held.WRONG

    @property
    def limits(self) -> Limits:
        found, dtype = self.judgement, self._dtype
        numbers = range(len(self._slices))
        magnitudes = np.concatenate([np.abs(self._oracle_in(number)) for number in numbers])
        allowed = ELEMENT_FACTOR * np.concatenate([self._allowed_in(number) for number in numbers])
        absolute, relative = cover(magnitudes, allowed, UNIT_ROUNDOFF.get(dtype, 2.0**-24))
        if found.element > ELEMENT_FACTOR:  # the line through the limits of all elements must not hide it
            elements = np.concatenate([self._ratios_in(self._values, number)[1] for number in numbers])
            written = absolute + relative * magnitudes
            least = float(np.max((allowed / written)[elements > ELEMENT_FACTOR]))
            absolute, relative = absolute * least, relative * least
        return Limits(
            rounding=found.rounding, condition=found.condition, absolute=absolute, relative=relative,
            largest=_BEYOND.get(dtype, math.inf), num_different=self._num_strange_of_own,
        )  # fmt: skip

    def _errors(self, values: Array) -> tuple[float, float, int | None]:
        """Return the norm of the error, the largest error of an element divided by its allowance, and its place."""
        norms: list[float] = []
        largest, worst = 0.0, None
        for number, (part, pick) in enumerate(zip(self._slices, self._picks, strict=True)):
            error, ratios = self._ratios_in(values, number)
            norms.append(norm_of(error))
            if ratios.size and (ratio := float(ratios[place := int(np.argmax(ratios))])) > largest:
                largest, worst = ratio, part.start + (place if pick is None else int(np.flatnonzero(pick)[place]))
        return math.hypot(*norms), largest, worst

    def _norm(self, values_in: Callable[[int], Array]) -> float:
        return math.hypot(*(norm_of(values_in(number)) for number in range(len(self._slices))))

    # --- one slice ------------------------------------------------------------------------------------------------

    def _finite_in(self, part: slice) -> NDArray[np.bool_] | None:
        """Return which elements are finite, and do not overflow if the inputs are disturbed; ``None`` for all."""
        finite = np.isfinite(self._values[part]) & np.isfinite(self._oracle[part])
        if self._own is not None:
            finite &= np.isfinite(self._own[part])
        for each in self._disturbed:
            finite &= ~np.isinf(each[part])
        return None if finite.all() else finite

    def _picked(self, values: Array, number: int) -> Array:
        """Return the elements of a slice that are judged; they are not written to."""
        pick = self._picks[number]
        return values[self._slices[number]] if pick is None else values[self._slices[number]][pick]

    def _oracle_in(self, number: int) -> Array:
        return self._picked(self._oracle, number).astype(self._wide, copy=False)

    def _change_in(self, values: Array, number: int) -> Array:
        return np.abs(self._picked(values, number).astype(self._wide, copy=False) - self._oracle_in(number))

    def _disturbance_in(self, values: Array, number: int) -> Array:
        """Return by how much disturbed inputs change elements.

        They may be outside the function's domain: the arc cosine of 1 + u is NaN, and so is a negative number to the
        power of 2 + u. Such a replay says nothing of the element, which is judged by what the others allow.
        """
        change = self._change_in(values, number)
        return np.where(np.isnan(change), 0.0, change)

    def _accumulated_in(self, number: int) -> Array:
        """Return what adding terms up one by one explains, in units of the round-off."""
        if self._accumulated is None:
            return np.zeros(1)
        return SHARE * self._picked(self._accumulated, number)

    def _beyond_sums_in(self, values: Array, roundoff: float, number: int) -> Array:
        """Return the errors of values, less what adding terms up explains."""
        return np.maximum(self._change_in(values, number) - roundoff * self._accumulated_in(number), 0.0)

    def _ratios_in(self, values: Array, number: int) -> tuple[Array, Array]:
        """Return the errors of elements, and each divided by its allowance."""
        error = self._change_in(values, number)
        return error, error / (self._allowed_in(number) if self._only is None else self._only)

    def _allowed_in(self, number: int) -> Array:
        allowance = self._allowance
        allowed = allowance.last_place * np.abs(self._oracle_in(number)) + allowance.spread
        allowed += allowance.sum_roundoff * self._accumulated_in(number)
        for each in self._disturbed:  # rounding is monotonic: this is the largest of what each of them would allow
            np.maximum(allowed, self._disturbance_in(each, number) + allowance.spread, out=allowed)
        return allowed if self._own is None else allowed + self._change_in(self._own, number)


@dataclass(frozen=True, kw_only=True)
class _Allowance:
    """Allowed absolute errors: of the norm, and what those of all elements have in common.

    Attributes:
        own: Error of the replay in the call's own precision; ``None`` without one.
        rounding: What round-off explains of the norm.
        last_digit: What rounding the result explains; part of ``rounding``.
        condition: What rounding the inputs explains.
        last_place: What is allowed of an element, per its magnitude.
        spread: What is allowed of each element besides.
        sum_roundoff: Unit round-off of sums.
    """

    own: float | None
    rounding: float
    last_digit: float
    condition: float
    last_place: float
    spread: float
    sum_roundoff: float

    @classmethod
    def of(
        cls, own: float | None, of_own: float, condition: float, scale: float, num: int, dtype: str, replays: Replays
    ) -> _Allowance:
        """Return what is allowed, of an error ``of_own`` of the replay in the call's own precision."""
        roundoff = max(UNIT_ROUNDOFF.get(dtype, 2.0**-24), replays.result_roundoff)
        tiny = SUBNORMAL.get(dtype, 2.0**-9)
        last_digit = rounding = FACTOR * max(of_own, ROUNDING * roundoff * scale)
        sum_roundoff = min(roundoff, UNIT_ROUNDOFF["float32"])
        if replays.roundoff:
            rounding += FACTOR * float(np.sqrt(replays.num_summed)) * sum_roundoff / replays.roundoff * condition
        rounding += tiny * float(np.sqrt(num))
        return cls(
            own=own, rounding=rounding, last_digit=last_digit, condition=condition,
            last_place=roundoff, spread=rounding / float(np.sqrt(max(num, 1))) + tiny, sum_roundoff=sum_roundoff,
        )  # fmt: skip


def _held(norm: float, element: float, bad: int, allowance: _Allowance, amplification: float) -> tuple[Held, Finding]:
    if bad:
        return Held.WRONG, Finding(ReplayCode.OUTPUT_NON_FINITE, fields={"count": bad})
    if norm <= allowance.rounding and element > ELEMENT_FACTOR:
        return Held.WRONG, Finding(ReplayCode.OUTPUT_ELEMENT, fields={"times": element / ELEMENT_FACTOR})
    if norm <= allowance.rounding:
        return Held.RIGHT, Finding(ReplayCode.OUTPUT_ROUNDED)
    limit = max(allowance.rounding, allowance.condition)
    if norm > limit:
        return Held.WRONG, Finding(ReplayCode.OUTPUT_OFF, fields={"times": norm / limit})
    if amplification >= ILL_CONDITIONED:
        return Held.CONDITION, Finding(ReplayCode.OUTPUT_AMPLIFIED, fields={"amplification": amplification})
    return Held.RIGHT, Finding(ReplayCode.OUTPUT_INPUTS_ROUNDED)


def num_not_finite(values: Array, oracle: Array, own: Array | None, dtype: str) -> int:
    """Return the number of unexpected NaN or Inf elements; an overflow that the dtype makes unavoidable is expected."""
    values, oracle = np.ravel(values), np.ravel(oracle)
    own = None if own is None else np.ravel(own)
    parts = slices_of(oracle.size)
    return sum(_num_strange(values[i], oracle[i], None if own is None else own[i], dtype) for i in parts)


def _num_strange(values: Array, oracle: Array, own: Array | None, dtype: str) -> int:
    expected: Any = np.array(oracle)
    largest = _BEYOND.get(dtype, math.inf)
    # An oracle in the call's own precision cannot be beyond it.
    if expected.dtype.kind == "f" and largest < float(np.finfo(expected.dtype).max):
        over = np.abs(expected) > largest
        expected[over] = np.sign(expected[over]) * np.inf
    different = _unlike(values, expected)
    if own is not None:  # a replay that overflows in an intermediate result shows that the overflow is expected
        different &= _unlike(values, own)
    return int(np.count_nonzero(different))


def _unlike(values: Array, expected: Array) -> Array:
    is_either = ~(np.isfinite(values) & np.isfinite(expected))
    with np.errstate(invalid="ignore"):
        same = (values == expected) | (np.isnan(values) & np.isnan(expected))
    return is_either & ~same


# --- integers and booleans --------------------------------------------------------------------------------------


class _ExactJudge:
    def __init__(self, path: str, recorded: ReplayTensor, replays: Replays) -> None:
        self._path, self._recorded = path, recorded
        self._oracle = replays.oracle[path].values
        self._own, disturbed = _own_and_disturbed(path, replays)
        self._num_flips = max((int(np.count_nonzero(each != self._oracle)) for each in disturbed), default=0)
        self._chosen_from = replays.chosen_from.get(path)

    @property
    def judgement(self) -> OutputJudgement:
        differs = self._differs(self._recorded.values)
        num, size = int(np.count_nonzero(differs)), max(differs.size, 1)
        if not num:
            held, reason = Held.RIGHT, Finding(ReplayCode.OUTPUT_SAME)
        elif self._names_the_same(self._recorded.values):
            held, reason = Held.RIGHT, Finding(ReplayCode.OUTPUT_EQUAL_ELEMENTS, fields={"count": num})
        elif num <= _FLIPS * self._num_flips:
            held, reason = Held.CONDITION, Finding(ReplayCode.OUTPUT_TIES, fields={"count": num})
        else:
            counts = {"count": num, "total": differs.size, "by_rounding": self._num_flips}
            held, reason = Held.WRONG, Finding(ReplayCode.OUTPUT_OTHER_ELEMENTS, fields=counts)
        of_own = None if self._own is None else float(np.count_nonzero(self._own != self._oracle)) / size
        return OutputJudgement(
            path=self._path, dtype=self._recorded.dtype, held=held, error=num / size, own_error=of_own, rounding=0.0,
            last_digit=0.0, condition=self._num_flips / size, element=0.0,
            worst=int(np.argmax(differs)) if num else None, amplification=None, reason=reason,
            scale=1.0, size=size,
        )  # fmt: skip

    def accepts(self, values: Array) -> bool:
        num = int(np.count_nonzero(self._differs(values)))
        return num <= _FLIPS * self._num_flips or self._names_the_same(values)

    def _names_the_same(self, values: Array) -> bool:
        return self._chosen_from is not None and name_the_same(values, self._oracle, self._chosen_from)

    @property
    def limits(self) -> Limits:
        of_own = 0 if self._own is None else int(np.count_nonzero(self._own != self._oracle))
        return Limits(is_exact=True, num_different=of_own + _FLIPS * self._num_flips)

    def _differs(self, values: Array) -> Array:
        differs = values != self._oracle
        return differs if self._own is None else differs & (values != self._own)


_FLIPS = 4
"""Limit of changed decisions, as a multiple of those that disturbed inputs change: ties vary from replay to replay."""


# --- between the sides ------------------------------------------------------------------------------------------


def relative_difference(target: ReplayTensor, golden: ReplayTensor) -> float | None:
    """Return the norm of the difference relative to that of ``golden``; ``None`` if the shapes differ.

    Elements that are NaN or Inf on both sides alike are ignored; NaN or Inf on one side only makes the result infinite.
    """
    if target.values.shape != golden.values.shape:
        return None
    wide = "complex128" if "c" in (target.values.dtype.kind, golden.values.dtype.kind) else "float64"
    values, others = target.values.astype(wide), golden.values.astype(wide)
    if np.any(_unlike(values, others)):
        return float("inf")
    finite = np.isfinite(values)
    scale = norm_of(others[finite])
    difference = norm_of(values[finite] - others[finite])
    return difference / scale if scale else float("inf") if difference else 0.0
