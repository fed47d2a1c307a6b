"""The results of a comparison: of one pair of dumps, and of all pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from msprobe_core.compare.shards.findings import ReplicaFinding
from msprobe_core.compare.suggest import Suggestion
from msprobe_core.findings import Finding, each_once
from msprobe_core.judge.fault import Culprit, Fault
from msprobe_core.judge.limits import LimitTable, conventional
from msprobe_core.judge.verdict import Verdict

if TYPE_CHECKING:
    import polars as pl

    from msprobe_core.judge.evidence import Evidence
    from msprobe_core.store.stored_rows import Rows


class Mode(str, Enum):
    """What can be compared of a pair of dumps."""

    STATISTICS = "statistics"
    CHECKSUM = "md5"
    TENSOR = "tensor"
    STRUCTURE = "structure"


@dataclass(frozen=True, kw_only=True)
class UnitSummary:
    """The result of comparing one pair of dumps, without its rows: small enough for thousands of ranks.

    Attributes:
        label: ``rank0`` or ``proc123``; with several steps ``step0/rank0``; empty for two single dumps.
        step: Step of the target; ``None`` if only one step was given.
        rank: Rank of the target; ``None`` outside a distributed job.
        target: Path of the target dump.
        golden: Path of the golden dump.
        mode: What was compared.
        num_rows: Number of pairs of values, and of values that only one side has.
        nodes: Number of entries by verdict.
        counts: Number of rows by verdict, and of rows that only one side has, by side.
        fault: The first call that both sides have and that disagrees; ``None`` if there is none.
        lone_call: The first call that only one side has; ``None`` if there is none.
        culprit: Which of the two is where the dumps diverge first, as in `msprobe_core.locate`; ``None`` if only the
            form of calls differs.
        given_wrong: See `msprobe_core.judge.fault.Faults`.
        first_difference: Row name of the first pair that differs at all, even within its limit.
        note_findings: Notes on the dumps themselves.
        replicas: Values that ranks should have in common but that differ, if the dumps of several ranks were merged.
        is_foreign: Whether the dumps are from different frameworks, which make different calls to compute the same.
        suggestions: Possible partners of names without a partner.
        incomplete_findings: Dumps that ended early or are damaged, so that a part of them could not be judged.
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
    note_findings: Sequence[Finding]
    culprit: Culprit | None = None
    given_wrong: Sequence[str] = field(default_factory=list[str])
    replicas: Sequence[ReplicaFinding] = ()
    is_foreign: bool = False
    suggestions: Sequence[Suggestion] = ()
    incomplete_findings: Sequence[Finding] = ()

    @property
    def notes(self) -> Sequence[str]:
        """What there is to say about the dumps themselves, in words."""
        return [finding.text for finding in self.note_findings]

    @property
    def incomplete(self) -> Sequence[str]:
        """Which of the two ended early or is damaged, in words."""
        return [finding.text for finding in self.incomplete_findings]

    @property
    def num_nodes(self) -> int:
        """Number of entries."""
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
        """Whether nothing differs and both dumps could be judged completely."""
        return not self.differs and not self.incomplete_findings

    @property
    def differs(self) -> bool:
        """Whether a row has no partner or is beyond its limit, or values differ that ranks should have in common.

        Warnings do not count, and neither do calls that only one side has because the other ended early.
        """
        return bool(self.replicas or self.counts[Verdict.ERROR.value] or self.counts[Verdict.UNMATCHED.value])


@dataclass(frozen=True, kw_only=True)
class UnitResult(UnitSummary):
    """The result of comparing one pair of dumps, with its rows.

    Attributes:
        judged: Judged rows, one per pair of values.
        calls: Judged entries, one row each.
        stacks: Stack frames of the target's calls, by entry.
        golden_stacks: Stack frames of the golden dump's calls, by entry.
        parents: The enclosing call of each of the target's calls.
        golden_parents: The enclosing call of each of the golden dump's calls.
        weigh: Returns the evidence from which culprits are found; it is computed once.
    """

    judged: Rows
    calls: Rows
    stacks: Mapping[str, Sequence[str]]
    golden_stacks: Mapping[str, Sequence[str]]
    parents: Mapping[str, str | None]
    golden_parents: Mapping[str, str | None]
    weigh: Callable[[], Evidence]

    @property
    def rows(self) -> pl.DataFrame:
        """All rows, in memory."""
        from msprobe_core.store.stored_rows import frame_of  # imports polars, which the command line does not need

        return frame_of(self.judged)

    @property
    def entries(self) -> pl.DataFrame:
        """All judged entries, in memory."""
        from msprobe_core.store.stored_rows import frame_of  # see above

        return frame_of(self.calls)

    def summary(self) -> UnitSummary:
        """Return the result without its rows."""
        return UnitSummary(**{part.name: getattr(self, part.name) for part in fields(UnitSummary)})


@dataclass(frozen=True)
class UnitFiles:
    """Paths of the results of one unit: its tables, the requested format first, and the file of its calls."""

    tables: tuple[Path, ...]
    calls: Path | None = None


AnyUnit = TypeVar("AnyUnit", bound=UnitSummary)
AnyUnit_co = TypeVar("AnyUnit_co", bound=UnitSummary, covariant=True)


def decisive(units: Iterable[AnyUnit]) -> list[tuple[AnyUnit, Fault]]:
    """Return the units among which the first to diverge is, each with its first fault.

    Units without a culprit, in which only the form of calls differs, count only if no other unit has one. Of those,
    between frameworks, calls without a partner count only if no call with a partner is at fault in any unit.
    """
    found = [(unit, fault) for unit in units if (fault := unit.first_fault) is not None]
    of_pairs = [(unit, fault) for unit, fault in found if not unit.is_foreign or fault.only_on is None]
    of_culprits = [(unit, fault) for unit, fault in found if unit.culprit is not None]
    return of_culprits or of_pairs or found


@dataclass(frozen=True)
class ComparisonResult(Generic[AnyUnit_co]):
    """The comparison of two dumps, of two steps with their ranks, or of two runs with their steps.

    Attributes:
        target: Path of the target, as given.
        golden: Path of the golden run, as given.
        units: One result per pair, by step and rank.
        missing_findings: What was not compared: steps and ranks that one side lacks, and those that cannot be read.
        limits: The limits that rows were judged by.
        replica_findings: Values that ranks of the target should have in common but that differ.
        parted_first: Labels of the units that diverge first, see `msprobe_core.compare.divergence`, the earliest first.
    """

    target: Path
    golden: Path
    units: Sequence[AnyUnit_co]
    missing_findings: Sequence[Finding] = field(default_factory=list["Finding"])
    limits: LimitTable = field(default_factory=conventional)
    replica_findings: Sequence[Finding] = field(default_factory=list["Finding"])
    parted_first: Sequence[str] = field(default_factory=list[str])

    @property
    def agrees(self) -> bool:
        """Whether nothing differs and both sides could be judged completely."""
        return not self.differs and not self.incomplete

    @property
    def differs(self) -> bool:
        """Whether a pair differs, or values differ that the target's ranks should have in common."""
        return bool(self.replica_findings) or any(unit.differs for unit in self.units)

    @property
    def missing(self) -> Sequence[str]:
        """Messages about what was not compared."""
        return [finding.text for finding in self.missing_findings]

    @property
    def replicas(self) -> Sequence[str]:
        """Messages about values that ranks of the target should have in common but that differ."""
        return [finding.text for finding in self.replica_findings]

    @property
    def incomplete_findings(self) -> Sequence[Finding]:
        """What was not compared, and dumps that ended early or are damaged."""
        return [*self.missing_findings, *each_once(each for unit in self.units for each in unit.incomplete_findings)]

    @property
    def incomplete(self) -> Sequence[str]:
        """What could not be judged, in words."""
        return [finding.text for finding in self.incomplete_findings]

    @property
    def first_fault(self) -> tuple[AnyUnit_co, Fault] | None:
        """The first fault of the earliest step, and its unit; of several ranks, that of the rank that diverges first.

        See `decisive` for the units that count.
        """
        found = {unit.label: (unit, fault) for unit, fault in decisive(self.units)}
        by_causality = next((found[label] for label in self.parted_first if label in found), None)
        return by_causality or min(
            found.values(),
            key=lambda pair: (pair[0].step or 0, pair[1].num_communications, pair[1].position),
            default=None,
        )
