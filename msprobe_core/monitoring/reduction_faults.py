"""What happened to a gradient that is not the sum of the ranks' gradients: the simplest explanation within rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from msprobe_core.findings import Field, Finding, Level
from msprobe_core.fingerprint.sketch import SIZE
from msprobe_core.monitoring.reduction_codes import ReductionCode
from msprobe_core.monitoring.reduction_noise import Noise, coefficients, degrees_of
from msprobe_core.monitoring.reduction_steps import Case, Floats, Parameter

_DEVIATIONS = 4.0
"""Standard deviations within which a factor is what it is taken for."""

_MANY = 4
"""Elements that no gradient is a multiple of another of by chance."""

_NEAR = 0.02
"""Distance from 0, 1, 2 or the number of ranks within which a factor is taken for it at least."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What would make a reduced gradient what it is.

    Attributes:
        code: What happened.
        ranks: On which, or whose contribution; all of them if it is no single one's doing.
        scale: How many times as large something is as it should be; ``None`` if that is not what happened.
        error: Standard deviation of ``scale``.
        fields: Further fields of the finding.
        candidates: What it may be, if that cannot be told.
    """

    code: ReductionCode
    ranks: tuple[int, ...]
    scale: float | None = None
    error: float | None = None
    fields: Mapping[str, Field] = field(default_factory=dict[str, Field])
    candidates: tuple[Explanation, ...] = ()

    @property
    def finding(self) -> Finding:
        """The explanation as a finding."""
        scale: dict[str, Field] = {} if self.scale is None else {"scale": self.scale, "error": self.error}
        return Finding(self.code, Level.ERROR, {"ranks": list(self.ranks), **scale, **self.fields})


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a gradient is judged with.

    Attributes:
        noise: Limits of rounding.
        factors: By which the sum of all ranks' gradients is multiplied in this step, on each rank.
        before: Reduced gradients of the step collected before, and its number.
    """

    noise: Noise
    factors: Floats
    before: Mapping[Parameter, tuple[int, Floats]]

    @cached_property
    def factor(self) -> float:
        """The factor of most ranks."""
        return float(np.median(self.factors))


OF_RANKS = frozenset(
    {
        ReductionCode.NOT_REDUCED, ReductionCode.DISAGREES, ReductionCode.SCALED_AFTER, ReductionCode.WRONG_GROUP,
        ReductionCode.STALE, ReductionCode.BECAME_INFINITE,
    }
)  # fmt: skip
"""What gives ranks different gradients, so that clipping by the norm of all makes them differ everywhere."""


def deviates(case: Case, context: Context) -> bool:
    """Whether a reduced gradient is not what the ranks' gradients add up to."""
    return _Explainer(case, context).deviates


def explain(case: Case, context: Context) -> Explanation:
    """Return what happened to a gradient that deviates."""
    return _Explainer(case, context).explain()


class _Explainer:
    def __init__(self, case: Case, context: Context) -> None:
        self._factor = context.factor
        self._undone = context.factor / context.factors  # what ranks clip differently is made alike
        self._case = case = replace(case, reduced=case.reduced * self._undone[:, None])
        self._before = context.before.get(case.parameter)
        sigma, self._limit = context.noise.bounds(case, context.factor)
        self._error = sigma / math.sqrt(degrees_of(case))
        self._expected = context.factor * case.own.sum(axis=0)
        self._is_right = [self._fits(each, self._expected) for each in case.reduced]

    @property
    def deviates(self) -> bool:
        return not all(self._is_right)

    def explain(self) -> Explanation:
        reduced, ranks = self._case.reduced, self._case.ranks
        if not np.isfinite(reduced).all():
            odd = tuple(rank for rank, each in zip(ranks, reduced, strict=True) if not np.isfinite(each).all())
            return Explanation(code=ReductionCode.BECAME_INFINITE, ranks=odd)
        if all(self._fits(each, reduced[0]) for each in reduced):
            return self._of_all(reduced[0])
        return self._of_some()

    # --- all ranks have the same ----------------------------------------------------------------------------------

    def _of_all(self, reduced: Floats) -> Explanation:
        """Explain what all ranks have alike."""
        ranks = self._case.ranks
        simple = [each for each in self._of_one_factor(reduced) if each is not None]
        stale = self._stale(reduced, ranks)
        if stale is not None and (len(simple) > 1 or not simple):
            simple.append(stale)
        if len(simple) == 1:
            return simple[0]
        if simple:
            return self._ambiguous(simple)
        return self._of_several(reduced) or self._unexplained(reduced, ranks)

    def _of_one_factor(self, reduced: Floats) -> Iterator[Explanation | None]:
        """Yield the explanations with one number to be found: the whole is scaled, or what one rank contributes."""
        case, num_ranks = self._case, len(self._case.ranks)
        found = self._scaled(reduced, self._expected)
        if found is not None:
            scale, error = found
            is_twice = _is_near(scale, float(num_ranks), error)
            code = ReductionCode.REDUCED_TWICE if is_twice else ReductionCode.SCALED_WHOLE
            yield Explanation(code=code, ranks=case.ranks, scale=scale, error=error)
        for rank, own in zip(case.ranks, case.own, strict=True):
            part = self._factor * own
            found = self._scaled(reduced - self._expected + part, part)
            yield None if found is None else _of_rank(rank, *found)

    def _of_several(self, reduced: Floats) -> Explanation | None:
        """Explain by contributions of several ranks, each with a factor of its own."""
        case = self._case
        scales = self._scales(reduced)
        if scales is None:
            return None
        group = self._group_of(scales)
        if group is not None:
            return Explanation(code=ReductionCode.WRONG_GROUP, ranks=case.ranks, fields={"groups": [str(list(group))]})
        errors = self._errors()
        odd = [i for i, scale in enumerate(scales) if abs(scale - 1) > _DEVIATIONS * errors[i]]
        ranks = tuple(case.ranks[i] for i in odd)
        if odd and all(_is_near(float(scales[i]), 0.0, float(errors[i])) for i in odd):
            return Explanation(code=ReductionCode.MISSING, ranks=ranks)
        shown = [f"{case.ranks[i]}: {scales[i]:.4g}" for i in odd]
        return Explanation(code=ReductionCode.SEVERAL, ranks=ranks, fields={"scales": shown})

    def _group_of(self, scales: Floats) -> tuple[int, ...] | None:
        """Return the ranks over which it was reduced, if these are some of the ranks and the others contribute nothing.

        The mean over fewer ranks has a larger factor.
        """
        ranks, errors = self._case.ranks, self._errors()
        inside = [i for i, scale in enumerate(scales) if not _is_near(float(scale), 0.0, float(errors[i]))]
        if not 1 < len(inside) < len(ranks):
            return None
        share = len(ranks) / len(inside)
        is_mean = all(_is_near(float(scales[i]), share, float(errors[i])) for i in inside)
        return tuple(ranks[i] for i in inside) if is_mean else None

    def _scales(self, reduced: Floats) -> Floats | None:
        """Return the ranks' factors; ``None`` if the gradient is no combination of theirs, or any gradient would be."""
        case = self._case
        own = coefficients(case.own, reduced)
        scales = own / self._factor
        is_sum = self._fits(reduced, own @ case.own, scale=float(np.abs(scales).max()))
        return scales if is_sum and self._num_equations > len(case.ranks) else None

    @property
    def _num_equations(self) -> int:
        return min(SIZE, self._case.num_elements)

    def _errors(self) -> Floats:
        """Return the standard deviations of the ranks' factors."""
        inverse = np.linalg.pinv(self._factor * self._case.own, rcond=1e-6)
        return self._error * np.linalg.norm(inverse, axis=0)

    # --- ranks have different ones ---------------------------------------------------------------------------------

    def _of_some(self) -> Explanation:
        """Explain why ranks disagree."""
        case = self._case
        kept_own = [self._is_own(i) for i in range(len(case.ranks))]
        wrong = [i for i, is_right in enumerate(self._is_right) if not is_right]
        if all(kept_own[i] for i in wrong):
            return Explanation(code=ReductionCode.NOT_REDUCED, ranks=tuple(case.ranks[i] for i in wrong))
        groups = self._groups()
        if groups is not None:
            return Explanation(code=ReductionCode.WRONG_GROUP, ranks=case.ranks, fields={"groups": groups})
        if len(wrong) == len(case.ranks):  # all ranks are wrong, not alike
            return Explanation(code=ReductionCode.DISAGREES, ranks=case.ranks)
        odd = tuple(case.ranks[i] for i in wrong)
        reduced = case.reduced[wrong[0]]
        if not all(self._fits(case.reduced[i], reduced) for i in wrong):
            return Explanation(code=ReductionCode.DISAGREES, ranks=odd)
        found = self._scaled(reduced, self._expected)
        if found is not None:
            return Explanation(code=ReductionCode.SCALED_AFTER, ranks=odd, scale=found[0], error=found[1])
        return self._stale(reduced, odd) or Explanation(code=ReductionCode.DISAGREES, ranks=odd)

    def _is_own(self, i: int) -> bool:
        """Whether a rank has what it has accumulated itself, clipped as the reduced ones are or not."""
        case = self._case
        factors = (float(self._undone[i]), self._factor, self._factor * len(case.ranks))
        return any(self._fits(case.reduced[i], factor * case.own[i]) for factor in factors)

    def _groups(self) -> list[str] | None:
        """Return the groups over which ranks have reduced instead, as text."""
        case = self._case
        found: set[tuple[int, ...]] = set()
        for rank, reduced in zip(case.ranks, case.reduced, strict=True):
            scales = self._scales(reduced)
            group = None if scales is None else self._group_of(scales)
            if group is None or rank not in group:
                return None
            found.add(group)
        return [str(list(group)) for group in sorted(found)]

    # --- both ------------------------------------------------------------------------------------------------------

    def _stale(self, reduced: Floats, ranks: tuple[int, ...]) -> Explanation | None:
        if self._before is None:
            return None
        step, before = self._before
        found = self._scaled(reduced, before)
        is_long = self._num_equations > _MANY  # parallel by no chance
        if found is None or found[0] <= 0 or not (is_long or _is_near(found[0], 1.0, found[1])):
            return None
        return Explanation(code=ReductionCode.STALE, ranks=ranks, fields={"step": step})

    def _unexplained(self, reduced: Floats, ranks: tuple[int, ...]) -> Explanation:
        case = self._case
        if len(ranks) >= self._num_equations:
            return Explanation(code=ReductionCode.UNDERDETERMINED, ranks=ranks)
        left = reduced - coefficients(case.own, reduced) @ case.own
        share = float(np.linalg.norm(left)) / max(float(np.linalg.norm(reduced)), 1e-300)
        return Explanation(code=ReductionCode.UNEXPLAINED, ranks=ranks, fields={"share": share})

    def _ambiguous(self, simple: Sequence[Explanation]) -> Explanation:
        ranks = tuple(sorted({rank for each in simple for rank in each.ranks}))
        fields: dict[str, Field] = {"candidates": [each.finding for each in simple]}
        return Explanation(code=ReductionCode.AMBIGUOUS, ranks=ranks, fields=fields, candidates=tuple(simple))

    def _fits(self, one: Floats, other: Floats, scale: float = 1.0) -> bool:
        """Whether two gradients are the same within rounding, of numbers ``scale`` times as large as expected."""
        return float(np.linalg.norm(one - other)) <= self._limit * max(1.0, abs(scale))

    def _scaled(self, found: Floats, by: Floats) -> tuple[float, float] | None:
        """Return how many times ``by`` something is, and the standard deviation of that; ``None`` if it is not."""
        size = float((by * by).sum())
        if size == 0:
            return None
        scale = float((found * by).sum()) / size
        return (scale, self._error / math.sqrt(size)) if self._fits(found, scale * by, scale) else None


def _of_rank(rank: int, scale: float, error: float) -> Explanation:
    """Return what one rank's factor means."""
    if _is_near(scale, 0.0, error):
        return Explanation(code=ReductionCode.MISSING, ranks=(rank,))
    if _is_near(scale, 2.0, error):
        return Explanation(code=ReductionCode.TWICE, ranks=(rank,))
    return Explanation(code=ReductionCode.SCALED, ranks=(rank,), scale=scale, error=error)


def _is_near(scale: float, value: float, error: float) -> bool:
    return abs(scale - value) <= max(_DEVIATIONS * error, _NEAR)
