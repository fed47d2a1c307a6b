"""Codes of findings in monitored values; their templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class TrendsCode(Code):
    """Where monitored values stop being finite, or two trainings diverge."""

    FINITE = "trends.finite"
    NOT_FINITE = "trends.not-finite"
    LOOKED_AT = "trends.looked-at"
    COMPARED = "trends.compared"
    AGREE = "trends.agree"
    FIRST_DIFFERENCE = "trends.first-difference"
    PART = "trends.part"
    PART_NOT_FINITE = "trends.part-not-finite"
    DIFFERENCE = "trends.difference"
    ONLY_VALUE = "trends.only-value"
    FIRST_OF = "trends.first-of"
    NO_VALUES = "trends.no-values"
    EXTENT = "trends.extent"
    STEP = "trends.step"
    STEPS = "trends.steps"
    MICRO_STEP = "trends.micro-step"
    RANK = "trends.rank"
    RANKS = "trends.ranks"
    MANY_RANKS = "trends.many-ranks"
    PLACE = "trends.place"
    NO_ROOM = "trends.no-room"
    OF_SIDE = "trends.of-side"
    UNUSUAL = "trends.unusual"
    ALARM = "trends.alarm"
    NOT_A_FILE = "trends.not-a-file"
    ONLY_STATISTIC = "trends.only-statistic"
    STEPS_THINNED = "trends.steps-thinned"
    STEPS_BINNED = "trends.steps-binned"
