"""Codes of the findings of a confirmation; the templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class ConfirmCode(Code):
    """A finding of a confirmation."""

    # Which side is wrong, and why.
    SIDES = "confirm.sides"
    TARGET_WRONG = "confirm.target-wrong"
    TARGET_RIGHT = "confirm.target-right"
    GOLDEN_WRONG = "confirm.golden-wrong"
    GOLDEN_RIGHT = "confirm.golden-right"
    TARGET_NOT_REPLAYED = "confirm.target-not-replayed"
    GOLDEN_NOT_REPLAYED = "confirm.golden-not-replayed"
    NEITHER_REPLAYED = "confirm.neither-replayed"
    ASKED_OTHERWISE = "confirm.asked-otherwise"
    ASKED_OTHERWISE_OFTEN = "confirm.asked-otherwise-often"
    BOTH_RIGHT = "confirm.both-right"
    BOTH_SAME = "confirm.both-same"
    BOTH_OFF_ALIKE = "confirm.both-off-alike"
    ROUNDING_AMPLIFIED = "confirm.rounding-amplified"
    INPUT_UNRECORDED = "confirm.input-unrecorded"
    CAME_IN = "confirm.came-in"
    # Arguments that differ.
    ARGUMENT = "confirm.argument"
    ARGUMENT_OF_GOLDEN = "confirm.argument-of-golden"
    ARGUMENT_OF_TARGET = "confirm.argument-of-target"
    # Modules, judged by the calls inside them.
    NOT_REPLAYABLE = "confirm.not-replayable"
    NOTHING_INSIDE = "confirm.nothing-inside"
    RIGHT_INSIDE = "confirm.inside.right"
    OTHER_CALLS_INSIDE = "confirm.inside.other-calls"
    LEFT_INSIDE = "confirm.inside.left"
    CAME_IN_INSIDE = "confirm.inside.came-in"
    OF_CALL = "confirm.of-call"
    ONLY_TARGET = "confirm.only-target"
    ONLY_GOLDEN = "confirm.only-golden"
    WITH_MODEL = "confirm.with-model"
    AROUND_WITH_MODEL = "confirm.around-with-model"
    ALSO_ASKED_OTHERWISE = "confirm.also-asked-otherwise"
    # What to do next.
    NEXT_RUN = "confirm.next.run"
    NEXT_SCRIPT = "confirm.next.script"
    NEXT_RECORD_AND_RUN = "confirm.next.record-and-run"
