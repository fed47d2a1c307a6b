"""Check that ranks have reduced every gradient: the reduced one is the mean, or the sum, of what they accumulated.

Sketches are linear, so the sketch of a sum is the sum of the sketches: ranks are compared offline, from files, and
which rank's contribution is wrong follows from 64 linear equations. What rounding explains is derived in
`msprobe_core.monitoring.reduction_noise`; `msprobe_core.monitoring.reduction_faults` names the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from msprobe_core.findings import Finding, Level
from msprobe_core.monitoring.reduction_codes import ReductionCode
from msprobe_core.monitoring.reduction_factors import find_factors
from msprobe_core.monitoring.reduction_faults import OF_RANKS, Context, Explanation, deviates, explain
from msprobe_core.monitoring.reduction_noise import Noise
from msprobe_core.monitoring.reduction_steps import Case, Floats, Parameter, SketchedRun, Unjudged

ALL = Parameter(0, "(all parameters)")

_UNNAMED = frozenset({ReductionCode.UNEXPLAINED, ReductionCode.AMBIGUOUS, ReductionCode.UNDERDETERMINED})

_MOST_KEPT = 10_000


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A gradient that was not reduced as it should be.

    Attributes:
        step: Number of the step.
        parameter: Whose gradient.
        explanation: What happened to it.
        is_inferred: Whether it alone leaves several explanations, of which this is the one of other gradients.
    """

    step: int
    parameter: Parameter
    explanation: Explanation
    is_inferred: bool = False


@dataclass(frozen=True, kw_only=True)
class Power:
    """By how much one rank's contribution must be scaled to be found in 19 of 20 cases: 0.01 is times 1.01.

    Attributes:
        median: Of half of the ranks' gradients.
        most: Of 19 of 20 of them.
    """

    median: float
    most: float


@dataclass(kw_only=True)
class ReductionCheck:
    """The result.

    Attributes:
        found: Faults in the order of the steps, the first 10,000.
        num_found: How many there are.
        num_judged: Gradients, each counted once in each step.
        unjudged: Number of gradients that cannot be judged, by reason and parameter.
        factor: By which sums are multiplied in most steps.
        num_other_factors: Steps with another factor, as clipping makes them.
        power: Of the check; ``None`` if nothing is judged.
    """

    found: list[Fault] = field(default_factory=list[Fault])
    num_found: int = 0
    num_judged: int = 0
    unjudged: Counter[tuple[ReductionCode, Parameter]] = field(default_factory=Counter[tuple[ReductionCode, Parameter]])
    factor: float = 1.0
    num_other_factors: int = 0
    power: Power | None = None

    @property
    def reasons(self) -> list[Finding]:
        """Why something could not be judged."""
        names: dict[ReductionCode, list[str]] = {}
        for code, parameter in self.unjudged:
            names.setdefault(code, []).append(parameter.name)
        return [Finding(code, Level.UNMATCHED, {"count": len(each), "first": each[0]}) for code, each in names.items()]


def check_reduction(run: SketchedRun, *, false_alarms: float = 1e-3, steps: Collection[int] = ()) -> ReductionCheck:
    """Check all gradients of a run.

    Args:
        run: Its sketches.
        false_alarms: Probability that rounding alone makes any gradient of a healthy run a fault.
        steps: Those to check; empty for all.

    Raises:
        DumpError: a file cannot be read.
    """
    factors = find_factors([each for each in found if isinstance(each, Case)] for found in _chosen(run, steps))
    noise = Noise(factors.roundoffs, false_alarms / max(factors.num_cases, 1))
    result = ReductionCheck()
    visible: list[Floats] = []
    before: Mapping[Parameter, tuple[int, Floats]] = {}
    for cases in _chosen(run, steps):
        now: dict[Parameter, tuple[int, Floats]] = {}
        apart: dict[tuple[int, ...], Floats] = {}
        num_before = result.num_found
        for case in cases:
            if isinstance(case, Unjudged):
                result.unjudged[case.code, case.parameter] += 1
                continue
            context = Context(noise=noise, factors=factors.at(case), before=before)
            if factors.are_apart(context.factors):
                apart[case.ranks] = context.factors
            result.num_judged += 1
            visible.append(noise.visible(case, context.factor))
            now[case.parameter] = (case.step, _common(case))
            if deviates(case, context):
                _note(result, Fault(step=case.step, parameter=case.parameter, explanation=explain(case, context)))
        faults = result.found[num_before:]
        if not any(each.explanation.code in OF_RANKS for each in faults):
            for ranks, found in apart.items():
                _note(result, _clipped_apart(ranks, found, next(iter(now.values()))[0]))
        before = now
    result.found = _inferred(result.found)
    _sum_up(result, visible, list(factors.of.values()))
    return result


def _common(case: Case) -> Floats:
    """Return the reduced gradient that ranks have, or most of them."""
    is_same = bool((case.reduced == case.reduced[0]).all())
    return case.reduced[0] if is_same else np.median(case.reduced, axis=0)


def _inferred(found: list[Fault]) -> list[Fault]:
    """Return faults with those that leave several explanations explained as other gradients of the run are.

    A bias of one element is any multiple of any rank's gradient.
    """
    known = Counter(_kind(each.explanation) for each in found if not each.explanation.candidates)

    def resolved(fault: Fault) -> Fault:
        fitting = [each for each in fault.explanation.candidates if known[_kind(each)]]
        if not fitting:
            return fault
        return replace(fault, explanation=max(fitting, key=lambda each: known[_kind(each)]), is_inferred=True)

    return [resolved(fault) for fault in found]


def _kind(explanation: Explanation) -> tuple[ReductionCode, tuple[int, ...], float | None]:
    scale = explanation.scale
    return explanation.code, explanation.ranks, None if scale is None else round(scale, 1)


def _clipped_apart(ranks: tuple[int, ...], factors: Floats, step: int) -> Fault:
    """Return the fault of a step in which all gradients of some ranks are another multiple than those of the others."""
    usual = float(np.median(factors))
    worst = max(range(len(ranks)), key=lambda i: abs(factors[i] - usual))
    odd = tuple(
        rank for rank, each in zip(ranks, factors, strict=True) if abs(each - usual) > abs(factors[worst] - usual) / 2
    )
    scale = float(factors[worst]) / usual
    explanation = Explanation(code=ReductionCode.SCALED_AFTER, ranks=odd, scale=scale, error=0.0)
    return Fault(step=step, parameter=ALL, explanation=explanation)


def _chosen(run: SketchedRun, steps: Collection[int]) -> Iterator[list[Case | Unjudged]]:
    for cases in run:
        if not steps or (cases and cases[0].step in steps):
            yield cases


def _note(result: ReductionCheck, fault: Fault) -> None:
    result.num_found += 1
    if len(result.found) < _MOST_KEPT:
        result.found.append(fault)


def _sum_up(result: ReductionCheck, visible: list[Floats], factors: list[float]) -> None:
    if not result.num_judged:
        return
    ratios = np.concatenate(visible)
    result.power = Power(median=float(np.median(ratios)), most=float(np.quantile(ratios, 0.95, method="higher")))
    result.factor = float(np.median(factors))
    result.num_other_factors = sum(abs(each / result.factor - 1) > 1e-3 for each in factors)
    # A group that lacks ranks looks as if everything were wrong.
    kinds = {each.explanation.code for each in result.found}
    if result.num_found == result.num_judged and ReductionCode.UNEXPLAINED in kinds and kinds <= _UNNAMED:
        for fault in result.found:
            result.unjudged[ReductionCode.ALL_UNEXPLAINED, fault.parameter] += 1
        result.found, result.num_found, result.num_judged = [], 0, 0
