"""How similar the gradients of two trainings are: the share of elements with equal signs, and where it is too low."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from msprobe_core.findings import Finding
from msprobe_core.gradients.gradients_codes import GradientCode

LEAST_SIMILARITY = 0.97
"""In the first step. Source: mstt, *Ascend模型梯度状态监测工具*, section 问题界定; so is `MOST_DROP`."""

MOST_DROP = 0.03
"""From one step to the next."""

MOST_OF_NORM = 2 * math.sin(math.pi / 2 * (1 - LEAST_SIMILARITY))
"""Share of its norm by which a gradient may differ where signs are not known: the relative distance at which so many
signs as `LEAST_SIMILARITY` agree, if elements are jointly normally distributed. Norms never differ by more than the
distance. Source: as of `msprobe_core.gradients.sketched.agreement_of`."""

_LOG_CHANCE = math.log(1e-4)
"""Logarithm of the probability that chance alone makes so many signs differ: a bias of four elements with one sign that
differs is no problem."""

_WIDTHS = 3.0
"""Standard errors by which an estimated similarity must be beyond a limit."""

_LAYER = re.compile(r"(.*?\.\d+)\.", re.ASCII)


class Basis(str, Enum):
    """What similarities are computed from."""

    SIGNS = "signs"
    SKETCHES = "sketches"
    NORMS = "norms"


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """One gradient of two trainings.

    Attributes:
        rank: Of the process.
        step: Number of the step.
        parameter: Its name.
        position: Of the parameter among those of the model, from 0.
        num_elements: Of the gradient.
        similarity: Share of elements with equal signs, as published tools define it: zero has the sign of negative
            numbers; NaN of norms alone.
        num_counted: Elements that are above rounding in either training.
        counted_similarity: Share of these with equal signs; 1 if there are none.
        cosine: Cosine of the two gradients, estimated from sketches; ``None`` without these.
        cosine_error: Standard error of the cosine.
        error: Standard error of both similarities; 0 if they are exact.
        norm_ratio: Norm of the target's gradient over that of the golden one; ``None`` if it is not known, NaN if one
            of them is not finite.
    """

    rank: int
    step: int
    parameter: str
    position: int
    num_elements: int
    similarity: float
    num_counted: int
    counted_similarity: float
    cosine: float | None = None
    cosine_error: float | None = None
    error: float = 0.0
    norm_ratio: float | None = None

    @property
    def has_norms_alone(self) -> bool:
        """Whether nothing but norms was recorded."""
        return self.cosine is None and self.norm_ratio is not None

    @property
    def norm_apart(self) -> float:
        """By what share of the golden norm the norms differ; infinite if only one of them is finite."""
        ratio = 1.0 if self.norm_ratio is None else self.norm_ratio
        return math.inf if math.isnan(ratio) else abs(ratio - 1)

    @property
    def layer(self) -> str:
        """The part of the name up to its first number; the whole name if it has none."""
        match = _LAYER.match(self.parameter)
        return match[1] if match else self.parameter


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A gradient that is less similar than it should be.

    Attributes:
        agreement: The gradient.
        finding: Why it is a problem.
    """

    agreement: Agreement
    finding: Finding


_NOT_COMPARED = (GradientCode.PARAMETERS_MISSING, GradientCode.SIZE_DIFFERS, GradientCode.UNREADABLE)


@dataclass(frozen=True, kw_only=True)
class GradientComparison:
    """The gradients of two trainings.

    Attributes:
        basis: What similarities are computed from.
        agreements: All that both have, by rank, step and position.
        lacking: What could not be compared, and what to know of the result.
    """

    basis: Basis
    agreements: Sequence[Agreement]
    lacking: Sequence[Finding] = ()

    @property
    def is_whole(self) -> bool:
        """Whether every gradient of the ranks and steps that both trainings have was compared."""
        return not any(finding.code in _NOT_COMPARED for finding in self.lacking)

    @property
    def ranks(self) -> list[int]:
        """All ranks that both trainings have."""
        return sorted({each.rank for each in self.agreements})

    def of_rank(self, rank: int) -> list[Agreement]:
        """Return those of a rank."""
        return [each for each in self.agreements if each.rank == rank]

    @cached_property
    def published_problems(self) -> frozenset[tuple[int, int, str]]:
        """Rank, step and parameter of those that the published rule calls a problem: all elements count."""
        return frozenset(
            (now.rank, now.step, now.parameter)
            for now, before in _in_turn(self.agreements)
            if (now.similarity < LEAST_SIMILARITY if before is None else before.similarity - now.similarity > MOST_DROP)
        )

    @cached_property
    def problems(self) -> list[Problem]:
        """Problems by our rule, the first first: by step and rank, and in a step in the order of the backward pass.

        The limits are those of the published rule. Elements below rounding do not count, and a similarity must be
        beyond a limit by more than chance explains.
        """
        found = [problem for now, before in _in_turn(self.agreements) if (problem := _problem(now, before)) is not None]
        return sorted(found, key=lambda each: (each.agreement.step, each.agreement.rank, -each.agreement.position))

    def summary(self, rank: int) -> dict[int, float]:
        """Return the similarity of all gradients of a rank by step, weighted by their elements; as published."""
        return _weighted((each.step, each.similarity, each.num_elements) for each in self.of_rank(rank))

    def counted_summary(self, rank: int) -> dict[int, float]:
        """Return the same of the elements that count."""
        return _weighted((each.step, each.counted_similarity, each.num_counted) for each in self.of_rank(rank))


def _weighted(values: Iterable[tuple[int, float, int]]) -> dict[int, float]:
    sums: dict[int, tuple[float, int]] = {}
    for step, similarity, weight in values:
        total, weights = sums.get(step, (0.0, 0))
        sums[step] = total + similarity * weight, weights + weight
    return {step: total / weights if weights else 1.0 for step, (total, weights) in sorted(sums.items())}


def _in_turn(agreements: Iterable[Agreement]) -> Iterable[tuple[Agreement, Agreement | None]]:
    """Yield each gradient, with that of the same parameter in the step before it."""
    series: defaultdict[tuple[int, str], list[Agreement]] = defaultdict(list)
    for each in agreements:
        series[each.rank, each.parameter].append(each)
    for one in series.values():
        one.sort(key=lambda each: each.step)
        yield from zip(one, [None, *one], strict=False)


def _problem(now: Agreement, before: Agreement | None) -> Problem | None:
    return _norm_problem(now, before) if now.has_norms_alone else _sign_problem(now, before)


def _norm_problem(now: Agreement, before: Agreement | None) -> Problem | None:
    earlier = 0.0 if before is None else before.norm_apart
    if not now.norm_apart - earlier > MOST_OF_NORM:
        return None
    fields = {"ratio": now.norm_ratio or 0.0, "limit": 100 * MOST_OF_NORM}
    if before is None:
        return Problem(agreement=now, finding=Finding(GradientCode.NORM_DIFFERS, fields=fields))
    finding = Finding(GradientCode.NORM_DRIFTS, fields=fields | {"before": before.norm_ratio or 0.0})
    return Problem(agreement=now, finding=finding)


def _sign_problem(now: Agreement, before: Agreement | None) -> Problem | None:
    least = LEAST_SIMILARITY if before is None else before.counted_similarity - MOST_DROP
    error = now.error if before is None else math.hypot(now.error, before.error)
    if not _is_beyond(now, least, error):
        return None
    agreeing = 100 * now.counted_similarity
    if before is None:
        finding = Finding(GradientCode.DIFFERS, fields={"agreeing": agreeing, "limit": 100 * LEAST_SIMILARITY})
    else:
        fields = {"agreeing": agreeing, "before": 100 * before.counted_similarity, "limit": 100 * MOST_DROP}
        finding = Finding(GradientCode.DROPS, fields=fields)
    return Problem(agreement=now, finding=finding)


def _is_beyond(now: Agreement, least: float, error: float) -> bool:
    similarity = now.counted_similarity
    if not similarity < least:  # also of NaN
        return math.isnan(similarity)
    if error:
        return similarity + _WIDTHS * error < least
    return -now.num_counted * _divergence(1 - similarity, 1 - least) < _LOG_CHANCE


def _divergence(share: float, usual: float) -> float:
    """Return the divergence of two Bernoulli distributions in nats.

    ``exp(-n * divergence)`` bounds the probability that ``n`` draws have that share or a larger one.
    Source: Hoeffding, *Probability inequalities for sums of bounded random variables*, 1963, theorem 1.
    """
    if usual >= 1:
        return 0.0
    first = share * math.log(share / usual) if share else 0.0
    return first + ((1 - share) * math.log((1 - share) / (1 - usual)) if share < 1 else 0.0)
