"""Who is wrong: the result of a confirmation, and how it follows from what both sides were held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from msprobe_core.confirm.judge import ILL_CONDITIONED, Held, OutputJudgement, relative_difference
from msprobe_core.confirm.recorded import RecordedCall


class Verdict(str, Enum):
    """Who is wrong."""

    TARGET = "target"
    GOLDEN = "golden"
    BOTH = "both"
    NEITHER = "neither"
    ILL_CONDITIONED = "ill_conditioned"
    CANNOT_TELL = "cannot_tell"


class Cause(str, Enum):
    """Where a difference comes from, as far as the call shows it."""

    COMPUTATION = "computation"  # the call did not give what its inputs give
    ARGUMENTS = "arguments"  # it was asked for something else
    INPUTS = "inputs"  # the tensors that came in differ already
    CONDITION = "condition"  # rounding that came in was amplified
    NONE = "none"  # there is none
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side's call, held against the float64 replay of its own inputs.

    Attributes:
        outputs: One judgement for each output; empty if it could not be replayed.
        problem: Why it could not be; ``None`` if it was.
        note: What there is to say about the replay.
        is_incomplete: Whether it could not be because the dump does not hold the call as a whole.
    """

    outputs: Sequence[OutputJudgement] = ()
    problem: str | None = None
    note: str | None = None
    is_incomplete: bool = False

    @property
    def held(self) -> Held | None:
        """The worst of its outputs' verdicts."""
        found = {output.held for output in self.outputs}
        return next((held for held in (Held.WRONG, Held.CONDITION, Held.RIGHT) if held in found), None)

    @property
    def worst(self) -> OutputJudgement | None:
        """The output that decides."""
        held = self.held
        decisive = [output for output in self.outputs if output.held is held]
        return max(decisive, key=lambda output: output.error, default=None)


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """Who is wrong at one call, and why.

    Attributes:
        verdict: Who.
        cause: What of.
        entry: The call that the verdict is of: the one asked for, or the first wrong one inside of it.
        asked: The call that was asked for.
        reason: In words, with the figures that decide.
        target: The target's call; ``None`` if it was not looked at.
        golden: The golden run's.
        output_difference: Largest relative difference of the recorded outputs of the two sides; ``None`` if unknown.
        input_difference: The same of what came in.
        looked_at: Calls inside of a module that were confirmed one by one, with their verdicts.
        notes: What else there is to say.
        is_incomplete: Whether it might be told from a dump that holds more.
        next_command: What to run next; ``None`` if there is nothing.
        next_config: Configuration that records what is missing, as JSON text; ``None`` if nothing is.
    """

    verdict: Verdict
    cause: Cause
    entry: str
    asked: str
    reason: str
    target: Side | None = None
    golden: Side | None = None
    output_difference: float | None = None
    input_difference: float | None = None
    looked_at: Sequence[tuple[str, Verdict]] = ()
    notes: Sequence[str] = field(default_factory=tuple)
    is_incomplete: bool = False
    next_command: str | None = None
    next_config: str | None = None


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Both sides of one call, and how they differ.

    Attributes:
        arguments: Arguments that are no tensors, and shapes and dtypes of those that are, that differ: in words.
        outputs: Relative difference of the recorded outputs.
        inputs: The same of what came in.
        roundoff: Unit round-off of the inputs.
    """

    target: Side
    golden: Side
    arguments: Sequence[str]
    outputs: float | None
    inputs: float | None
    roundoff: float


def differing_arguments(target: RecordedCall, golden: RecordedCall) -> list[str]:
    """Return where the two calls were asked for something else, in words."""
    found: list[str] = []
    for path in dict.fromkeys((*target.scalars, *golden.scalars)):
        mine, other = target.scalars.get(path), golden.scalars.get(path)
        if mine != other:
            found.append(f"{path} is {mine or 'not given'} in the target and {other or 'not given'} in the golden run")
    return found


def largest_difference(target: Mapping[str, object], golden: Mapping[str, object]) -> float | None:
    """Return the largest relative difference of the tensors that both have; ``None`` if there are none."""
    found = [
        relative_difference(target[path], golden[path])  # pyright: ignore[reportArgumentType]
        for path in target
        if path in golden
    ]
    known = [difference for difference in found if difference is not None]
    return max(known, default=None)


def decide(pair: Pair) -> tuple[Verdict, Cause, str]:
    """Return who is wrong, what of, and why in words."""
    target, golden = pair.target, pair.golden
    if target.held is None or golden.held is None:
        return _decide_alone(pair)
    wrong = [name for name, side in _named(pair) if side.held is Held.WRONG]
    if len(wrong) == 2:
        return _decide_both(pair)
    if wrong:
        other = "golden" if wrong == ["target"] else "target"
        sides = dict(_named(pair))
        reason = f"{_told(wrong[0], sides[wrong[0]])}; {_told(other, sides[other])}"
        return Verdict(wrong[0]), Cause.COMPUTATION, reason
    if pair.arguments:
        return Verdict.CANNOT_TELL, Cause.ARGUMENTS, _asked_otherwise(pair)
    if Held.CONDITION in (target.held, golden.held):
        name, side = next((name, side) for name, side in _named(pair) if side.held is Held.CONDITION)
        return Verdict.ILL_CONDITIONED, Cause.CONDITION, _told(name, side)
    return _decide_right(pair)


def _decide_right(pair: Pair) -> tuple[Verdict, Cause, str]:
    """Both have computed right what came in; the difference of what came out is that of what came in."""
    worst = pair.golden.worst
    difference, inputs = pair.outputs, pair.inputs
    both = "both computed right what came in"
    if worst is None or difference is None:
        return Verdict.NEITHER, Cause.NONE, f"{both}, within what rounding explains"
    same = f"{both}, and what came out is the same within rounding ({_number(difference)})"
    gain = worst.amplification or 0.0
    came_in = "nothing recorded" if inputs is None else f"a relative difference of {_number(inputs)}"
    if difference <= 2 * worst.last_digit:
        return Verdict.NEITHER, Cause.NONE, same
    if inputs and pair.roundoff and gain >= ILL_CONDITIONED and inputs <= _NOISE * pair.roundoff:
        explained = gain * max(inputs, pair.roundoff)
        if difference <= _SLACK * explained:
            return Verdict.ILL_CONDITIONED, Cause.CONDITION, (
                f"{both}; {came_in} of the inputs, which is rounding, became {_number(difference)} of the results: "
                f"rounding each input in its last digit changes them by up to {_number(worst.condition)} (amplified "
                f"{gain:.3g}x)"
            )  # fmt: skip
    if difference <= 2 * worst.rounding:
        return Verdict.NEITHER, Cause.NONE, same
    if not inputs:
        return Verdict.CANNOT_TELL, Cause.UNKNOWN, (
            f"{both} within bounds, yet the results differ by {_number(difference)} and the recorded inputs do not: "
            "something that is not recorded went in"
        )  # fmt: skip
    return (
        Verdict.NEITHER,
        Cause.INPUTS,
        (f"{both}; the difference of the results ({_number(difference)}) was there before: {came_in} came in"),
    )


_NOISE = 64.0
"""Up to how many units of round-off a difference that comes in may be rounding itself."""

_SLACK = 4.0
"""The disturbed replays are few, and rounding that comes in is not as even as theirs."""


def _decide_both(pair: Pair) -> tuple[Verdict, Cause, str]:
    target, golden = pair.target.worst, pair.golden.worst
    assert target is not None
    assert golden is not None
    difference = pair.outputs
    if difference is not None and difference <= 0.1 * max(target.error, golden.error):
        return Verdict.CANNOT_TELL, Cause.UNKNOWN, (
            f"both are off the float64 replay alike ({_number(target.error)}) and agree with each other "
            f"({_number(difference)}): something that the dump does not hold decides the result, such as autocast, "
            "TF32 or a state of the module"
        )  # fmt: skip
    reason = f"{_told('target', pair.target)}; {_told('golden', pair.golden)}"
    return Verdict.BOTH, Cause.COMPUTATION, reason


def _decide_alone(pair: Pair) -> tuple[Verdict, Cause, str]:
    for name, side in _named(pair):
        if side.held is Held.WRONG:
            return Verdict(name), Cause.COMPUTATION, f"{_told(name, side)}; {_untold(pair)}"
    known = next((_told(name, side) for name, side in _named(pair) if side.held is not None), None)
    reason = _untold(pair)
    return Verdict.CANNOT_TELL, Cause.UNKNOWN, reason if known is None else f"{reason}; {known}"


def _untold(pair: Pair) -> str:
    problems = {name: side.problem for name, side in _named(pair) if side.problem is not None}
    if len(problems) == 2 and len(set(problems.values())) == 1:
        return f"neither side can be replayed: {problems['target']}"
    return "; ".join(f"the {_called(name)} cannot be replayed: {problem}" for name, problem in problems.items())


def _asked_otherwise(pair: Pair) -> str:
    more = f", and {len(pair.arguments) - 1} more" if len(pair.arguments) > 1 else ""
    return (
        f"both computed right what they were asked, and were asked otherwise: {pair.arguments[0]}{more}; which of the "
        "two is meant, the call alone does not say"
    )


def _named(pair: Pair) -> list[tuple[str, Side]]:
    return [("target", pair.target), ("golden", pair.golden)]


def _called(name: str) -> str:
    return "golden run" if name == "golden" else name


def _told(name: str, side: Side) -> str:
    worst = side.worst
    assert worst is not None
    verb = "is wrong" if worst.held is Held.WRONG else "is right"
    explained = _number(max(worst.rounding, worst.condition))
    return (
        f"the {_called(name)} {verb}: output {worst.path} differs from the float64 replay of its own inputs by "
        f"{_number(worst.error)}, and rounding explains {explained} ({worst.reason})"
    )


def _number(value: float) -> str:
    return f"{value:.2g}"
