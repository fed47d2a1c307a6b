"""Codes of what opening a checkpoint finds; the templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class OpeningCode(Code):
    """A finding about the files of a checkpoint, or about how its tensors are put together."""

    MISSING_FILE = "checkpoint.open.missing-file"
    MISSING_RANK = "checkpoint.open.missing-rank"
    UNREADABLE = "checkpoint.open.unreadable"
    MISSING_ENTRY = "checkpoint.open.missing-entry"
    GAP = "checkpoint.open.gap"
    OVERLAP = "checkpoint.open.overlap"
    BEYOND = "checkpoint.open.beyond"
    DUPLICATE = "checkpoint.open.duplicate"
    UNLIKE = "checkpoint.open.unlike"
    UNKNOWN_RULE = "checkpoint.open.unknown-rule"
    UNNAMED_STATES = "checkpoint.open.unnamed-states"
    NAMED_BY_ORDER = "checkpoint.open.named-by-order"
    TIED_BY_CONFIG = "checkpoint.open.tied-by-config"
    SKIPPED = "checkpoint.open.skipped"
    STAGES_COUNTED = "checkpoint.open.stages-counted"
    OUTSIDE = "checkpoint.open.outside"
