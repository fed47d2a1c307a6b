"""Judge the recorded outputs of a call against its float64 replay, within what round-off explains.

The allowed Euclidean norm of the error of one output is:

* ``rounding``: three times the larger of the error of a replay in the call's own precision and the error of rounding an
  exact result once; plus the error that float32 sums in another order may add. The latter is the probabilistic bound of
  Higham and Mary (*A New Approach to Probabilistic Rounding Error Analysis*, SIAM J. Sci. Comput. 41(5), 2019, Theorem
  2.4): a sum of n terms has a backward error of about ``sqrt(n) u`` rather than ``n u``. The replays with disturbed
  inputs measure how much a backward error changes the result.
* ``condition``: the effect on the result of a backward error of one unit round-off in the inputs, measured as the
  largest change among the replays with disturbed inputs. Rounding the inputs would have caused an error up to this size
  as well. Source: Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., sec. 1.6; measured by random
  disturbance like Parker's Monte Carlo arithmetic (D. S. Parker, UCLA CSD-970002, 1997; Verificarlo: Denis et al.,
  ARITH 2016).

In addition to the norm, each element is judged separately, so that a few wrong elements among many are not missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from msprobe_core.findings import Finding
from msprobe_core.model import ReplayTensor
from msprobe_core.replay.limits import Limits, cover
from msprobe_core.replay.replay_codes import ReplayCode
from msprobe_core.replay.replays import UNIT_ROUNDOFF, Replays

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
_MAXIMUM = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}

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
    def __init__(self, path: str, recorded: ReplayTensor, replays: Replays) -> None:
        oracle = replays.oracle[path].values
        own, disturbed = _own_and_disturbed(path, replays)
        self._wide = "complex128" if oracle.dtype.kind == "c" else "float64"
        self._path, self._recorded, self._roundoff = path, recorded, replays.roundoff
        values, oracle = recorded.values, oracle.astype(self._wide, copy=False)
        self._bad = num_not_finite(values, oracle, own, recorded.dtype)
        self._num_strange_of_own = 0 if own is None else num_not_finite(own, oracle, None, recorded.dtype)
        finite = np.isfinite(values) & np.isfinite(oracle)
        for each in (*disturbed, *(() if own is None else (own,))):
            finite &= np.isfinite(each)
        self._finite, self._are_all_finite = finite, bool(finite.all())
        self._oracle = self._picked(oracle)
        self._scale = norm_of(self._oracle)
        self._allowance = _Allowance.of(
            self._oracle, None if own is None else self._picked(own).astype(self._wide, copy=False),
            (self._picked(each) for each in disturbed), recorded.dtype, replays,
        )  # fmt: skip
        self._amplification = None
        if replays.roundoff and self._scale:
            self._amplification = self._allowance.condition / (replays.roundoff * self._scale)

    @property
    def judgement(self) -> OutputJudgement:
        norm, elements = self._errors(self._recorded.values)
        allowance, unit = self._allowance, self._scale or 1.0
        element = float(np.max(elements, initial=0.0))
        held, reason = _held(norm, element, self._bad, allowance, self._amplification or 0.0)
        return OutputJudgement(
            path=self._path, dtype=self._recorded.dtype, held=held, error=norm / unit,
            own_error=None if allowance.own is None else allowance.own / unit, rounding=allowance.rounding / unit,
            last_digit=allowance.last_digit / unit, condition=allowance.condition / unit, element=element,
            worst=int(np.flatnonzero(self._finite)[np.argmax(elements)]) if element else None,
            amplification=self._amplification, reason=reason, scale=self._scale, size=self._finite.size,
        )  # fmt: skip

    def accepts(self, values: Array) -> bool:
        norm, elements = self._errors(values)
        element = float(np.max(elements, initial=0.0))
        return _held(norm, element, self._bad, self._allowance, 0.0)[0] is not Held.WRONG

    @property
    def limits(self) -> Limits:
        found, allowance, dtype = self.judgement, self._allowance, self._recorded.dtype
        magnitudes, allowed = np.abs(self._oracle), ELEMENT_FACTOR * allowance.elements
        absolute, relative = cover(magnitudes, allowed, UNIT_ROUNDOFF.get(dtype, 2.0**-24))
        if found.element > ELEMENT_FACTOR:  # the line through the limits of all elements must not hide it
            _, elements = self._errors(self._recorded.values)
            written = absolute + relative * magnitudes
            least = float(np.max((allowed / written)[elements > ELEMENT_FACTOR]))
            absolute, relative = absolute * least, relative * least
        return Limits(
            rounding=found.rounding, condition=found.condition, absolute=absolute, relative=relative,
            largest=_MAXIMUM[dtype] * (1 + UNIT_ROUNDOFF[dtype]) if dtype in _MAXIMUM else float("inf"),
            num_different=self._num_strange_of_own,
        )  # fmt: skip

    def _errors(self, values: Array) -> tuple[float, Array]:
        """Return the norm of the error, and the error of each finite element divided by its allowance."""
        error = np.abs(self._picked(values).astype(self._wide, copy=False) - self._oracle)
        return norm_of(error), error / self._allowance.elements

    def _picked(self, values: Array) -> Array:
        """Return the elements that are finite everywhere, not copied if possible; they are not written to."""
        return np.ravel(values) if self._are_all_finite else values[self._finite]


@dataclass(frozen=True, kw_only=True)
class _Allowance:
    """Allowed absolute errors: of the norm, and of each element."""

    own: float | None
    rounding: float
    last_digit: float
    condition: float
    elements: Array

    @classmethod
    def of(
        cls, oracle: Array, own: Array | None, disturbed: Iterable[Array], dtype: str, replays: Replays
    ) -> _Allowance:
        roundoff = max(UNIT_ROUNDOFF.get(dtype, 2.0**-24), replays.result_roundoff)
        tiny = SUBNORMAL.get(dtype, 2.0**-9)
        condition, largest = 0.0, None
        for each in disturbed:  # one at a time: a large call has outputs of gigabytes
            change = np.abs(each - oracle)
            condition = max(condition, norm_of(change))
            largest = change if largest is None else np.maximum(largest, change, out=largest)
        of_own = None if own is None else np.abs(own - oracle)
        last_digit = rounding = FACTOR * max(
            0.0 if of_own is None else norm_of(of_own), ROUNDING * roundoff * norm_of(oracle)
        )
        if replays.roundoff:
            of_sums = min(roundoff, UNIT_ROUNDOFF["float32"]) / replays.roundoff * condition
            rounding += FACTOR * np.sqrt(replays.num_summed) * of_sums
        rounding += tiny * np.sqrt(oracle.size)
        spread = rounding / np.sqrt(max(oracle.size, 1))
        elements = roundoff * np.abs(oracle) + spread + tiny
        if largest is not None:  # rounding is monotonic: this is the largest of what each of them would allow
            largest += spread + tiny
            np.maximum(elements, largest, out=elements)
        if of_own is not None:
            elements += of_own
        return cls(
            own=None if of_own is None else norm_of(of_own), rounding=float(rounding), last_digit=last_digit,
            condition=condition, elements=elements,
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
    expected: Any = np.array(oracle)
    largest = _MAXIMUM.get(dtype)
    if largest is not None and expected.dtype.kind == "f":
        over = np.abs(expected) > largest * (1 + UNIT_ROUNDOFF[dtype])
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


def norm_of(values: Array) -> float:
    """Return the Euclidean norm of finite values, which neither overflows nor loses small ones."""
    largest = float(np.max(np.abs(values), initial=0.0))
    if largest == 0.0 or not np.isfinite(largest):
        return largest
    return largest * float(np.linalg.norm(np.ravel(values) / largest))


# --- integers and booleans --------------------------------------------------------------------------------------


class _ExactJudge:
    def __init__(self, path: str, recorded: ReplayTensor, replays: Replays) -> None:
        self._path, self._recorded = path, recorded
        self._oracle = replays.oracle[path].values
        self._own, disturbed = _own_and_disturbed(path, replays)
        self._num_flips = max((int(np.count_nonzero(each != self._oracle)) for each in disturbed), default=0)

    @property
    def judgement(self) -> OutputJudgement:
        differs = self._differs(self._recorded.values)
        num, size = int(np.count_nonzero(differs)), max(differs.size, 1)
        if not num:
            held, reason = Held.RIGHT, Finding(ReplayCode.OUTPUT_SAME)
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
        return int(np.count_nonzero(self._differs(values))) <= _FLIPS * self._num_flips

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
