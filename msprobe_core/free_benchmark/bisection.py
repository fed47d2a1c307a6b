"""Finds which of many modules explains a value of a training step, by raising the precision of halves of them.

A set of modules has a *share*: by how much of the way the value comes from the unchanged step to the step with all
modules raised if only these are. A number goes that way or another; the change of a tensor is projected on it.
Raising healthy modules changes the value too: whatever is changed, everything that is computed from it is rounded
otherwise, so that sets of any size have shares of about the same amount. The sets that are left aside on the way to a
culprit are measured anyway, and their shares give that amount: it is the noise, the unit of contributions.

Both halves of a set are measured, so one module out of n takes ``1 + log2 n`` pairs of steps, the first of which is
the unchanged step again and the step with all modules raised. If several modules share the change, the largest set is
halved next, until the pairs are used up or nothing beyond the noise is left to be halved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Measure: TypeAlias = Callable[[range], "Array | None"]
"""Returns the value of a step with some modules raised, by their numbers; ``None`` if it cannot be run so."""

SIGNIFICANT = 4.0
"""Contributions of this many times the noise are beyond it."""

_LEAST_SHARE = 0.5
_MOST_SHARE = 2.0
_RIVAL = 0.5
"""A single module explains the change if its share is between these, and no other has more than this part of it."""

_CANCELLING = 3.0
"""Contributions whose magnitudes add up to more cancel each other, as rounding does in a single number."""

_WORTH = 0.05
"""Sets with a smaller share are not halved further."""

_JOINT = 0.5
"""Modules act as one if halves of them have less than this part of their share."""

_QUARTILE = 0.75
"""Not the median: on some modules, such as dropout that is off, nothing depends."""


@dataclass(frozen=True)
class Contribution:
    """The share of a set of modules.

    Attributes:
        modules: Their numbers, consecutive in the order in which the step calls them first.
        share: Of the change from the unchanged step to the one with all modules raised.
        change: Norm of the change of the value.
        is_inferred: Whether it is what its other half leaves, because the step fails with just these raised.
        is_joint: Whether it has this share only as a whole: neither half of it has, nor both added up.
    """

    modules: range
    share: float
    change: float
    is_inferred: bool = False
    is_joint: bool = False

    @property
    def is_single(self) -> bool:
        """Whether it is one module."""
        return len(self.modules) == 1


@dataclass
class Bisection:
    """The search.

    Attributes:
        num_modules: Number of modules.
        base: Value of the unchanged step.
        whole: Value of the step with all modules raised.
        repeated: Value of the unchanged step when it is run again.
        resolution: Distance of numbers that the value can have, as a norm; smaller changes cannot be seen.
        most_pairs: Maximum number of pairs of steps, the first included.
        measure: Runs a step.
        measured: All sets that were measured.
    """

    num_modules: int
    base: Array
    whole: Array
    repeated: Array
    resolution: float
    most_pairs: int
    measure: Measure
    measured: list[Contribution] = field(default_factory=list[Contribution])
    num_pairs: int = 1

    def __post_init__(self) -> None:
        self._way = self.whole - self.base
        self.distance = float(np.linalg.norm(self._way))
        everything = Contribution(range(self.num_modules), 1.0, self.distance)
        self.parts = [everything]

    @property
    def repeat_distance(self) -> float:
        """How far apart two equal runs are."""
        return float(np.linalg.norm(self.repeated - self.base))

    @property
    def has_difference(self) -> bool:
        """Whether raising everything changes the value at all."""
        return self.distance > self.resolution

    @property
    def is_repeatable(self) -> bool:
        """Whether two equal runs are closer than what raising everything changes."""
        return SIGNIFICANT * self.repeat_distance < self.distance or not self.repeat_distance

    def run(self) -> None:
        """Halve sets until one module explains the change, or nothing is left to be halved."""
        while self.has_difference and self.is_repeatable and self.num_pairs < self.most_pairs:
            largest = self._next()
            if largest is None:
                return
            self._halve(largest)

    def _next(self) -> Contribution | None:
        """Return the set to halve next."""
        if self.single is not None:
            return None
        open_parts = [part for part in self.parts if not part.is_single and not part.is_joint]
        largest = max(open_parts, key=lambda part: abs(part.share), default=None)
        if largest is None or abs(largest.share) < _WORTH:
            return None
        return largest

    def _halve(self, part: Contribution) -> None:
        middle = len(part.modules) // 2
        halves = [part.modules[:middle], part.modules[middle:]]
        values = [self.measure(half) for half in halves]
        self.num_pairs += 1
        found = [
            None if value is None else self._contribution(half, value)
            for half, value in zip(halves, values, strict=True)
        ]
        self.parts.remove(part)
        shares = [0.0 if one is None else one.share for one in found]
        if None not in found and max(*shares, sum(shares)) < _JOINT * abs(part.share):
            self.parts.append(replace(part, is_joint=True))
            return
        for half, one, other in zip(halves, found, reversed(found), strict=True):
            share = part.share / 2 if other is None else part.share - other.share
            known = one or Contribution(half, share, abs(share) * self.distance, is_inferred=True)
            self.parts.append(known)
            self.measured.append(known)

    def _contribution(self, modules: range, value: Array) -> Contribution:
        change = value - self.base
        share = float(np.dot(change, self._way)) / self.distance**2
        return Contribution(modules, share, float(np.linalg.norm(change)))

    # --- what was found ---------------------------------------------------------------------------------------

    @property
    def ranked(self) -> list[Contribution]:
        """The sets that were not halved further, which make up all modules, the largest contribution first."""
        return sorted(self.parts, key=lambda part: -abs(part.share))

    @property
    def noise(self) -> float:
        """Share that raising any modules has: an upper quartile of the sets besides the largest; 0 if unknown."""
        shares = sorted(abs(part.share) for part in self.ranked[1:] if not part.is_inferred)
        return shares[int(_QUARTILE * (len(shares) - 1))] if shares else 0.0

    @property
    def _least_noise(self) -> float:
        """Share that the repetition of a step and the last digit of its value have."""
        return math.hypot(self.repeat_distance, self.resolution / 2) / self.distance if self.distance else 0.0

    def times(self, part: Contribution) -> float:
        """Return the contribution of a set in units of noise."""
        noise = math.hypot(self.noise, self._least_noise)
        return abs(part.share) / noise if noise else math.inf

    @property
    def single(self) -> Contribution | None:
        """The one module that explains the change; ``None`` if none does."""
        first, *others = self.ranked
        if not first.is_single or not _LEAST_SHARE <= first.share <= _MOST_SHARE:
            return None
        if self.num_modules > 1 and self.times(first) < SIGNIFICANT:
            return None
        return None if any(abs(part.share) > _RIVAL * first.share for part in others) else first

    @property
    def is_cancelling(self) -> bool:
        """Whether contributions cancel each other, so that none of them can be told from rounding."""
        return sum(abs(part.share) for part in self.parts) > _CANCELLING

    @property
    def sharers(self) -> list[Contribution]:
        """Sets beyond the noise that explain the change together, the largest first; none if the rest counts more."""
        if self.is_cancelling:
            return []
        found = [part for part in self.ranked if self.times(part) >= SIGNIFICANT and abs(part.share) >= _WORTH]
        others = [part for part in self.ranked if part not in found]
        together = sum(part.share for part in found)
        return found if together >= max(_LEAST_SHARE, sum(abs(part.share) for part in others)) else []


def pairs_for_one(num_modules: int) -> int:
    """Return how many pairs of steps one module among so many takes."""
    return 1 + math.ceil(math.log2(max(num_modules, 1)))


def default_pairs(num_modules: int) -> int:
    """Return the usual maximum: enough to follow three modules that share a change."""
    return 1 + 3 * (pairs_for_one(num_modules) - 1)
