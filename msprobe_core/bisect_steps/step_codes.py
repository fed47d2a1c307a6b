"""Codes of what a search over steps has found; the templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class StepCode(Code):
    """At which step two trainings begin to differ by more than rounding, or why that is not known."""

    FOUND = "bisect-steps.found"
    FOUND_OUTSIDE = "bisect-steps.found-outside"
    AGREE = "bisect-steps.agree"
    NOT_REPEATED = "bisect-steps.not-repeated"
    OTHER_START = "bisect-steps.other-start"
    COST = "bisect-steps.cost"
