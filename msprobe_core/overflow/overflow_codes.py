"""Codes of findings of a search for NaN and Inf; their templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class OverflowCode(Code):
    """Code of a finding of a search for NaN and Inf."""

    # What happened at an origin.
    IN_PLACE = "overflow.in-place"
    SENT_UNKNOWN_IN_PART = "overflow.sent-unknown-in-part"
    SENT_UNKNOWN = "overflow.sent-unknown"
    COMMUNICATION = "overflow.communication"
    WEIGHT = "overflow.weight"
    DATA = "overflow.data"
    UNINITIALISED = "overflow.uninitialised"
    CONSTANT = "overflow.constant"
    UNRECORDED = "overflow.unrecorded"
    SAVED_VALUE = "overflow.saved-value"
    INF_GIVEN = "overflow.inf-given"
    GRADIENTS_ADDED_UP = "overflow.gradients-added-up"
    GIVEN_UNKNOWN = "overflow.given-unknown"
    OPERATOR = "overflow.operator"
    BACKWARD = "overflow.backward"
    # Values, calls and ranks within these.
    FINITE = "overflow.finite"
    FINITE_BETWEEN = "overflow.finite-between"
    NAN = "overflow.nan"
    NUM_NAN = "overflow.num-nan"
    INF = "overflow.inf"
    NUM_INF = "overflow.num-inf"
    NAN_AND_INF = "overflow.nan-and-inf"
    CALL_OF_RANK = "overflow.call-of-rank"
    ONE_RANK = "overflow.one-rank"
    SEVERAL_RANKS = "overflow.several-ranks"
    # Impact.
    HARM = "overflow.harm"
    BECOMES_NAN = "overflow.harm.becomes-nan"
    ARRIVES = "overflow.harm.arrives"
    ARRIVES_ELSEWHERE = "overflow.harm.arrives-elsewhere"
    REACHES_GRADIENTS = "overflow.harm.reaches-gradients"
    PASSED_AS_MASK = "overflow.harm.passed-as-mask"
    FINITE_AGAIN = "overflow.harm.finite-again"
    UNUSED = "overflow.harm.unused"
    NOT_HANDED_ON = "overflow.harm.not-handed-on"
    HANDED_ON = "overflow.harm.handed-on"
    # What to do next.
    LOOK_AT_OPERATOR = "overflow.advice.operator"
    LOOK_AT_BACKWARD = "overflow.advice.backward"
    LOOK_AT_DATA = "overflow.advice.data"
    RECORD_MORE = "overflow.advice.record-more"
    LOOK_AT_COMMUNICATION = "overflow.advice.communication"
    SET_MEMORY = "overflow.advice.set-memory"
    LOOK_AT_CONSTANT = "overflow.advice.constant"
    LOOK_AT_START = "overflow.advice.start"
    LOOK_AT_STEP_BEFORE = "overflow.advice.step-before"
    # What was not searched.
    NOT_ALL_FOLLOWED = "overflow.not-all-followed"
    NO_VALUES = "overflow.no-values"
    NO_STATISTICS = "overflow.no-statistics"
    RANK_LACKING = "overflow.rank-lacking"
