"""Result of a search for NaN and Inf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from msprobe_core.findings import Finding
from msprobe_core.overflow.values import NearEnd


class Kind(str, Enum):
    """Kind of cause."""

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
    """A value of the suspected call.

    Attributes:
        name: Name of its row.
        role: Role in the call.
        dtype: Dtype of a tensor, or type of a number.
        shape: Shape as text.
        max: Maximum; ``None`` if unknown.
        min: Minimum; ``None`` if unknown.
        num_nan: Number of NaN; ``None`` if not counted.
        num_inf: Number of Inf; ``None`` if not counted.
        is_finite: Whether all elements are finite; ``None`` if unknown.
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
    """A place where values cease to be finite.

    Attributes:
        rank: Its rank; ``None`` for a process outside of a job.
        entry: The call that made them, or the first one with them as input.
        kind: Kind of cause.
        value: Name of the value that is not finite.
        reason: What happened.
        advice: What to do next.
        command: Command for the advice.
        harm: Its impact.
        evidence: Values of the call: those that are not finite, then inputs, then others.
        parents: Enclosing calls, innermost first.
        stack: Stack of the call, innermost frame first.
        layer: Number of communication calls in the longest causal chain before it.
        ranks: All ranks that the values reached.
        same_on: Other ranks with an origin of the same name and kind.
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
    """NaN or Inf without harm: intended, or finite again; ``reason`` is the impact."""

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
    """Result for one step.

    Attributes:
        step: Its number; ``None`` if only one was given.
        directory: Its directory.
        num_ranks: Number of dumps read.
        num_entries: Number of their calls.
        num_bad: How many of these have values that are not finite.
        first: The first places, on all ranks, those with the fewest exchanges before them first; none can have caused
            another.
        further: Other places, which may or may not follow from the first, by depth.
        num_further: Number of all such places.
        harmless: NaN and Inf without harm.
        num_harmless: Number of all such places.
        near_end: Finite values near the end of their range.
        notes: Notes on the dumps, and on communication that could not be matched.
        incomplete: What could not be searched: dumps that cannot be read, ended early or are damaged.
        dumps: Dump of each rank; processes outside of a job are counted.
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
    """Result of a search.

    Attributes:
        path: The searched path.
        steps: One result per step that was read, in order.
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
