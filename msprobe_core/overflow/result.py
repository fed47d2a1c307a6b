"""What a search for NaN and Inf has found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from msprobe_core.findings import Finding
from msprobe_core.overflow.values import NearEnd


class Kind(str, Enum):
    """What is to blame."""

    OPERATOR = "operator"
    BACKWARD = "backward of an operator"
    WEIGHT = "weight"
    DATA = "input data"
    UNRECORDED = "something that was not recorded"
    COMMUNICATION = "communication"
    UNINITIALISED = "uninitialised memory"
    CONSTANT = "constant"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A value of the call that is blamed.

    Attributes:
        name: Name of its row.
        role: Part of the call.
        dtype: Of a tensor; of a number, its type.
        shape: As text.
        max: ``None`` where there is none.
        min: Likewise.
        num_nan: ``None`` where nobody counted.
        num_inf: Likewise.
        is_finite: Whether it is; ``None`` where the dump does not say.
    """

    name: str
    role: str
    dtype: str
    shape: str
    max: float | None
    min: float | None
    num_nan: int | None
    num_inf: int | None
    is_finite: bool | None


@dataclass(frozen=True, kw_only=True)
class OverflowOrigin:
    """A place where values stop being finite.

    Attributes:
        rank: Where; ``None`` for a process outside of a job.
        entry: The call that made them, or was the first to get them.
        kind: What is to blame.
        value: Name of the value that is not finite.
        reason: What happened.
        advice: What to do next.
        command: To do so.
        harm: What became of it.
        evidence: Values of the call: first what is not finite, then inputs, then others.
        parents: Calls around it, the innermost first.
        stack: Where it was called from, the innermost frame first.
        layer: How many calls of communication the longest chain of causes before it has.
        ranks: All ranks that it came to.
        same_on: Other ranks that have one of the same name and kind.
    """

    rank: int | None
    entry: str
    kind: Kind
    value: str
    reason: Finding
    advice: Finding
    command: str
    harm: Finding
    evidence: Sequence[Evidence]
    parents: Sequence[str]
    stack: Sequence[str]
    layer: int
    ranks: Sequence[int]
    same_on: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class Harmless:
    """NaN or Inf that did no harm: meant, or finite again; ``reason`` is what became of it."""

    rank: int | None
    entry: str
    kind: Kind
    reason: Finding


@dataclass(frozen=True, kw_only=True)
class RankNote:
    """A finite value near the end of its range."""

    rank: int | None
    value: NearEnd


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What was found in one step.

    Attributes:
        step: Its number; ``None`` where only one was given.
        directory: Where it is.
        num_ranks: How many dumps were read.
        num_entries: How many calls they have.
        num_bad: How many of these have values that are not finite.
        first: The first places, on all ranks, those with the fewest exchanges before them first; of several, none can
            have come to bear on another.
        further: Other places, which may follow from the first or not, by depth.
        num_further: How many of them there are altogether.
        harmless: NaN and Inf that did no harm.
        num_harmless: How many of them there are altogether.
        near_end: Finite values near the end of their range.
        notes: What there is to say about the dumps, and what could not be matched.
        incomplete: What could not be searched: dumps that cannot be read, ended early or are damaged.
        dumps: Where the dump of each rank is; processes outside of a job are counted.
    """

    step: int | None
    directory: Path
    num_ranks: int
    num_entries: int
    num_bad: int
    first: Sequence[OverflowOrigin]
    further: Sequence[OverflowOrigin]
    num_further: int
    harmless: Sequence[Harmless]
    num_harmless: int
    near_end: Sequence[RankNote]
    notes: Sequence[Finding]
    incomplete: Sequence[Finding]
    dumps: Mapping[int, Path]

    @property
    def is_clean(self) -> bool:
        """Whether nothing harmful was found in what could be searched."""
        return not self.first


@dataclass(frozen=True, kw_only=True)
class OverflowResult:
    """What was found.

    Attributes:
        path: What was searched.
        steps: One result per step that was read, in their order; those behind the first that is not clean only say
            how many values are bad.
        unread: Steps that could not be searched, and ranks that steps lack.
    """

    path: Path
    steps: Sequence[StepResult]
    unread: Sequence[Finding] = ()

    @property
    def incomplete(self) -> Sequence[Finding]:
        """What could not be searched."""
        return [*(line for step in self.steps for line in step.incomplete), *self.unread]

    @property
    def first(self) -> StepResult | None:
        """The first step with an origin; ``None`` if all are clean."""
        return next((step for step in self.steps if not step.is_clean), None)
