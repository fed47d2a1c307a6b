"""Differences of what packs have besides settings: statistics of inputs and parameters, calls of random functions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from msprobe_core.config_check.config_codes import ConfigCode
from msprobe_core.config_check.differences import Difference, Section, SectionResult, Severity
from msprobe_core.config_check.pack import Place, RandomSite, Summary, spelled
from msprobe_core.config_check.sides import GOLDEN, TARGET, difference, lone, said, section_result

_LEAST_SIMILAR = 0.8
"""Frames of two stacks must be at least as alike. Source: `mindstudio-probe` 26.2."""

Statistics = Mapping[Place, Mapping[str, Summary]]
Calls = Mapping[int, Mapping[str, Sequence[RandomSite]]]


@dataclass(frozen=True, slots=True)
class StatisticsRow:
    """One tensor of both sides.

    Attributes:
        step: Its micro-step.
        rank: Its rank.
        name: Its place among the inputs, or its name as a parameter.
        target: Its statistics.
        golden: The golden run's.
    """

    step: int
    rank: int
    name: str
    target: Summary
    golden: Summary

    @property
    def is_equal(self) -> bool:
        """Whether all statistics are equal."""
        return self.target == self.golden

    @property
    def is_equal_up_to_sums(self) -> bool:
        """Whether extremes are equal, and mean and norm up to the order in which libraries sum in float32."""
        from msprobe_core.judge.noise.carried import SUMMED  # imports polars, which recording programs do without

        target, golden = self.target, self.golden
        largest = max(abs(golden.max or 0.0), abs(golden.min or 0.0))
        sums = ((target.mean, golden.mean, largest), (target.norm, golden.norm, abs(golden.norm or 0.0)))
        return (target.max, target.min) == (golden.max, golden.min) and all(
            own == other or (own is not None and other is not None and abs(own - other) <= SUMMED * size)
            for own, other, size in sums
        )

    def relative(self, quantity: str) -> float | None:
        """Return the difference of a statistic relative to the golden run's; ``None`` where there is none."""
        own, other = getattr(self.target, quantity), getattr(self.golden, quantity)
        if own is None or other is None:
            return None
        if own == other:
            return 0.0
        return (own - other) / abs(other) if other else math.copysign(math.inf, own)


def statistics_rows(target: Statistics, golden: Statistics) -> Iterator[StatisticsRow]:
    """Yield the tensors that both sides have at one micro-step of one rank."""
    for place in sorted(target.keys() & golden.keys()):
        for name, own in target[place].items():
            if name in golden[place]:
                yield StatisticsRow(*place, name, own, golden[place][name])


def compare_statistics(
    section: Section, target: Statistics, golden: Statistics, *, are_foreign: bool = False
) -> SectionResult:
    """Compare the statistics of tensors: those that differ are one difference, with the first of them.

    Args:
        section: `Section.DATA` or `Section.WEIGHTS`.
        target: The target's.
        golden: The golden run's.
        are_foreign: Whether the sides are of two frameworks, whose statistics of equal tensors differ by rounding.
    """
    rows = list(statistics_rows(target, golden))
    differing = [row for row in rows if not (row.is_equal_up_to_sums if are_foreign else row.is_equal)]
    found: list[Difference] = []
    if differing:
        first = differing[0]
        # Weights of later steps follow from those before.
        alike = [row for row in differing if (row.step, row.rank) == (first.step, first.rank)]
        what = said(
            ConfigCode.STATISTICS, Severity.ERROR,
            count=len(alike), path=first.name, step=first.step, target=first.target.norm, golden=first.golden.norm,
        )  # fmt: skip
        found.append(difference(section, first.name, (first.target.norm, first.golden.norm), what, count=len(alike)))
    for side, own, other in ((TARGET, target, golden), (GOLDEN, golden, target)):
        first_place = min(own.keys() & other.keys(), default=None)
        names = [] if first_place is None else [each for each in own[first_place] if each not in other[first_place]]
        found += [lone(section, name, side, None, Severity.WARNING) for name in names]
    return section_result(section, len(rows), found)


# --- calls of random functions ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallRow:
    """Calls of one random function from one place on both sides; ``None`` for a side that has none.

    Attributes:
        name: The function.
        rank: The rank.
        target: The target's calls.
        golden: The golden run's calls.
    """

    name: str
    rank: int
    target: RandomSite | None
    golden: RandomSite | None

    @property
    def is_equal(self) -> bool:
        """Whether both sides called it as often from the same place."""
        return self.target is not None and self.golden is not None and self.target.count == self.golden.count


def call_rows(target: Calls, golden: Calls) -> Iterator[CallRow]:
    """Yield the random functions that the ranks of both sides have called, by the places that called them."""
    for rank in sorted(target.keys() & golden.keys()):
        of_target = {spelled(name): sites for name, sites in target[rank].items()}
        of_golden = {spelled(name): sites for name, sites in golden[rank].items()}
        for name in (*of_target, *[each for each in of_golden if each not in of_target]):
            left = list(of_golden.get(name, ()))
            for own in of_target.get(name, ()):
                partner = next((each for each in left if are_one_place(own.stack, each.stack)), None)
                if partner is not None:
                    left.remove(partner)
                yield CallRow(name, rank, own, partner)
            for other in left:
                yield CallRow(name, rank, None, other)


_FRAME = re.compile(r"File (?P<file>.*), line \d+, in (?P<function>[^,]*),(?P<code>.*)", re.DOTALL | re.ASCII)


def are_one_place(target: Sequence[str], golden: Sequence[str]) -> bool:
    """Whether two stacks are of the same place: as deep, and each frame alike in file, function and code."""
    return len(target) == len(golden) and all(map(_are_alike, target, golden))


def _are_alike(target: str, golden: str) -> bool:
    if target == golden:
        return True
    own, other = _FRAME.match(target), _FRAME.match(golden)
    if own is None or other is None:
        return False
    parts = ((own[key].strip(), other[key].strip()) for key in ("file", "function", "code"))
    return (
        sum(1.0 if one == two else SequenceMatcher(None, one, two).ratio() for one, two in parts) / 3 >= _LEAST_SIMILAR
    )


def compare_random_calls(target: Calls, golden: Calls) -> SectionResult:
    """Compare which random functions were called, from where, and how often."""
    rows = list(call_rows(target, golden))
    found: dict[str, Difference] = {}
    for row in rows:
        if row.is_equal or row.name in found:
            continue
        counts = _count(target, row), _count(golden, row)
        what = said(ConfigCode.RANDOM_CALLS, Severity.WARNING, name=row.name, target=counts[0], golden=counts[1])
        found[row.name] = difference(Section.RANDOM, row.name, counts, what)
    return section_result(Section.RANDOM, len(rows), found.values())


def _count(calls: Calls, row: CallRow) -> int:
    sites = [each for name, own in calls.get(row.rank, {}).items() if spelled(name) == row.name for each in own]
    return sum(each.count for each in sites)
