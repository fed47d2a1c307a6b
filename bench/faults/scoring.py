"""Score answers against the truth."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bench.faults.answers import Answer, Nesting, Suspect
from bench.faults.truth import Fault, Truth

_MODULE = re.compile(r"^(?:Module|Cell)\.(?:(?P<path>.*)\.)?[^.]+\.(?:forward|backward|parameters_grad)(?:\.\d+)?$")
_WRAPPER = re.compile(r"^module(\.|$)")
GROUPS = ("optimizer", "clip_grad")


@dataclass(frozen=True)
class Score:
    """Score of an answer.

    Attributes:
        detected: Whether it reports a fault.
        is_first: Whether its first suspect is right.
        is_in_top_five: Whether one of its first five suspects is right.
        is_kind: Whether the right suspect has the right kind.
    """

    detected: bool
    is_first: bool
    is_in_top_five: bool
    is_kind: bool


def score(answer: Answer, fault: Fault, truth: Truth, nesting: Nesting) -> Score:
    """Score the answer to a planted fault."""
    detected = answer.verdict not in {"agree", "failed"}
    right = [is_right(suspect, truth, nesting) for suspect in answer.suspects[:5]] if detected else []
    place = right.index(True) if True in right else None
    kinds = {kind.value for kind in fault.kinds}
    is_kind = place is not None and answer.suspects[place].kind in kinds
    return Score(detected, place == 0, place is not None, is_kind)


def is_right(suspect: Suspect, truth: Truth, nesting: Nesting) -> bool:
    """Return whether a suspect is at the fault, as `Truth` defines it."""
    if truth.steps and suspect.step is not None and suspect.step not in truth.steps:
        return False
    if truth.ranks and not set(suspect.ranks) <= set(truth.ranks):
        return False
    if truth.directions and direction_of(suspect.entry) not in truth.directions:
        return False
    chain = list(nesting.chain(suspect))
    groups = [name for name in chain if name in GROUPS]
    if groups:
        return groups[0] in truth.groups
    module = next((path for name in chain if (path := module_path(name)) is not None), None)
    if module is not None:
        return module in truth.modules
    return suspect.entry.startswith(tuple(truth.calls)) if truth.calls else False


def module_path(entry: str) -> str | None:
    """Return the path of an entry's module, without the wrapper of a parallel layout; ``None`` if it is no module."""
    match = _MODULE.match(entry)
    return None if match is None else _WRAPPER.sub("", match["path"] or "")


def direction_of(entry: str) -> str:
    """Return ``forward`` or ``backward``."""
    return "backward" if re.search(r"\.(backward|parameters_grad)(\.|$)", entry) else "forward"


@dataclass(frozen=True)
class Case:
    """Answer of one debugger to one planted fault.

    Attributes:
        tool: Name of the debugger.
        family: Family of programs: the architecture, or the parallel layout.
        dtype: Dtype of the model.
        split: ``tune`` or ``report``.
        pair: ``other`` if the target runs on other kernels, ``same`` if not.
        fault: Name of the fault.
        phase: Phase of the fault.
        truth: Location of the fault.
        applicable: Whether it changes anything at all: outputs, losses, gradients or weights.
        score: Score of the answer; ``None`` if not applicable.
        answer: The answer; ``None`` if not applicable.
    """

    tool: str
    family: str
    dtype: str
    split: str
    pair: str
    fault: str
    phase: str
    truth: Truth
    applicable: bool
    score: Score | None = None
    answer: Answer | None = None


@dataclass(frozen=True)
class HealthyCase:
    """Answer of one debugger to a healthy pair."""

    tool: str
    family: str
    dtype: str
    split: str
    name: str
    answer: Answer


def share(cases: Sequence[Case], what: str) -> str:
    """Return a share in percent of cases with a property of their score."""
    scores = [case.score for case in cases if case.score is not None]
    return f"{100 * sum(getattr(one, what) for one in scores) / len(scores):.0f} %" if scores else "-"
