"""What the sum of the ranks' gradients is multiplied by: ``1 / ranks`` for a mean, 1 for a sum, less if it is clipped.

It is measured, as clipping changes it from step to step, and is what most gradients of a step show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from msprobe_core.monitoring.reduction_noise import Noise, apparent_roundoff, coefficients, degrees_of, median_roundoffs
from msprobe_core.monitoring.reduction_steps import Case, Floats

_COARSEST = 2.0**-7
"""Roundoff that still counts as explained: twice that of bfloat16."""

_MOST_ALIKE = 100.0
"""Condition number of the ranks' gradients up to which their shares are measured."""

_FALSE_ALARMS = 1e-6
"""Probability that a multiple of the ranks' sum is not taken for one."""

_LEAST_APART = 1e-5
"""Least relative distance of the factors of ranks that clip differently."""

Key = tuple[int, tuple[int, ...], int]
"""A step, ranks that reduce together, and the place of one of them, which has clipped what was reduced."""


@dataclass
class Factors:
    """The factors of a run.

    Attributes:
        of: By step, group and rank; of the first rank only, if all ranks have the same.
        roundoffs: The roundoff that the run shows, by dtype; see `msprobe_core.monitoring.reduction_noise`.
        num_cases: Gradients, counted once for each rank.
    """

    of: dict[Key, float] = field(default_factory=dict[Key, float])
    roundoffs: Mapping[str, float] = field(default_factory=dict[str, float])
    num_cases: int = 0

    def at(self, case: Case) -> Floats:
        """Return the factor of each rank, ``[ranks]``."""
        first = self.of[case.step, case.ranks, 0]
        places = range(len(case.ranks))
        return np.array([self.of.get((case.step, case.ranks, place), first) for place in places])

    def are_apart(self, factors: Floats) -> bool:
        """Whether the ranks of a group have different factors, more than by rounding."""
        apart = max(_LEAST_APART, 8 * max(self.roundoffs.values(), default=0.0))
        return bool(np.ptp(factors) > apart * np.abs(factors).max())


@dataclass(frozen=True)
class _Shares:
    """Factors that one step's gradients show, one for each gradient or one for each rank."""

    values: Sequence[float]
    tolerance: float
    weights: Sequence[float] | None = None
    """Inverse variances of the values; ``None`` if these are the same."""

    def near(self, factor: float) -> list[int]:
        """Return the places of those that are a factor, within rounding."""
        return [i for i, each in enumerate(self.values) if abs(each - factor) <= self.tolerance * abs(factor)]

    def mean(self, places: Sequence[int]) -> float:
        """Return the mean of some of them."""
        weights = None if self.weights is None else [self.weights[i] for i in places]
        return float(np.average([self.values[i] for i in places], weights=weights))

    def agreed(self) -> float | None:
        """Return the factor of more than half of them; ``None`` if there is none."""
        for candidate in sorted(self.values, reverse=True):
            alike = self.near(candidate)
            if candidate > 0 and 2 * len(alike) > len(self.values):
                return self.mean(alike)
        return None

    def usual(self, candidates: Iterable[float]) -> float | None:
        """Return the first candidate that half of them are."""
        for factor in candidates:
            alike = self.near(factor)
            if alike and 2 * len(alike) >= len(self.values):
                return self.mean(alike)
        return None


def find_factors(steps: Iterable[Sequence[Case]]) -> Factors:
    """Return the factors of all steps."""
    found = Factors()
    undecided: dict[Key, _Shares] = {}
    roundoffs: dict[str, list[float]] = {}
    for cases in steps:
        groups: dict[tuple[int, tuple[int, ...]], list[Case]] = {}
        for case in cases:
            found.num_cases += len(case.ranks)
            groups.setdefault((case.step, case.ranks), []).append(case)
        for (step, ranks), members in groups.items():
            clear = [case for case in members if np.isfinite(case.reduced).all()]
            is_same = all((case.reduced == case.reduced[0]).all() for case in clear)
            for place in range(1 if is_same else len(ranks)):
                shares = _shares_in(clear, place, roundoffs)
                agreed = shares.agreed()
                if agreed is None:
                    undecided[step, ranks, place] = shares
                else:
                    found.of[step, ranks, place] = agreed
    found.roundoffs = median_roundoffs(roundoffs)
    known = dict(found.of)
    for key, shares in undecided.items():
        found.of[key] = _likely(shares, key, known)
    _bound(found.of)
    return found


def _likely(shares: _Shares, key: Key, known: Mapping[Key, float]) -> float:
    """Return a factor that half of the shares are and that is usual: of a mean, of a sum, or of other steps."""
    ranks = key[1]
    others = [factor for (_, group, _), factor in known.items() if group == ranks]
    usual = [1 / len(ranks), 1.0, *([float(np.median(others))] if others else [])]
    found = shares.usual(usual)
    return found or (usual[-1] if others else usual[0])


def _bound(factors: dict[Key, float]) -> None:
    """Take no factor above that of a mean if many steps have just that: clipping makes factors smaller only."""
    for ranks in {group for _, group, _ in factors}:
        mean = 1 / len(ranks)
        own = {key: factor for key, factor in factors.items() if key[1] == ranks}
        num_means = sum(abs(factor - mean) <= _COARSEST * mean for factor in own.values())
        if 4 * num_means >= len(own):
            factors.update({key: mean for key, factor in own.items() if factor > mean * (1 + _COARSEST)})


def _shares_in(cases: Sequence[Case], place: int, roundoffs: dict[str, list[float]]) -> _Shares:
    """Return the factors that a step's gradients show on one rank, and note the roundoffs.

    A gradient that is a multiple of the sum of the ranks' shows the factor at once. If none is, as when one rank's
    contribution is wrong in all of them, how much of each rank's is in them shows it.
    """
    shown: list[tuple[Case, Floats, float | None]] = []
    for case in cases:
        shares = coefficients(case.own, case.reduced[place])
        roundoff = apparent_roundoff(case, case.reduced[place], shares)
        shown.append((case, shares, roundoff))
        if roundoff is not None:
            roundoffs.setdefault(case.dtype, []).append(roundoff)
    usual = float(np.median([0.0, *(each for _, _, each in shown if each is not None)]))
    noise = Noise(dict.fromkeys({case.dtype for case in cases}, usual), _FALSE_ALARMS)
    tolerance = max(1e-6, 4 * usual)
    whole = [(each, float(degrees_of(case))) for case in cases if (each := _whole(case, place, noise)) is not None]
    if whole:
        return _Shares([each for each, _ in whole], tolerance, [weight for _, weight in whole])
    rows = [
        shares
        for case, shares, roundoff in shown
        if roundoff is not None and roundoff < _COARSEST and np.linalg.cond(case.own) < _MOST_ALIKE
    ]
    return _Shares([float(each) for each in np.median(rows, axis=0)] if rows else (), tolerance)


def _whole(case: Case, place: int, noise: Noise) -> float | None:
    """Return how many times the sum of the ranks' gradients a reduced one is; ``None`` if it is no multiple of it."""
    total = case.own.sum(axis=0)
    size = float((total * total).sum())
    if size == 0 or case.num_elements < 2 * len(case.ranks):
        return None
    reduced = case.reduced[place]
    factor = float((reduced * total).sum()) / size
    is_multiple = float(np.linalg.norm(reduced - factor * total)) <= noise.bounds(case, factor)[1]
    return factor if is_multiple else None
