"""Codes of what perturbed repetitions of calls show; the templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class ReactionCode(Code):
    """A reaction of a call to a perturbation, or why it was not perturbed."""

    NO_FLOATING_INPUT = "reaction.no-floating-input"
    NO_HALF_INPUT = "reaction.no-half-input"
    EMPTY_INPUT = "reaction.empty-input"
    ONE_ELEMENT = "reaction.one-element"
    NOTHING_CHANGED = "reaction.nothing-changed"
    NOT_REPEATED = "reaction.not-repeated"
    NO_OTHER_DEVICE = "reaction.no-other-device"

    AS_EXPECTED = "reaction.as-expected"
    REPEATS = "reaction.repeats"
    SEVERAL_RESULTS = "reaction.several-results"
    OTHER_THAN_RECORDED = "reaction.other-than-recorded"
    BEYOND = "reaction.beyond"
    BEYOND_ELEMENT = "reaction.beyond-element"
    UNMOVED = "reaction.unmoved"
    OFF_ROWS = "reaction.off-rows"
    NON_FINITE = "reaction.non-finite"
    OFF_FLOAT32 = "reaction.off-float32"
    OFF_HOST = "reaction.off-host"
    EXPLAINED = "reaction.explained"
    UNDECIDED = "reaction.undecided"
    RATIO = "reaction.ratio"
    CONDITIONS = "reaction.conditions"
