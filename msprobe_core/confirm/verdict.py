"""The result of a confirmation, and how it follows from the judgements of both sides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from msprobe_core.confirm.confirm_codes import ConfirmCode
from msprobe_core.findings import Field, Finding
from msprobe_core.replay.judge import ILL_CONDITIONED, Held, OutputJudgement, relative_difference
from msprobe_core.replay.recorded import RecordedCall


class Verdict(str, Enum):
    """Which side is wrong."""

    TARGET = "target"
    GOLDEN = "golden"
    BOTH = "both"
    NEITHER = "neither"
    ILL_CONDITIONED = "ill_conditioned"
    CANNOT_TELL = "cannot_tell"


class Cause(str, Enum):
    """Where a difference comes from, as far as the call shows it."""

    COMPUTATION = "computation"  # the recorded result is not what the inputs give
    ARGUMENTS = "arguments"  # the two calls had different arguments that are not tensors
    INPUTS = "inputs"  # the input tensors already differ
    CONDITION = "condition"  # round-off in the inputs was amplified
    NONE = "none"  # there is no difference to explain
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side's call, compared with the float64 replay of its own inputs.

    Attributes:
        outputs: One judgement per output; empty if the call could not be replayed.
        problem: Why the call could not be replayed; ``None`` if it was.
        note: A finding about the replay.
        is_incomplete: Whether it could not be replayed because the dump does not contain the complete call.
        script_command: The command that writes a script of the call, which shows that it is wrong; ``None`` if it is
            not, or if no script can be written.
    """

    outputs: Sequence[OutputJudgement] = ()
    problem: Finding | None = None
    note: Finding | None = None
    is_incomplete: bool = False
    script_command: str | None = None

    @property
    def held(self) -> Held | None:
        """The worst verdict among the outputs."""
        found = {output.held for output in self.outputs}
        return next((held for held in (Held.WRONG, Held.CONDITION, Held.RIGHT) if held in found), None)

    @property
    def worst(self) -> OutputJudgement | None:
        """The output with the largest error among those with the worst verdict."""
        held = self.held
        decisive = [output for output in self.outputs if output.held is held]
        return max(decisive, key=lambda output: output.error, default=None)


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """The verdict on one call, and its reason.

    Attributes:
        verdict: Which side is wrong.
        cause: Where the difference comes from.
        entry: The call that the verdict refers to: the requested one, or the first wrong one inside it.
        asked: The requested call.
        reason: The reason, with the figures that decide.
        target: The target's call; ``None`` if it was not examined.
        golden: The golden run's call; ``None`` if it was not examined.
        output_difference: Largest relative difference of the recorded outputs of the two sides; ``None`` if unknown.
        input_difference: Largest relative difference of the inputs; ``None`` if unknown.
        looked_at: Calls inside a module that were confirmed one by one, with their verdicts.
        notes: Further findings.
        is_incomplete: Whether a more complete dump might decide.
        next_command: The command to run next; ``None`` if there is none.
        next_config: Configuration that records what is missing, as JSON text; ``None`` if nothing is missing.
    """

    verdict: Verdict
    cause: Cause
    entry: str
    asked: str
    reason: Finding
    target: Side | None = None
    golden: Side | None = None
    output_difference: float | None = None
    input_difference: float | None = None
    looked_at: Sequence[tuple[str, Verdict]] = ()
    notes: Sequence[Finding] = ()
    is_incomplete: bool = False
    next_command: Finding | None = None
    next_config: str | None = None


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Both sides of one call, and how they differ.

    Attributes:
        arguments: Differences of scalar arguments, and of the shapes and dtypes of tensor arguments.
        outputs: Relative difference of the recorded outputs.
        inputs: Relative difference of the recorded inputs.
        roundoff: Unit round-off of the inputs.
    """

    target: Side
    golden: Side
    arguments: Sequence[Finding]
    outputs: float | None
    inputs: float | None
    roundoff: float


def differing_arguments(target: RecordedCall, golden: RecordedCall) -> list[Finding]:
    """Return the arguments in which the two calls differ."""
    found: list[Finding] = []
    for path in dict.fromkeys((*target.scalars, *golden.scalars)):
        mine, other = target.scalars.get(path), golden.scalars.get(path)
        if mine == other:
            continue
        if mine and other:
            found.append(Finding(ConfirmCode.ARGUMENT, fields={"argument": path, "target": mine, "golden": other}))
        elif mine:
            found.append(Finding(ConfirmCode.ARGUMENT_OF_TARGET, fields={"argument": path, "target": mine}))
        else:
            found.append(Finding(ConfirmCode.ARGUMENT_OF_GOLDEN, fields={"argument": path, "golden": other}))
    return found


def largest_difference(target: Mapping[str, object], golden: Mapping[str, object]) -> float | None:
    """Return the largest relative difference of the tensors that both sides have; ``None`` if there are none."""
    found = [
        relative_difference(target[path], golden[path])  # pyright: ignore[reportArgumentType]
        for path in target
        if path in golden
    ]
    known = [difference for difference in found if difference is not None]
    return max(known, default=None)


def decide(pair: Pair) -> tuple[Verdict, Cause, Finding]:
    """Return the verdict, the cause and the reason."""
    target, golden = pair.target, pair.golden
    if target.held is None or golden.held is None:
        return _decide_alone(pair)
    wrong = [name for name, side in _named(pair) if side.held is Held.WRONG]
    if len(wrong) == 2:
        return _decide_both(pair)
    if wrong:
        sides = sorted(_named(pair), key=lambda named: named[0] not in wrong)
        return Verdict(wrong[0]), Cause.COMPUTATION, together(_judged(name, side) for name, side in sides)
    if pair.arguments:
        return Verdict.CANNOT_TELL, Cause.ARGUMENTS, _asked_otherwise(pair)
    if Held.CONDITION in (target.held, golden.held):
        name, side = next((name, side) for name, side in _named(pair) if side.held is Held.CONDITION)
        return Verdict.ILL_CONDITIONED, Cause.CONDITION, _judged(name, side)
    return _decide_right(pair)


def _decide_right(pair: Pair) -> tuple[Verdict, Cause, Finding]:
    """Decide if both sides computed their inputs right, so that the outputs differ because the inputs do."""
    worst = pair.golden.worst
    difference, inputs = pair.outputs, pair.inputs
    if worst is None or difference is None:
        return Verdict.NEITHER, Cause.NONE, Finding(ConfirmCode.BOTH_RIGHT)
    figures: dict[str, Field] = {"difference": difference, "inputs": inputs}
    same = Finding(ConfirmCode.BOTH_SAME, fields=figures)
    gain = worst.amplification or 0.0
    if difference <= 2 * worst.last_digit:
        return Verdict.NEITHER, Cause.NONE, same
    if inputs and pair.roundoff and gain >= ILL_CONDITIONED and inputs <= _NOISE * pair.roundoff:
        explained = gain * max(inputs, pair.roundoff)
        if difference <= _SLACK * explained:
            figures |= {"condition": worst.condition, "gain": gain}
            return Verdict.ILL_CONDITIONED, Cause.CONDITION, Finding(ConfirmCode.ROUNDING_AMPLIFIED, fields=figures)
    if difference <= 2 * worst.rounding:
        return Verdict.NEITHER, Cause.NONE, same
    if not inputs:
        return Verdict.CANNOT_TELL, Cause.UNKNOWN, Finding(ConfirmCode.INPUT_UNRECORDED, fields=figures)
    return Verdict.NEITHER, Cause.INPUTS, Finding(ConfirmCode.CAME_IN, fields=figures)


_NOISE = 64.0
"""Largest difference of the inputs, in units of round-off, that may be round-off itself."""

_SLACK = 4.0
"""Tolerance factor: the disturbed replays are few, and round-off in the inputs is less uniform than theirs."""


def _decide_both(pair: Pair) -> tuple[Verdict, Cause, Finding]:
    target, golden = pair.target.worst, pair.golden.worst
    assert target is not None
    assert golden is not None
    difference = pair.outputs
    if difference is not None and difference <= 0.1 * max(target.error, golden.error):
        figures = {"error": target.error, "difference": difference}
        return Verdict.CANNOT_TELL, Cause.UNKNOWN, Finding(ConfirmCode.BOTH_OFF_ALIKE, fields=figures)
    return Verdict.BOTH, Cause.COMPUTATION, together(_judged(name, side) for name, side in _named(pair))


def _decide_alone(pair: Pair) -> tuple[Verdict, Cause, Finding]:
    judged = [(name, side) for name, side in _named(pair) if side.held is not None]
    for name, side in judged:
        if side.held is Held.WRONG:
            return Verdict(name), Cause.COMPUTATION, together([_judged(name, side), *_not_replayed(pair)])
    known = [_judged(name, side) for name, side in judged[:1]]
    return Verdict.CANNOT_TELL, Cause.UNKNOWN, together([*_not_replayed(pair), *known])


def _not_replayed(pair: Pair) -> list[Finding]:
    problems = {name: side.problem for name, side in _named(pair) if side.problem is not None}
    if len(problems) == 2 and problems["target"] == problems["golden"]:
        return [Finding(ConfirmCode.NEITHER_REPLAYED, fields={"problem": problems["target"]})]
    return [Finding(_NOT_REPLAYED[name], fields={"problem": problem}) for name, problem in problems.items()]


def _asked_otherwise(pair: Pair) -> Finding:
    first, *more = pair.arguments
    if more:
        return Finding(ConfirmCode.ASKED_OTHERWISE_OFTEN, fields={"argument": first, "more": len(more)})
    return Finding(ConfirmCode.ASKED_OTHERWISE, fields={"argument": first})


def _named(pair: Pair) -> list[tuple[str, Side]]:
    return [("target", pair.target), ("golden", pair.golden)]


_NOT_REPLAYED = {"target": ConfirmCode.TARGET_NOT_REPLAYED, "golden": ConfirmCode.GOLDEN_NOT_REPLAYED}
_WRONG = {"target": ConfirmCode.TARGET_WRONG, "golden": ConfirmCode.GOLDEN_WRONG}
_RIGHT = {"target": ConfirmCode.TARGET_RIGHT, "golden": ConfirmCode.GOLDEN_RIGHT}


def _judged(name: str, side: Side) -> Finding:
    worst = side.worst
    assert worst is not None
    code = (_WRONG if worst.held is Held.WRONG else _RIGHT)[name]
    explained = max(worst.rounding, worst.condition)
    fields = {"output": worst.path, "error": worst.error, "explained": explained, "why": worst.reason}
    return Finding(code, fields=fields)


def together(clauses: Iterable[Finding]) -> Finding:
    """Combine several findings into one; return a single finding unchanged."""
    several = list(clauses)
    return several[0] if len(several) == 1 else Finding(ConfirmCode.SIDES, fields={"clauses": several})
