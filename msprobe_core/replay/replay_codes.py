"""Codes of the findings of replays and of what is judged by them; the templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class ReplayCode(Code):
    """A finding of a replay. The values have the name of the command that first wrote them."""

    # One output.
    OUTPUT_NON_FINITE = "confirm.output.non-finite"
    OUTPUT_ELEMENT = "confirm.output.element"
    OUTPUT_OFF = "confirm.output.off"
    OUTPUT_ROUNDED = "confirm.output.rounded"
    OUTPUT_AMPLIFIED = "confirm.output.amplified"
    OUTPUT_INPUTS_ROUNDED = "confirm.output.inputs-rounded"
    OUTPUT_SAME = "confirm.output.same"
    OUTPUT_TIES = "confirm.output.ties"
    OUTPUT_OTHER_ELEMENTS = "confirm.output.other-elements"
    OUTPUT_EQUAL_ELEMENTS = "confirm.output.equal-elements"
    # Replays.
    FUNCTION_IS_OFF = "confirm.replay.function-is-off"
    AUTOCAST = "confirm.replay.autocast"
    NO_OWN_PRECISION = "confirm.replay.no-own-precision"
    NO_SUCH_OUTPUT = "confirm.replay.no-such-output"
    OTHER_SHAPE = "confirm.replay.other-shape"
    NO_OUTPUT = "confirm.replay.no-output"
    # What the dump lacks for a call.
    NO_RECORD = "confirm.missing.record"
    NO_FORWARD = "confirm.missing.forward"
    FAILED_TO_RECORD = "confirm.missing.failed"
    DISTRIBUTED = "confirm.missing.distributed"
    STATISTICS_ONLY = "confirm.missing.statistics-only"
    TOO_LARGE = "confirm.missing.too-large"
    MISPLACED = "confirm.missing.misplaced"
    FAR_PLACE = "confirm.missing.far-place"
