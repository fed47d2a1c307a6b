"""What a search for the first fault comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from msprobe_core.confirm import Confirmation
from msprobe_core.findings import Finding
from msprobe_core.model import Phase


class LocateVerdict(str, Enum):
    """What a search ends in."""

    AGREE = "agree"
    FAULT = "fault"
    INSUFFICIENT = "insufficient"


class FaultKind(str, Enum):
    """What sort of fault the evidence speaks for."""

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
    """What must be the same in two runs before they can be compared."""

    CONFIGURATION = "configuration"
    WEIGHTS = "initial weights"
    DATA = "input data"
    RANDOMNESS = "random numbers"
    DECISIONS = "discrete decisions"


class CheckState(str, Enum):
    """What became of one precondition."""

    HOLDS = "holds"
    DIFFERS = "differs"
    UNKNOWN = "unknown"


class Strength(str, Enum):
    """How far the evidence is from what rounding could do."""

    STRONG = "strong"
    MODERATE = "moderate"
    WEAK = "weak"


STRONG_EXCESS, MODERATE_EXCESS = 10.0, 2.0
"""From how many times what is still allowed on evidence is called so."""


@dataclass(frozen=True)
class Check:
    """A precondition of comparing two runs at all, such as equal initial weights.

    Attributes:
        name: What was checked.
        state: What came of it.
        detail: With the first place where it does not hold.
    """

    name: Precondition
    state: CheckState
    detail: Finding


@dataclass(frozen=True)
class Decision:
    """A call that takes discrete decisions, such as ``topk``, and took others in the target.

    Attributes:
        step: Number of the step; ``None`` where only one was given.
        rank: Number of the rank; ``None`` outside of a job.
        row: Name of the value.
        rate: Share of elements that are another; ``None`` where the dumps hold no whole tensors.
    """

    step: int | None
    rank: int | None
    row: str
    rate: float | None


@dataclass(frozen=True)
class EvidenceRow:
    """One value as evidence.

    Attributes:
        row: Its name.
        findings: What is wrong with it; empty if nothing is.
        score: Its error in units of what rounding explains; ``None`` where that cannot be said.
        limit: What the score must exceed to be a fault.
    """

    row: str
    findings: Sequence[Finding]
    score: float | None
    limit: float | None


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A place where the fault may be.

    Attributes:
        step: Number of the step; ``None`` where only one was given.
        ranks: The ranks that show it; empty outside of a job.
        micro_step: Which micro-batch of the step, from 0; ``None`` where no module encloses it.
        entry: Its name, as in the dump of the side that has it.
        only_on: The side that has it, ``target`` or ``golden``, where the other lacks it.
        module: Dotted path of the innermost module that it is, or is in; empty for the outermost module, ``None``
            outside of all modules.
        phase: Forward, backward, gradients of parameters.
        kind: What sort of fault.
        score: Largest error of what it made, in units of what rounding explains; infinite where no rounding does.
        limit: What the score must exceed.
        excess: The error in units of what is still allowed.
        input_score: The same of what it was given.
        reason: Why it is suspected.
        evidence: Its values, those that differ most first.
        parents: Names of the calls that enclose it, innermost first.
        stack: Frames of the call, innermost first; empty if unknown.
        position: Its place among the calls of its rank.
        seen_at: The later call at which the error is beyond rounding; ``None`` where that is this one.
        advice: What to run or to do next; ``None`` until `msprobe_core.locate.commands.with_advice` has added it.
        num_alike: How many further calls of the same kind are wrong in the same way.
        golden_entry: What the golden run's dump calls it, where both have it.
        confirmation: Who is wrong, by making the call again; ``None`` if that was not asked.
        about: What the call is about, where its name does not tell: the parameter that an optimizer updates.
        beside: Of a call that only the golden dump has, the entry of the target that would be before it.
    """

    step: int | None
    ranks: Sequence[int]
    micro_step: int | None
    entry: str
    only_on: str | None
    module: str | None
    phase: Phase | None
    kind: FaultKind
    score: float
    limit: float
    excess: float
    input_score: float
    reason: Finding
    evidence: Sequence[EvidenceRow]
    parents: Sequence[str]
    stack: Sequence[str]
    position: int
    seen_at: str | None = None
    advice: Finding | None = None
    num_alike: int = 0
    about: str | None = None
    golden_entry: str | None = None
    confirmation: Confirmation | None = None
    beside: str | None = None

    @property
    def strength(self) -> Strength:
        """How strong the evidence is."""
        if self.excess >= STRONG_EXCESS:
            return Strength.STRONG
        return Strength.MODERATE if self.excess >= MODERATE_EXCESS else Strength.WEAK


@dataclass(frozen=True)
class LocateResult:
    """What was found.

    Attributes:
        target: The run under test.
        golden: The trusted run.
        verdict: Whether there is a fault.
        noise: Against what errors were held.
        checks: The preconditions.
        decisions: Discrete decisions that fell otherwise, in execution order, the first ones.
        num_decisions: How many there are.
        suspects: The best first, ten at the most.
        examined: What was looked at: steps and ranks, and which were left out.
        num_nodes: Calls that were judged.
        num_flagged: Those of them with an error that rounding does not explain.
        notes: What there is to say about the dumps.
        incomplete: What could not be looked at: what is missing, and which dumps ended early or are damaged.
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
