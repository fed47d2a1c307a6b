"""Codes of what there is to say about a monitored training; their templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class MonitoringCode(Code):
    """What was left out of a monitor's files."""

    CUT_LINE = "monitoring.cut-line"
    CUT_TABLE = "monitoring.cut-table"
    ODD_LINES = "monitoring.odd-lines"
    SEVERAL_DIRECTORIES = "monitoring.several-directories"


class AnomalyCode(Code):
    """What a value of a monitored training does that its past does not explain."""

    MOVED = "anomaly.moved"
    NOT_FINITE = "anomaly.not-finite"
    BECAME_ZERO = "anomaly.became-zero"
    ALWAYS_ZERO = "anomaly.always-zero"
    UNCHANGED = "anomaly.unchanged"
    SAME_DATA = "anomaly.same-data"
    REPLICAS_DIFFER = "anomaly.replicas-differ"
    BEYOND_MEAN = "anomaly.beyond-mean"
    RANK_DEPARTS = "anomaly.rank-departs"


class DepartureCode(Code):
    """How a monitored training departs from a trusted one."""

    APART = "departure.apart"
    APART_FROM_EQUAL = "departure.apart-from-equal"
    ONE_SIDED = "departure.one-sided"
    FIRST_DIFFERENCE = "departure.first-difference"
    RANKS_OF_ONE = "departure.ranks-of-one"
    STEPS_OF_ONE = "departure.steps-of-one"
    QUANTITIES_OF_ONE = "departure.quantities-of-one"
    NAMES_OF_ONE = "departure.names-of-one"
