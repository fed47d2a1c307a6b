"""Result of a search for the first fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from msprobe_core.config_check.differences import Difference, SectionResult
from msprobe_core.confirm import Confirmation
from msprobe_core.findings import Finding
from msprobe_core.model import Phase


class LocateVerdict(str, Enum):
    """Verdict of a search."""

    AGREE = "agree"
    FAULT = "fault"
    INSUFFICIENT = "insufficient"


class FaultKind(str, Enum):
    """Kind of fault that the evidence indicates."""

    PARAMETER = "wrong parameter"
    INPUT_DATA = "wrong input data"
    ARGUMENT = "other argument"
    EPSILON = "other epsilon"
    SCALE = "scale"
    PRECISION = "precision cast"
    MASK = "mask"
    RANDOMNESS = "random numbers"
    DECISION = "discrete decision"
    EXTRA_CALL = "extra call"
    MISSING_CALL = "missing call"
    COMPUTATION = "computation"
    NON_FINITE = "NaN or Inf"
    GRADIENT = "gradient only"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    REPLICAS = "replicas differ"
    OUTSIDE = "outside of what was recorded"


class Precondition(str, Enum):
    """Property that has to be equal in two runs for a meaningful comparison."""

    CONFIGURATION = "configuration"
    WEIGHTS = "initial weights"
    DATA = "input data"
    RANDOMNESS = "random numbers"
    DECISIONS = "discrete decisions"


class CheckState(str, Enum):
    """State of one precondition."""

    HOLDS = "holds"
    DIFFERS = "differs"
    UNKNOWN = "unknown"


class Strength(str, Enum):
    """Strength of evidence, by how far it exceeds what rounding explains."""

    STRONG = "strong"
    MODERATE = "moderate"
    WEAK = "weak"


STRONG_EXCESS, MODERATE_EXCESS = 10.0, 2.0
"""Minimum excess for strong and for moderate evidence."""


@dataclass(frozen=True)
class Check:
    """A precondition of comparing two runs, such as equal initial weights.

    Attributes:
        name: The precondition.
        state: Its state.
        detail: Finding with the first place where it does not hold.
    """

    name: Precondition
    state: CheckState
    detail: Finding


class Degree(str, Enum):
    """Whether a difference of two configurations explains a fault, the strongest first."""

    YES = "yes"
    MAYBE = "maybe"
    NO = "no"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Whether a difference explains a fault.

    Attributes:
        degree: Whether it does.
        finding: The same in words, with the reason.
        closeness: How specific the reason is: 2 for a setting of the located module, 1 for one that acts on this sort
            of call, 0 otherwise. Orders explanations of the same degree.
    """

    degree: Degree
    finding: Finding
    closeness: int = 0


@dataclass(frozen=True, kw_only=True)
class Explained:
    """A difference, and whether it explains the fault.

    Attributes:
        difference: The difference.
        explanation: Whether it explains the fault; ``None`` if there is no fault.
    """

    difference: Difference
    explanation: Explanation | None = None


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The configurations of two runs, compared.

    Attributes:
        check: Whether they are equal.
        sections: What was compared, by section, over all ranks; empty if nothing could be.
        explained: All differences, those that explain the fault first.
        num_ranks: Number of ranks compared.
    """

    check: Check
    sections: Sequence[SectionResult] = ()
    explained: Sequence[Explained] = ()
    num_ranks: int = 0

    @property
    def cause(self) -> Explained | None:
        """The first difference, if it explains the fault."""
        first = next(iter(self.explained), None)
        is_cause = first is not None and first.explanation is not None and first.explanation.degree is Degree.YES
        return first if is_cause else None


@dataclass(frozen=True)
class Decision:
    """A call that takes discrete decisions, such as ``topk``, and took different ones in the target.

    Attributes:
        step: Number of the step; ``None`` if only one was given.
        rank: Number of the rank; ``None`` outside of a job.
        row: Name of the value.
        rate: Share of different elements; ``None`` if the dumps have no whole tensors.
    """

    step: int | None
    rank: int | None
    row: str
    rate: float | None


@dataclass(frozen=True)
class EvidenceRow:
    """One value as evidence.

    Attributes:
        row: Name of its row.
        findings: Findings on it; empty if there are none.
        score: Its error in units of what rounding explains; ``None`` if that is unknown.
        limit: Score above which it is a fault.
    """

    row: str
    findings: Sequence[Finding]
    score: float | None
    limit: float | None


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A place where the fault may be.

    Attributes:
        step: Number of the step; ``None`` if only one was given.
        ranks: The ranks that show it; empty outside of a job.
        micro_step: Number of the micro-step in the step, from 0; ``None`` if no module encloses it.
        entry: Entry name in the dump of the side that has it.
        only_on: The side that has it, ``target`` or ``golden``, if the other lacks it.
        module: Dotted path of the innermost module that it is, or is in; empty for the outermost module, ``None``
            outside of all modules.
        phase: Forward, backward, gradients of parameters.
        kind: Kind of fault.
        score: Largest error of its outputs, in units of what rounding explains; infinite for values without rounding.
        limit: Score above which it is a fault.
        excess: The error divided by its limit.
        input_score: Largest error of its inputs, in the same units as ``score``.
        reason: Why it is suspected.
        evidence: Its values, the largest differences first.
        parents: Names of the enclosing calls, innermost first.
        stack: Frames of the call, innermost first; empty if unknown.
        position: Its index among the calls of its rank.
        seen_at: The later call at which the error exceeds rounding; ``None`` if that is this one.
        advice: What to run or to do next; ``None`` until `msprobe_core.locate.commands.with_advice` has added it.
        num_alike: Number of further calls of the same kind with the same fault.
        golden_entry: Entry name in the golden run's dump, if both sides have it.
        confirmation: Which side is wrong, by replay; ``None`` if it was not replayed.
        about: The parameter that a call of an optimizer updates, which its name does not contain.
        beside: For a call that only the golden dump has, the target's entry that would precede it.
        num_communications: Number of communication calls that its rank has finished before it.
    """

    step: int | None
    ranks: Sequence[int]
    micro_step: int | None = None
    entry: str
    only_on: str | None = None
    module: str | None = None
    phase: Phase | None
    kind: FaultKind
    score: float
    limit: float = 1.0
    excess: float
    input_score: float = 0.0
    reason: Finding
    evidence: Sequence[EvidenceRow]
    parents: Sequence[str] = ()
    stack: Sequence[str] = ()
    position: int
    seen_at: str | None = None
    advice: Finding | None = None
    num_alike: int = 0
    about: str | None = None
    golden_entry: str | None = None
    confirmation: Confirmation | None = None
    beside: str | None = None
    num_communications: int = 0

    @property
    def strength(self) -> Strength:
        """Strength of the evidence."""
        if self.excess >= STRONG_EXCESS:
            return Strength.STRONG
        return Strength.MODERATE if self.excess >= MODERATE_EXCESS else Strength.WEAK


@dataclass(frozen=True)
class LocateResult:
    """Result of a search.

    Attributes:
        target: Path of the target run.
        golden: Path of the golden run.
        verdict: Whether there is a fault.
        noise: The measure of noise for errors.
        checks: The preconditions.
        decisions: The first discrete decisions that differ, in execution order.
        num_decisions: Number of all such decisions.
        suspects: Suspects, the strongest first, at most ten.
        examined: Which steps and ranks were examined, and which were left out.
        num_nodes: Number of judged calls.
        num_flagged: How many of them have an error that rounding does not explain.
        notes: Notes on the dumps.
        incomplete: What could not be examined: missing dumps, and dumps that ended early or are damaged.
        configuration: The configurations, compared; ``None`` if that was not asked for.
    """

    target: Path
    golden: Path
    verdict: LocateVerdict
    noise: Finding
    checks: Sequence[Check]
    decisions: Sequence[Decision]
    num_decisions: int
    suspects: Sequence[Suspect]
    examined: Finding
    num_nodes: int
    num_flagged: int
    notes: Sequence[Finding] = ()
    incomplete: Sequence[Finding] = ()
    configuration: Configuration | None = None
