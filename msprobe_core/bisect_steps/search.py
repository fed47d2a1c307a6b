"""The search: which checkpoints are apart, and which steps between two checkpoints.

Checkpoints that exist already cost nothing but their comparison, so they are halved first. Between the last that agrees
and the first that is apart, both trainings are replayed from the golden checkpoint, and each replay records a few
windows: the first step, by which it is known whether the two compute the same bits, and steps that divide the rest into
equal parts. So a replay divides the steps that are left by the number of its windows, not by two.

Nothing here runs a program or reads a file: that is done by a `Lab`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

import msgspec

GROWTH = 8.0
"""How many times faster than in proportion to the steps the distance of two healthy trainings may grow between
checkpoints. It only chooses where to look: what is found is decided by windows."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What one window shows.

    Attributes:
        is_fault: Whether rounding does not explain it.
        num_different: Number of values that differ at all.
        num_calls: Number of judged calls.
        entry: The first suspected call; empty if there is none.
        module: Path of the module that it is, or is in; ``None`` if it is in none.
        ranks: The ranks that it is of.
    """

    is_fault: bool
    num_different: int
    num_calls: int
    entry: str = ""
    module: str | None = None
    ranks: tuple[int, ...] = ()


class Lab(Protocol):
    """Compares checkpoints and runs trainings; what it was asked once it does not do again."""

    def distance(self, step: int) -> float:
        """Return the relative distance of the weights of both checkpoints of a step; 0 if all bits are equal."""
        ...

    def record(self, begin: int, steps: Sequence[int]) -> None:
        """Replay both trainings from the golden checkpoint of step ``begin``, and record windows."""
        ...

    def calibrate(self, begin: int, steps: Sequence[int]) -> None:
        """Replay the golden training of `record` with other last digits, to measure what rounding does by then."""
        ...

    def judge(self, begin: int, steps: Sequence[int], step: int, *, is_measured: bool) -> Judgement:
        """Judge one of the windows that `record` has recorded, with what `calibrate` has measured or by a formula."""
        ...


class Outcome(str, Enum):
    """How a search ended."""

    FOUND = "found"
    AGREE = "agree"
    NOT_REPEATED = "not repeated"
    OTHER_START = "other start"


@dataclass(frozen=True, kw_only=True)
class Place:
    """The windows among which the first one that differs by more than rounding is.

    Attributes:
        begin: Step from which the trainings were replayed.
        steps: Steps of the windows of the last replay.
        step: The first step that differs.
        judgement: What its window shows.
        is_measured: Whether rounding was measured by repetitions; else the two sides were equal bit by bit before.
    """

    begin: int
    steps: Sequence[int]
    step: int
    judgement: Judgement
    is_measured: bool


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a search has found.

    Attributes:
        outcome: How it ended.
        place: Where the fault is; ``None`` without one.
        last_equal: Last checkpoint that agrees; ``None`` if there is none.
        first_apart: First checkpoint that is apart, or the end of the search; ``None`` if no checkpoint is.
    """

    outcome: Outcome
    place: Place | None = None
    last_equal: int | None = None
    first_apart: int | None = None


@dataclass
class Search:
    """Searches the first step at which two trainings differ by more than rounding.

    Attributes:
        lab: Does the work.
        checkpoints: Steps of the checkpoints that both sides have, ascending.
        end: Number of steps of the trainings.
        num_windows: Windows of each replay, at least 2.
        progress: Called with a sentence before each part of the work.
    """

    lab: Lab
    checkpoints: Sequence[int]
    end: int
    num_windows: int = 4
    progress: Callable[[str], object] = field(default=lambda _: None)

    def run(self) -> Answer:
        """Search."""
        steps = [step for step in self.checkpoints if step <= self.end]
        if not steps:
            return self._between(0, self.end, Answer(outcome=Outcome.AGREE))
        first = steps[0]
        reference = self._distance(first)
        if reference > 0 and first == 0:
            return Answer(outcome=Outcome.OTHER_START, first_apart=0)
        if reference > 0:
            # The first checkpoints differ: by rounding, or because the fault is before them. Only a replay can tell.
            found = self._between(0, first, Answer(outcome=Outcome.AGREE))
            if found.place is not None:
                return replace(found, first_apart=first)
        equal, apart = self._bracket(steps, reference)
        known = Answer(outcome=Outcome.AGREE, last_equal=equal, first_apart=apart)
        if apart is None and equal >= self.end:
            if reference == 0 or len(steps) == 1:
                return known
            equal = steps[-2]  # a fault may be smaller than what distances of rounding tell; a step shows it
        found = self._between(equal, self.end if apart is None else apart, known)
        if found.place is not None and found.place.step == equal and reference > 0:
            return self._before(steps, steps.index(equal), found)
        if found.place is None and apart is not None:
            return replace(found, outcome=Outcome.NOT_REPEATED)
        return found

    # --- checkpoints ------------------------------------------------------------------------------------------

    def _distance(self, step: int) -> float:
        self.progress(f"compares the checkpoints of step {step}")
        return self.lab.distance(step)

    def _bracket(self, steps: Sequence[int], reference: float) -> tuple[int, int | None]:
        """Return the last checkpoint that agrees and the first that is apart, by halving."""

        def is_apart(step: int) -> bool:
            return self._distance(step) > GROWTH * reference * step / max(steps[0], 1)

        if len(steps) == 1 or not is_apart(steps[-1]):
            return steps[-1], None
        low, high = 0, len(steps) - 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_apart(steps[middle]) else (middle, high)
        return steps[low], steps[high]

    def _before(self, steps: Sequence[int], place: int, found: Answer) -> Answer:
        """Return the first fault of a search whose first replayed step was bad already.

        Checkpoints that are apart by rounding may hide a small fault. Whether it is there at a checkpoint is shown by
        one step from the golden weights, so the checkpoints before are halved once more.
        """
        low, high = -1, place
        while high - low > 1:
            middle = (low + high) // 2
            step = steps[middle]
            bad = self._first_bad(step, step - 1, step + 1, is_measured=True)
            if bad is None:
                low = middle
            else:
                high, found = middle, replace(found, place=bad)
        begin = steps[low] if low >= 0 else 0
        if begin == steps[high]:
            return found
        known = replace(found, last_equal=begin, first_apart=steps[high])
        earlier = self._between(begin, steps[high], replace(known, outcome=Outcome.AGREE))
        return known if earlier.place is None else earlier

    # --- windows ----------------------------------------------------------------------------------------------

    def _between(self, begin: int, end: int, known: Answer) -> Answer:
        """Search from ``begin`` to before ``end``; both sides begin with the same weights."""
        place = self._first_bad(begin, begin - 1, end, is_measured=False)
        if place is not None and place.step == begin and place.judgement.is_fault:
            # By a formula; and nothing tells yet whether both sides compute the same bits. One step decides.
            confirmed = self._first_bad(begin, begin - 1, begin + 1, is_measured=True)
            place = confirmed or self._first_bad(begin, begin, end, is_measured=True)
        elif place is not None and not place.judgement.is_fault:
            # From here on the sides differ by rounding, so bits tell nothing any more.
            place = self._first_bad(begin, place.step - 1, end, is_measured=True)
        if place is None:
            return known
        return replace(known, outcome=Outcome.FOUND, place=place)

    def _first_bad(self, begin: int, good: int, end: int, *, is_measured: bool) -> Place | None:
        """Return the first bad step after ``good``: one that differs at all, or with measured rounding by more."""
        found: Place | None = None
        bad = end
        while bad - good > 1:
            steps = _divided(max(good, begin), bad, self.num_windows - 1, has_last=found is None)
            if good < begin:
                steps = [begin, *steps]
            windows = sorted({begin, *steps})
            self._record(begin, windows, is_measured=is_measured)
            for step in steps:
                judgement = self.lab.judge(begin, windows, step, is_measured=is_measured)
                if judgement.is_fault or (judgement.num_different and not is_measured):
                    found = Place(begin=begin, steps=windows, step=step, judgement=judgement, is_measured=is_measured)
                    bad = step
                    break
                good = step
            if found is None:
                return None
        return found

    def _record(self, begin: int, windows: Sequence[int], *, is_measured: bool) -> None:
        named = ", ".join(map(str, windows))
        self.progress(f"replays both trainings from step {begin} to {windows[-1]}, with windows at {named}")
        self.lab.record(begin, windows)
        if is_measured:
            self.progress(f"repeats the golden one with other last digits from step {begin} to {windows[-1]}")
            self.lab.calibrate(begin, windows)


def _divided(good: int, bad: int, number: int, *, has_last: bool) -> list[int]:
    """Return at most ``number`` steps between two that divide them into equal parts, ascending.

    Args:
        good: Known to be good; not returned.
        bad: Known to be bad, or the end; not returned.
        number: How many, at least 1.
        has_last: Whether the last step before ``bad`` is among them, since nothing is known to be bad yet.
    """
    if bad - good - 1 <= number:
        return list(range(good + 1, bad))
    if has_last:
        inner = _divided(good, bad - 1, number - 1, has_last=False) if number > 1 else []
        return [*inner, bad - 1]
    return [good + round((bad - good) * (i + 1) / (number + 1)) for i in range(number)]
