"""Codes of what raising the precision of modules shows; the templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class BisectCode(Code):
    """What explains the value of a step, or why nothing does."""

    FOUND = "bisect.found"
    SHARED = "bisect.shared"
    SPREAD = "bisect.spread"
    UNSPLIT = "bisect.unsplit"
    NO_DIFFERENCE = "bisect.no-difference"
    NOT_REPEATED = "bisect.not-repeated"
    PART = "bisect.part"
    NOT_RAISED = "bisect.not-raised"
    CONTRIBUTIONS = "bisect.contributions"
    NO_NOISE = "bisect.no-noise"
    CANCELLING = "bisect.cancelling"
