"""Codes of findings about rows of a comparison."""

from __future__ import annotations

from msprobe_core.findings import Code


class RowCode(Code):
    """Code of a finding about a row."""

    SAID = "row.said"

    KIND = "row.kind"
    KIND_VALUE_IN_TARGET = "row.kind.value-in-target"
    KIND_VALUE_IN_GOLDEN = "row.kind.value-in-golden"
    SHAPE = "row.shape"
    NAN = "row.nan"
    INF = "row.inf"
    NOT_COMPARABLE = "row.not-comparable"
    UNREAD = "row.unread"
    CHECKSUM = "row.checksum"
    CHECKSUM_ALONE = "row.checksum-alone"
    INTEGERS = "row.integers"
    ERROR = "row.error"
    SKETCH_ERROR = "row.sketch-error"
    NOT_EQUAL = "row.not-equal"
    STATISTIC = "row.statistic"
    SCORE = "row.score"
    SCORE_CLOSED_FORM = "row.score.closed-form"
    LIMIT_REL = "row.limit.rel"
    LIMIT_ABS = "row.limit.abs"
    LIMIT_COS = "row.limit.cos"
    LIMIT_ULP = "row.limit.ulp"
    ARGUMENT = "row.argument"
    NESTING = "row.nesting"
    NESTING_TARGET_OUTSIDE = "row.nesting.target-outside"
    NESTING_GOLDEN_OUTSIDE = "row.nesting.golden-outside"

    LONE = "row.lone"

    NOT_RECORDED = "row.not-recorded"
    NOT_RECORDED_BOTH = "row.not-recorded.both"
    DTYPE_KIND = "row.dtype-kind"
    REQUIRES_GRAD = "row.requires-grad"
    STATISTICS_ON_ONE_SIDE = "row.statistics-on-one-side"

    NO_STATISTICS = "row.no-statistics"
    DTYPE = "row.dtype"
    NAN_ON_BOTH = "row.nan-on-both"
    VANISHING = "row.vanishing"
    ZERO = "row.zero"
    RECTIFIER = "row.rectifier"
    WITHIN_GIVEN_LIMIT = "row.within-given-limit"
    WITHIN_LIMIT = "row.within-limit"
    FLIPS = "row.flips"
    ARGUMENT_SPELLING = "row.argument-spelling"
    IGNORED = "row.ignored"

    EXCUSED_RESULT = "row.excused.result"
    EXCUSED_AROUND = "row.excused.around"
    EXCUSED_ARGUMENT = "row.excused.argument"
    EXCUSED_BUFFER = "row.excused.buffer"
    EXCUSED_ZERO_GRADIENT = "row.excused.zero-gradient"
    EXCUSED_RESULT_GRADIENT = "row.excused.result-gradient"
    EXCUSED_GRADIENT = "row.excused.gradient"
    EXCUSED_UNRECORDED_KIND = "row.excused.unrecorded-kind"
    EXCUSED_OWNER = "row.excused.owner"
    EXCUSED_INSIDE = "row.excused.inside"
    EXCUSED_CALL = "row.excused.call"
    EXCUSED_UNCALLED_MODULE = "row.excused.uncalled-module"
    EXCUSED_ABSENT_GRADIENT = "row.excused.absent-gradient"
    EXCUSED_GRADIENT_ORDER = "row.excused.gradient-order"
    EXCUSED_GROUP = "row.excused.group"


EXCUSES = tuple(code for code in RowCode if code.value.startswith("row.excused."))
"""Reasons for which a row is not judged."""
