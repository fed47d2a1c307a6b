"""What a comparison found: of one pair of dumps, and of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from msprobe_core.compare.shards.findings import ReplicaFinding
from msprobe_core.compare.suggest import Suggestion
from msprobe_core.judge.fault import Culprit, Fault
from msprobe_core.judge.limits import LimitTable, conventional
from msprobe_core.judge.verdict import Verdict

if TYPE_CHECKING:
    import polars as pl

    from msprobe_core.judge.evidence import Evidence


class Mode(str, Enum):
    """What a pair of dumps allows to compare."""

    STATISTICS = "statistics"
    CHECKSUM = "md5"
    TENSOR = "tensor"
    STRUCTURE = "structure"


@dataclass(frozen=True, kw_only=True)
class UnitSummary:
    """What the comparison of one pair of dumps came to, without its rows: small enough for thousands of ranks.

    Attributes:
        label: ``rank0`` or ``proc123``; with several steps ``step0/rank0``; empty for two single dumps.
        step: Of the target; ``None`` where only one step was given.
        rank: Of the target; ``None`` outside of a job.
        target: Where the target dump is.
        golden: Where the golden dump is.
        mode: What was compared.
        num_rows: How many pairs of values, and values that one side has alone.
        nodes: Number of entries by verdict.
        counts: Number of rows by verdict, and by the side that has them alone.
        fault: Where the calls that both sides have begin to disagree; ``None`` if they do not.
        lone_call: The first call that only one side has; ``None`` if there is none.
        culprit: Which of the two the judge finds to be where the dumps diverge first, as `msprobe_core.locate` says;
            ``None`` where nothing differs but the form of calls.
        first_difference: Row name of the first pair that differs at all, also within its limit.
        notes: What there is to say about the dumps themselves.
        replicas: Values that ranks should have alike and have not, where the dumps of several ranks were merged.
        is_foreign: Whether the two are of different frameworks, which make different calls to compute the same.
        suggestions: What names without partner may be on the other side.
        incomplete: In words, which of the two ended early or is damaged, so that a part of it could not be judged.
    """

    label: str
    step: int | None
    rank: int | None
    target: Path
    golden: Path
    mode: Mode
    num_rows: int
    nodes: Mapping[str, int]
    counts: Mapping[str, int]
    fault: Fault | None
    lone_call: Fault | None
    first_difference: str | None
    notes: Sequence[str]
    culprit: Culprit | None = None
    replicas: Sequence[ReplicaFinding] = ()
    is_foreign: bool = False
    suggestions: Sequence[Suggestion] = ()
    incomplete: Sequence[str] = ()

    @property
    def num_nodes(self) -> int:
        """How many entries."""
        return sum(self.nodes.values())

    @property
    def first_fault(self) -> Fault | None:
        """The culprit, or else the earlier of ``fault`` and ``lone_call``; between frameworks, the former."""
        if self.culprit is not None:
            return self.fault if self.culprit is Culprit.SHARED else self.lone_call
        if self.is_foreign and self.fault is not None:
            return self.fault
        found = [fault for fault in (self.fault, self.lone_call) if fault is not None]
        return min(found, key=lambda fault: fault.position, default=None)

    @property
    def agrees(self) -> bool:
        """Whether nothing differs, and all of the two could be judged."""
        return not self.differs and not self.incomplete

    @property
    def differs(self) -> bool:
        """Whether a row has no partner or is beyond its limit, or ranks have not alike what they should.

        Warnings do not count, and neither does what only one side has because the other ended early.
        """
        return bool(self.replicas or self.counts[Verdict.ERROR.value] or self.counts[Verdict.UNMATCHED.value])


@dataclass(frozen=True, kw_only=True)
class UnitResult(UnitSummary):
    """The comparison of one pair of dumps, with its rows.

    Attributes:
        rows: One row per pair of values, judged.
        entries: One row per entry, judged.
        stacks: Frames of the target by entry.
        golden_stacks: Likewise.
        parents: The enclosing call of each of the target's calls.
        golden_parents: Likewise.
        weigh: Returns what culprits are found by, computed once.
    """

    rows: pl.DataFrame
    entries: pl.DataFrame
    stacks: Mapping[str, Sequence[str]]
    golden_stacks: Mapping[str, Sequence[str]]
    parents: Mapping[str, str | None]
    golden_parents: Mapping[str, str | None]
    weigh: Callable[[], Evidence]

    def summary(self) -> UnitSummary:
        """Return it without its rows."""
        return UnitSummary(**{part.name: getattr(self, part.name) for part in fields(UnitSummary)})


@dataclass(frozen=True)
class UnitFiles:
    """Where the results of one unit are: its tables, that of the form asked for first, and the file of its calls."""

    tables: tuple[Path, ...]
    calls: Path | None = None


AnyUnit_co = TypeVar("AnyUnit_co", bound=UnitSummary, covariant=True)


@dataclass(frozen=True)
class ComparisonResult(Generic[AnyUnit_co]):
    """The comparison of two dumps, of two steps with their ranks, or of two runs with their steps.

    Attributes:
        target: As given.
        golden: As given.
        units: One per pair, by step and rank.
        missing: What was not compared, in words: steps and ranks that one side lacks, and those that cannot be read.
        limits: Those that rows were judged by.
        replicas: Values that ranks of the target should have alike and have not, in words.
        parted_first: Labels of the units that part first, see `msprobe_core.compare.divergence`, the earliest first.
    """

    target: Path
    golden: Path
    units: Sequence[AnyUnit_co]
    missing: Sequence[str] = field(default_factory=list[str])
    limits: LimitTable = field(default_factory=conventional)
    replicas: Sequence[str] = field(default_factory=list[str])
    parted_first: Sequence[str] = field(default_factory=list[str])

    @property
    def agrees(self) -> bool:
        """Whether nothing differs, and all of the two could be judged."""
        return not self.differs and not self.incomplete

    @property
    def differs(self) -> bool:
        """Whether a pair differs, or the target's ranks have not alike what they should."""
        return bool(self.replicas) or any(unit.differs for unit in self.units)

    @property
    def incomplete(self) -> Sequence[str]:
        """What could not be judged, in words: what was not compared, and which dumps ended early or are damaged."""
        return [*self.missing, *dict.fromkeys(line for unit in self.units for line in unit.incomplete)]

    @property
    def first_fault(self) -> tuple[AnyUnit_co, Fault] | None:
        """The first fault of the earliest step, and its unit; of several ranks, of that which parts first.

        Steps and ranks without a culprit, where the form of calls alone differs, count only if no other has one. Of
        those, between frameworks, calls without partner count only where nothing that has one is at fault in any step.
        """
        found = {unit.label: (unit, fault) for unit in self.units if (fault := unit.first_fault) is not None}
        of_pairs = {label: each for label, each in found.items() if not each[0].is_foreign or each[1].only_on is None}
        of_culprits = {label: each for label, each in found.items() if each[0].culprit is not None}
        found = of_culprits or of_pairs or found
        by_causality = next((found[label] for label in self.parted_first if label in found), None)
        return by_causality or min(
            found.values(),
            key=lambda pair: (pair[0].step or 0, pair[1].num_communications, pair[1].position),
            default=None,
        )
