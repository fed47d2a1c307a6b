"""Check the recorded results of random functions, which no replay draws again.

Of dropout and its relatives, every element is either dropped or the input divided by 1 - p, which is checked element by
element; gradients in the same way. Which elements are dropped is tested: how many (binomial), where (Kolmogorov and
Smirnov), and if neighbours in any dimension are dropped together more or less often than by chance. Numbers drawn from
a distribution are tested against it, and against their neighbours.

All tests (`msprobe_core.api_check.draw_tests`) reject at a p-value of `LEVEL`. A healthy output is called wrong with
a probability below `LEVEL` times the number of its tests, which is at most `MOST_TESTS`: 6e-7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from msprobe_core.api_check import draw_tests
from msprobe_core.api_check.call_check import RECORDED, api_of, unchecked
from msprobe_core.api_check.draw_tests import (
    LEVEL,
    TOLERANCE,
    binomial_bound,
    distance_bound,
    distance_of,
    pairs,
    places_bound,
)
from msprobe_core.api_check.random_codes import RandomCode
from msprobe_core.api_check.verdict import CallVerdict, OutputVerdict, Verdict
from msprobe_core.findings import Finding
from msprobe_core.model import Argument, Phase, ReplayTensor, SiteKind
from msprobe_core.replay.recorded import RecordedCall
from msprobe_core.replay.replays import UNIT_ROUNDOFF

Array = NDArray[Any]

MOST_TESTS = 6
"""Of one output: how many, where, and the neighbours in up to four dimensions."""

LEAST_ELEMENTS = 10_000
"""Fewer elements are not called right, as tests of them would miss a share that is off by a tenth."""

TINY = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float64": 2.0**-1022, "float16": 2.0**-14}
"""Smallest normal numbers: below, a kept element may be rounded to 0."""

_ALPHA = 1.7580993408473766
"""Negative limit of SELU, scale times alpha. Source: Klambauer et al., *Self-Normalizing Neural Networks*, 2017."""


def check_random(call: RecordedCall) -> CallVerdict | None:
    """Check the recorded results of a random function.

    Returns: the verdict; ``None`` if it is not known how the function's results are distributed.
    """
    if call.site.kind is not SiteKind.API or call.missing is not None or not call.outputs:
        return None
    if (dropout := dropped_of(call)) is not None:
        output = _check_dropout(dropout)
    elif (draw := drawn_of(call)) is not None:
        output = _check_draw(draw)
    else:
        return None
    if output.verdict is Verdict.CANNOT_TELL:
        return unchecked(call, output.reason)
    return CallVerdict(
        entry=call.entry, api=api_of(call), phase=call.site.phase,
        verdict=output.verdict, outputs=(output,), stage=1,
    )  # fmt: skip


class _Test(NamedTuple):
    """One test: what it says if it fails, its p-value, and the field that holds this."""

    finding: Finding
    p_value: float


def _judged(path: str, result: ReplayTensor, size: int, tests: list[_Test]) -> OutputVerdict:
    least = min(tests, key=lambda test: test.p_value)
    if least.p_value < LEVEL:
        return _verdict(path, result, Verdict.WRONG, least.finding, least.p_value)
    if size < LEAST_ELEMENTS:
        fields = {"number": size, "least": LEAST_ELEMENTS}
        return _verdict(path, result, Verdict.CANNOT_TELL, Finding(RandomCode.SHORT, fields=fields), least.p_value)
    fields = {"tests": len(tests), "p": least.p_value, "level": LEVEL}
    return _verdict(path, result, Verdict.RIGHT, Finding(RandomCode.AS_DRAWN, fields=fields), least.p_value)


def _verdict(
    path: str, result: ReplayTensor, verdict: Verdict, reason: Finding, p_value: float, place: int | None = None,
    error: float = 0.0,
) -> OutputVerdict:  # fmt: skip
    shape = tuple(map(int, result.values.shape))
    index = None if place is None else tuple(map(int, np.unravel_index(place, shape)))
    times = math.log(max(p_value, 1e-300)) / math.log(LEVEL)
    return OutputVerdict(
        path=path, side=RECORDED, dtype=result.dtype, shape=shape, verdict=verdict, reason=reason, error=error,
        rounding=0.0, condition=0.0, own_error=None, times=times, amplification=None, worst_index=index, bias=None,
    )  # fmt: skip


# --- dropout ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Dropout:
    """How a kind of dropout works.

    Attributes:
        is_training: Default of ``training``.
        unit_dims: Number of trailing dimensions that are dropped together; ``None`` for all but the first two.
        has_alpha: Whether dropped elements become the negative limit of SELU, and all are scaled to keep mean and
            variance.
    """

    is_training: bool = True
    unit_dims: int | None = 0
    has_alpha: bool = False


_DROPOUTS: Mapping[str, _Dropout] = {
    "dropout": _Dropout(), "dropout_ext": _Dropout(), "native_dropout": _Dropout(), "dropout1d": _Dropout(unit_dims=1),
    "dropout2d": _Dropout(unit_dims=2), "dropout3d": _Dropout(unit_dims=3), "feature_dropout": _Dropout(unit_dims=None),
    "alpha_dropout": _Dropout(is_training=False, has_alpha=True),
    "feature_alpha_dropout": _Dropout(is_training=False, unit_dims=None, has_alpha=True),
}  # fmt: skip
"""Parameters are input, p and training, in this order, in all frameworks. Source: torch.nn.functional 2.x;
mindspore.ops and mindspore.mint.nn.functional 2.x."""


_OF_MASK = (RandomCode.AS_DRAWN, RandomCode.SHORT, RandomCode.SHARE, RandomCode.PLACES, RandomCode.PAIRS)


class Affine(NamedTuple):
    """What dropout does with an element: kept ones are scaled and shifted, dropped ones are a constant."""

    scale: float
    shift: float
    dropped: float


def _affine(kind: _Dropout, chance: float, *, is_backward: bool) -> Affine:
    if chance == 1.0:
        return Affine(0.0, 0.0, 0.0)
    if not kind.has_alpha:
        return Affine(1.0 / (1.0 - chance), 0.0, 0.0)
    scale = 1.0 / math.sqrt((_ALPHA * _ALPHA * chance + 1.0) * (1.0 - chance))
    if is_backward:
        return Affine(scale, 0.0, 0.0)
    return Affine(scale, scale * _ALPHA * chance, -scale * _ALPHA * (1.0 - chance))


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """A dropout, and what its elements are to be.

    Attributes:
        path: Name of the result.
        given: What it was computed from: the input, or the incoming gradient.
        result: The result.
        chance: That an element is dropped.
        is_training: Whether elements are dropped at all.
        form: What becomes of elements.
        unit_dims: Number of trailing dimensions that are dropped together.
        may_be_masked: Whether ``given`` may be 0 where elements were dropped, so that those left are no random choice:
            what comes after may give no gradient to them.
    """

    path: str
    given: ReplayTensor
    result: ReplayTensor
    chance: float
    is_training: bool
    form: Affine
    unit_dims: int
    may_be_masked: bool

    @property
    def is_random(self) -> bool:
        """Whether chance decides about any element."""
        return self.is_training and 0.0 < self.chance < 1.0


def dropped_of(call: RecordedCall) -> Dropped | None:
    """Return a dropout that can be checked."""
    kind = _DROPOUTS.get(call.site.path)
    if kind is None:
        return None
    chance = _number(call, 1, "p", 0.5)
    is_training = _flag(call, 2, ("training", "train"), is_set=kind.is_training)
    is_backward = call.site.phase is Phase.BACKWARD
    given = call.gradients.get("0") if is_backward else _first_tensor(call)
    result = call.outputs.get("0") or call.outputs.get("input")
    if chance is None or not 0.0 <= chance <= 1.0 or given is None or result is None:
        return None
    if given.values.shape != result.values.shape or {given.values.dtype.kind, result.values.dtype.kind} != {"f"}:
        return None
    return Dropped(
        path="0" if "0" in call.outputs else "input", given=given, result=result, chance=chance,
        is_training=is_training, form=_affine(kind, chance, is_backward=is_backward),
        unit_dims=_unit_dims(kind, given.values.ndim),
        may_be_masked=is_backward and bool(np.any(given.values == 0.0)),
    )  # fmt: skip


def _check_dropout(dropout: Dropped) -> OutputVerdict:
    path, result, chance = dropout.path, dropout.result, dropout.chance
    before, after = _wide(dropout.given), _wide(result)
    if not dropout.is_random:
        expected = before if not dropout.is_training or chance == 0.0 else before * 0.0
        return _unchanged(path, result, after, expected)
    found = _dropped(path, result, before, after, chance, dropout.form, dropout.unit_dims)
    if dropout.may_be_masked and found.reason.code in _OF_MASK:
        return _verdict(path, result, Verdict.RIGHT, Finding(RandomCode.SCALED), 1.0)
    return found


def _unit_dims(kind: _Dropout, num_dims: int) -> int:
    return max(num_dims - 2, 0) if kind.unit_dims is None else min(kind.unit_dims, num_dims)


def _unchanged(path: str, result: ReplayTensor, after: Array, expected: Array) -> OutputVerdict:
    differs = ~((after == expected) | (np.isnan(after) & np.isnan(expected)))
    if not np.any(differs):
        return _verdict(path, result, Verdict.RIGHT, Finding(RandomCode.UNCHANGED), 1.0)
    count = int(np.count_nonzero(differs))
    reason = Finding(RandomCode.CHANGED, fields={"count": count, "total": after.size})
    return _verdict(path, result, Verdict.WRONG, reason, 0.0, int(np.argmax(differs)), count / after.size)


def _dropped(
    path: str, result: ReplayTensor, before: Array, after: Array, chance: float, form: Affine, unit_dims: int
) -> OutputVerdict:
    roundoff, tiny = UNIT_ROUNDOFF.get(result.dtype, 2.0**-24), TINY.get(result.dtype, 2.0**-126)
    with np.errstate(all="ignore"):
        kept_as = before * form.scale + form.shift
        size = np.abs(before * form.scale) + abs(form.shift) + abs(form.dropped)
        allowed = TOLERANCE * roundoff * size + tiny
        is_dropped = np.abs(after - form.dropped) <= (allowed if form.dropped else 0.0)
        is_kept = np.abs(after - kept_as) <= allowed
    # An element that would be nearly the same either way shows nothing, and neither does one that overflows.
    counts = np.isfinite(before) & (np.abs(kept_as - form.dropped) > 2.0 * allowed) & (np.isfinite(after))
    neither = counts & ~is_dropped & ~is_kept
    if np.any(neither):
        count = int(np.count_nonzero(neither))
        reason = Finding(RandomCode.KEPT, fields={"count": count, "total": after.size})
        return _verdict(path, result, Verdict.WRONG, reason, 0.0, int(np.argmax(neither)), count / after.size)
    if unit_dims:
        lead = before.shape[: before.ndim - unit_dims]
        units, valid = np.reshape(is_dropped & counts, (*lead, -1)), np.reshape(counts, (*lead, -1))
        in_part = units.any(-1) & (units != valid).any(-1)
        if np.any(in_part):
            fields = {"count": int(np.count_nonzero(in_part)), "total": in_part.size}
            return _verdict(path, result, Verdict.WRONG, Finding(RandomCode.IN_PART, fields=fields), 0.0)
        is_dropped, counts = np.asarray(units.any(-1)), np.asarray(valid.any(-1))
    return _judged(path, result, int(np.count_nonzero(counts)), list(_tests_of_mask(is_dropped, counts, chance)))


def _tests_of_mask(is_dropped: Array, counts: Array, chance: float) -> Iterator[_Test]:
    marks = is_dropped[counts]
    share = float(np.mean(marks)) if marks.size else 0.0
    p_value = binomial_bound(int(np.count_nonzero(marks)), marks.size, chance)
    fields = {"share": 100 * share, "expected": 100 * chance, "p": p_value}
    yield _Test(Finding(RandomCode.SHARE, fields=fields), p_value)
    p_value = places_bound(marks)
    yield _Test(Finding(RandomCode.PLACES, fields={"p": p_value}), p_value)
    for lag, pair_value in pairs(is_dropped & counts, counts, chance, chance):
        yield _Test(Finding(RandomCode.PAIRS, fields={"lag": lag, "p": pair_value}), pair_value)


# --- draws ------------------------------------------------------------------------------------------------------

_DISTRIBUTIONS: Mapping[str, Callable[[Any, float, float], Any]] = {
    "uniform": draw_tests.uniform, "normal": draw_tests.normal, "exponential": draw_tests.exponential,
}  # fmt: skip


@dataclass(frozen=True)
class _Draw:
    """A function that draws from a distribution.

    Attributes:
        name: Of the distribution.
        parameters: Names of its two parameters, which follow the tensor that is filled.
        defaults: Their values where they are not given.
        is_filling: Whether the function fills its first argument; otherwise it takes sizes only.
    """

    name: str
    parameters: tuple[str, str]
    defaults: tuple[float, float]
    is_filling: bool = True


_DRAWS: Mapping[str, _Draw] = {
    "rand": _Draw("uniform", ("", ""), (0.0, 1.0), is_filling=False),
    "rand_like": _Draw("uniform", ("", ""), (0.0, 1.0), is_filling=False),
    "randn": _Draw("normal", ("", ""), (0.0, 1.0), is_filling=False),
    "randn_like": _Draw("normal", ("", ""), (0.0, 1.0), is_filling=False),
    "uniform_": _Draw("uniform", ("from", "to"), (0.0, 1.0)),
    "normal_": _Draw("normal", ("mean", "std"), (0.0, 1.0)),
    "exponential_": _Draw("exponential", ("lambd", ""), (1.0, 0.0)),
    "bernoulli_": _Draw("bernoulli", ("p", ""), (0.5, 0.0)),
}


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A draw, and what its values are to be.

    Attributes:
        result: The values.
        name: Of the distribution.
        first, second: Its parameters.
        low, high: Bounds of the values.
        roundoff, span: How values are rounded: relative to themselves, but at least to this magnitude.
        median: Of the distribution.
        chances: That a value is below it: the least and the largest, as values are rounded.
    """

    result: ReplayTensor
    name: str
    first: float
    second: float
    low: float = 0.0
    high: float = 1.0
    roundoff: float = 0.0
    span: float = 1.0
    median: float = 0.5
    chances: tuple[float, float] = (0.5, 0.5)

    def distribution(self, values: Any) -> Any:
        """Return the cumulative distribution function."""
        return _DISTRIBUTIONS[self.name](values, self.first, self.second)


def drawn_of(call: RecordedCall) -> Drawn | None:
    """Return a draw whose distribution is known."""
    draw = _DRAWS.get(call.site.path)
    result = call.outputs.get("0")
    if draw is None or call.site.phase is not Phase.FORWARD:
        return None
    values: list[float] = []
    for place, (name, default) in enumerate(zip(draw.parameters, draw.defaults, strict=True), 1):
        value = _number(call, place, name, default) if draw.is_filling and name else default
        if value is None:
            return None
        values.append(value)
    first, second = values
    if result is None or result.values.dtype.kind not in "fiub" or not result.values.size:
        return None
    if draw.name == "bernoulli":
        is_proper = 0.0 <= first <= 1.0
        return Drawn(result=result, name=draw.name, first=first, second=second) if is_proper else None
    is_proper = {"uniform": first < second, "normal": second > 0.0, "exponential": first > 0.0}[draw.name]
    if result.values.dtype.kind != "f" or not is_proper:
        return None
    low, high = _bounds(draw.name, first, second)
    # Values are rounded, so each represents all within a rounding of it.
    roundoff = 2.0 * UNIT_ROUNDOFF.get(result.dtype, 2.0**-24)
    span = high - low if math.isfinite(high - low) else abs(second) or 1.0 / first
    median = _median(draw.name, first, second)
    width = roundoff * max(abs(median), span)
    distribution = _DISTRIBUTIONS[draw.name]
    least, most = (float(distribution(np.array(median + sign * width), first, second)) for sign in (-1.0, 1.0))
    return Drawn(
        result=result, name=draw.name, first=first, second=second, low=low, high=high, roundoff=roundoff, span=span,
        median=median, chances=(least, most),
    )  # fmt: skip


def _check_draw(draw: Drawn) -> OutputVerdict:
    result, drawn = draw.result, _wide(draw.result)
    if draw.name == "bernoulli":
        return _judged_bernoulli(result, drawn, draw.first)
    outside = ~((drawn >= draw.low) & (drawn <= draw.high))
    if np.any(outside):
        reason = Finding(RandomCode.OUTSIDE, fields={"count": int(np.count_nonzero(outside)), "total": drawn.size})
        return _verdict("0", result, Verdict.WRONG, reason, 0.0, int(np.argmax(outside)))
    distance = distance_of(np.sort(drawn, axis=None), draw.roundoff, draw.span, draw.distribution)
    p_value = distance_bound(distance, drawn.size)
    fields = {"name": draw.name, "distance": distance, "p": p_value}
    tests = [_Test(Finding(RandomCode.DISTRIBUTION, fields=fields), p_value)]
    for lag, pair_value in pairs(drawn < draw.median, np.ones(drawn.shape, np.bool_), *draw.chances):
        tests.append(_Test(Finding(RandomCode.PAIRS, fields={"lag": lag, "p": pair_value}), pair_value))
    return _judged("0", result, drawn.size, tests)


def _judged_bernoulli(result: ReplayTensor, drawn: Array, chance: float) -> OutputVerdict:
    outside = (drawn != 0) & (drawn != 1)
    if np.any(outside):
        reason = Finding(RandomCode.OUTSIDE, fields={"count": int(np.count_nonzero(outside)), "total": drawn.size})
        return _verdict("0", result, Verdict.WRONG, reason, 0.0, int(np.argmax(outside)))
    tests = list(_tests_of_mask(drawn == 1, np.ones(drawn.shape, np.bool_), chance))
    return _judged("0", result, drawn.size, tests)


def _bounds(name: str, first: float, second: float) -> tuple[float, float]:
    """Return the bounds of the values."""
    return {"uniform": (first, second), "normal": (-math.inf, math.inf), "exponential": (0.0, math.inf)}[name]


def _median(name: str, first: float, second: float) -> float:
    if name == "exponential":
        return math.log(2.0) / first
    return (first + second) / 2 if name == "uniform" else first


# --- arguments --------------------------------------------------------------------------------------------------


def _argument(call: RecordedCall, place: int, names: tuple[str, ...]) -> Any:
    for name in names:
        if name in call.kwargs:
            return call.kwargs[name]
    return call.args[place] if place < len(call.args) else None


def _number(call: RecordedCall, place: int, name: str, default: float) -> float | None:
    """Return a number among the arguments; ``None`` if something else is in its place."""
    value = _argument(call, place, (name,))
    if value is None:
        return default
    if not isinstance(value, Argument) or value.type not in ("int", "float"):
        return None
    try:
        number = float(value.value)  # a dump has its text
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _flag(call: RecordedCall, place: int, names: tuple[str, ...], *, is_set: bool) -> bool:
    value = _argument(call, place, names)
    return value.value in (True, "True") if isinstance(value, Argument) and value.type == "bool" else is_set


def _wide(value: ReplayTensor) -> Array:
    return np.asarray(value.values, np.float64)


def _first_tensor(call: RecordedCall) -> ReplayTensor | None:
    value = _argument(call, 0, ("input",))
    return value if isinstance(value, ReplayTensor) else None
