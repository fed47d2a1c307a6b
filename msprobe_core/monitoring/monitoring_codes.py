"""Codes of what there is to say about a monitored training; their templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class MonitoringCode(Code):
    """What was left out of a monitor's files."""

    CUT_LINE = "monitoring.cut-line"
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
    RANK_DEPARTS = "anomaly.rank-departs"
