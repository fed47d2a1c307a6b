"""Codes of what a reduced gradient shows about the reduction; their templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class ReductionCode(Code):
    """What happened to a gradient between ranks, or why that cannot be judged."""

    MISSING = "reduction.missing"
    SCALED = "reduction.scaled"
    TWICE = "reduction.twice"
    SEVERAL = "reduction.several"
    NOT_REDUCED = "reduction.not-reduced"
    REDUCED_TWICE = "reduction.reduced-twice"
    SCALED_WHOLE = "reduction.scaled-whole"
    DISAGREES = "reduction.disagrees"
    SCALED_AFTER = "reduction.scaled-after"
    WRONG_GROUP = "reduction.wrong-group"
    STALE = "reduction.stale"
    UNEXPLAINED = "reduction.unexplained"
    AMBIGUOUS = "reduction.ambiguous"
    UNDERDETERMINED = "reduction.underdetermined"
    BECAME_INFINITE = "reduction.became-infinite"

    SHARDED = "reduction.sharded"
    ONE_RANK = "reduction.one-rank"
    RANK_LACKS = "reduction.rank-lacks"
    NOT_ACCUMULATED = "reduction.not-accumulated"
    NOT_FINITE = "reduction.not-finite"
    ALL_UNEXPLAINED = "reduction.all-unexplained"
