"""Codes of what compiled modules show; the templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class CompileCode(Code):
    """What a check of compiled modules has found."""

    FOUND = "compile.found"
    EAGER_WRONG = "compile.eager-wrong"
    RIGHT = "compile.right"
    NOTHING = "compile.nothing"
    SAME_ERROR = "compile.same-error"
    BIASED = "compile.biased"
    OFF = "compile.off"
    EAGER_OFF = "compile.eager-off"
    SHAPE = "compile.shape"
    MISSING = "compile.missing"
    FUSED = "compile.fused"
    GRAPH_BREAKS = "compile.graph-breaks"
    NOT_JUDGED = "compile.not-judged"
    PART = "compile.part"
    NO_PART = "compile.no-part"
