"""Three ways to run a module, and what they say of each other: eager, compiled, and float64, which decides.

Errors are distances to the float64 results, in units of the allowance: what rounding explains, measured by two float64
runs whose operators are each disturbed by what rounding may change (see `msprobe_core.model.CompiledResults`), and by
the error of the eager run. Whether a distance is allowed is judged by `msprobe_core.replay.judge`, as for recorded
calls.

An error of the same sign everywhere, such as a factor of 1.001 on results of bfloat16, is smaller than what rounding
explains of each element, but rounding does not add up. So the part of the error along the results themselves is judged
too: in units of its deviation among the disturbed runs, as the *bias*.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe_core.compile_check.compile_codes import CompileCode
from msprobe_core.findings import Finding, Level
from msprobe_core.model import CompiledResults, ReplayTensor
from msprobe_core.replay.judge import ELEMENT_FACTOR, ROUNDING, Held, OutputJudgement, judge_of, norm_of
from msprobe_core.replay.replays import Replays

Array = NDArray[Any]

BIASED = 8.0
"""Bias that rounding does not explain, in deviations; the disturbed runs measure the deviation only roughly."""

EAGER_WRONG = 8.0
"""Error of the eager run, in allowances, beyond which it is wrong; below, the compiled one is better: sums over a batch
in bfloat16 that the compiler computes in float32 are beyond rounding, and no fault."""

_BETTER = 0.6
"""A compiled result is better if its error is at most this part of the eager one."""

_ROUNDED = 0.6
"""Error of the eager run, in round-offs, up to which it is as good as a result that is rounded once."""

_LEAST_ELEMENTS = 64
"""Among fewer elements the signs of rounding may well agree."""

_FINE = 2.0**-20
"""Formats with a smaller round-off have no bias judged: their functions may be off by a last digit everywhere."""


class CompileVerdict(str, Enum):
    """What the three runs of a module say; the worst first."""

    WORSE = "worse"
    """The compiled module is off, and the eager one is not."""
    EAGER_WRONG = "eager_wrong"
    """The eager module is off, and the compiled one is not."""
    ILL_CONDITIONED = "ill_conditioned"
    """The error is large, but so is what rounding explains: the module amplifies it."""
    EQUAL = "equal"
    """Both are within rounding, or off in the same way."""
    COMPILED_BETTER = "compiled_better"
    """The compiled module is closer to float64, as where the compiler leaves out casts."""
    CANNOT_TELL = "cannot_tell"
    """The module could not be judged."""

    @property
    def is_bad(self) -> bool:
        """Whether one of the two runs is wrong."""
        return self in (CompileVerdict.WORSE, CompileVerdict.EAGER_WRONG)


@dataclass(frozen=True, kw_only=True)
class ResultVerdict:
    """One output or gradient of a module.

    Attributes:
        name: Such as ``output.0``, ``input.0.grad`` or ``weight.grad``.
        verdict: What the three runs say.
        dtype: Format of the eager result.
        shape: Its shape.
        eager: Error of the eager run in units of the allowance.
        compiled: Error of the compiled run in the same unit.
        bias: Difference of the two biases, in deviations; 0 if there are too few elements.
        max_abs_diff: Largest difference of eager and compiled.
        mean_abs_diff: Mean difference.
        max_rel_diff: Largest relative difference; of elements that are not 0 in the eager run.
        reason: Why it is not equal; ``None`` if it is.
    """

    name: str
    verdict: CompileVerdict
    dtype: str
    shape: tuple[int, ...]
    eager: float
    compiled: float
    bias: float
    max_abs_diff: float
    mean_abs_diff: float
    max_rel_diff: float
    reason: Finding | None = None


def judge_module(results: CompiledResults) -> list[ResultVerdict]:
    """Judge all results of a module, in their order."""
    return [_judged(name, results) for name in results.eager]


def _judged(name: str, results: CompiledResults) -> ResultVerdict:
    eager, compiled, oracle = results.eager[name], results.compiled.get(name), results.oracle.get(name)
    if compiled is None:
        return _unlike(name, eager, Finding(CompileCode.MISSING, Level.ERROR, {"name": name}))
    if compiled.values.shape != eager.values.shape:
        fields = {"name": name, "eager": eager.values.shape, "compiled": compiled.values.shape}
        return _unlike(name, eager, Finding(CompileCode.SHAPE, Level.ERROR, fields))
    if oracle is None or oracle.values.shape != eager.values.shape:
        return _unlike(name, eager, None)
    of_eager = _judgement(name, eager, results, None)
    of_compiled = _judgement(name, compiled, results, results.eager)
    alone = _judgement(name, compiled, results, None)
    bias = _bias(name, results)
    unit = max(of_compiled.rounding, of_compiled.condition)
    verdict, reason = _three_way(of_eager, of_compiled, alone, bias, results.roundoff)
    largest, mean, relative = _differences(eager.values, compiled.values)
    return ResultVerdict(
        name=name, verdict=verdict, dtype=eager.dtype, shape=eager.values.shape, eager=_times(of_eager.error, unit),
        compiled=_times(of_compiled.error, unit), bias=bias, max_abs_diff=largest, mean_abs_diff=mean,
        max_rel_diff=relative, reason=reason,
    )  # fmt: skip


def _unlike(name: str, eager: ReplayTensor, reason: Finding | None) -> ResultVerdict:
    verdict = CompileVerdict.CANNOT_TELL if reason is None else CompileVerdict.WORSE
    return ResultVerdict(
        name=name, verdict=verdict, dtype=eager.dtype, shape=eager.values.shape, eager=math.nan, compiled=math.nan,
        bias=0.0, max_abs_diff=math.nan, mean_abs_diff=math.nan, max_rel_diff=math.nan, reason=reason,
    )  # fmt: skip


def _judgement(
    name: str, tensor: ReplayTensor, results: CompiledResults, own: Mapping[str, ReplayTensor] | None
) -> OutputJudgement:
    disturbed = [each for each in results.disturbed if name in each]
    replays = Replays(
        oracle=results.oracle, own=None if own is None else dict(own), disturbed=disturbed,
        roundoff=results.roundoff, num_summed=1,
    )  # fmt: skip
    return judge_of(name, tensor, replays).judgement


def _three_way(
    eager: OutputJudgement, compiled: OutputJudgement, alone: OutputJudgement, bias: float, roundoff: float
) -> tuple[CompileVerdict, Finding | None]:
    if compiled.held is Held.WRONG:
        times = max(
            _times(compiled.error, max(compiled.rounding, compiled.condition)), compiled.element / ELEMENT_FACTOR
        )
        return CompileVerdict.WORSE, Finding(CompileCode.OFF, Level.ERROR, {"times": times})
    if eager.held is Held.WRONG and alone.held is not Held.WRONG:
        times = max(_times(eager.error, max(alone.rounding, alone.condition)), eager.element / ELEMENT_FACTOR)
        if times < EAGER_WRONG:
            return CompileVerdict.COMPILED_BETTER, None
        return CompileVerdict.EAGER_WRONG, Finding(CompileCode.EAGER_OFF, Level.ERROR, {"times": times})
    if bias > BIASED:
        return CompileVerdict.WORSE, Finding(CompileCode.BIASED, Level.ERROR, {"times": bias})
    if eager.held is Held.WRONG:
        return CompileVerdict.EQUAL, Finding(CompileCode.SAME_ERROR, Level.WARNING)
    if compiled.held is Held.CONDITION:
        return CompileVerdict.ILL_CONDITIONED, None
    if eager.error > _ROUNDED * roundoff and compiled.error <= _BETTER * eager.error:
        return CompileVerdict.COMPILED_BETTER, None
    return CompileVerdict.EQUAL, None


def _bias(name: str, results: CompiledResults) -> float:
    """Return by how much the bias of the compiled run exceeds the eager one, in deviations of what rounding does."""
    oracle = np.ravel(results.oracle[name].values)
    # The gradient of a parameter is a sum over everything that follows, whose rounding has one direction.
    is_judged = name.startswith(("output.", "input.")) and results.roundoff > _FINE
    if not is_judged or oracle.dtype.kind != "f" or oracle.size < _LEAST_ELEMENTS:
        return 0.0
    wide = oracle.astype(np.float64, copy=False)
    size = float(np.dot(wide, wide))
    if not size or not math.isfinite(size):
        return 0.0

    def error_of(tensor: ReplayTensor) -> Array:
        return np.ravel(tensor.values).astype(np.float64, copy=False) - wide

    def bias_of(tensor: ReplayTensor) -> float:
        return float(np.dot(error_of(tensor), wide)) / size

    eager, compiled = bias_of(results.eager[name]), bias_of(results.compiled[name])
    disturbed = [each[name] for each in results.disturbed if name in each]
    # Of a result with a few large elements, rounding adds up over those alone.
    num = size * size / float(np.sum(wide**4))
    noise = max([ROUNDING * results.roundoff, *(norm_of(error_of(each)) / math.sqrt(size) for each in disturbed)])
    deviation = max([noise / math.sqrt(num), abs(eager), *(abs(bias_of(each)) for each in disturbed)])
    excess = abs(compiled - eager)
    return excess / deviation if math.isfinite(excess) and abs(compiled) > abs(eager) else 0.0


def _differences(eager: Array, compiled: Array) -> tuple[float, float, float]:
    if not eager.size:
        return 0.0, 0.0, 0.0
    wide = "complex128" if eager.dtype.kind == "c" else "float64"
    one, other = eager.astype(wide), compiled.astype(wide)
    with np.errstate(invalid="ignore"):
        difference = np.abs(np.where(one == other, 0, one - other))
        sizes = np.abs(one)
        relative = difference[sizes > 0] / sizes[sizes > 0]
    return float(np.max(difference)), float(np.mean(difference)), float(np.max(relative)) if relative.size else 0.0


def _times(error: float, unit: float) -> float:
    return error / unit if unit else (math.inf if error else 0.0)


def worst_of(verdicts: Sequence[ResultVerdict]) -> CompileVerdict:
    """Return the verdict on a module: the worst of its results."""
    found = {each.verdict for each in verdicts}
    return next((verdict for verdict in CompileVerdict if verdict in found), CompileVerdict.CANNOT_TELL)
