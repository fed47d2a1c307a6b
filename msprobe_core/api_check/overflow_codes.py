"""Codes of the findings of replays for NaN and Inf; the templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class ReplayOverflowCode(Code):
    """Why a call's NaN and Inf are to be expected, or not."""

    FINITE = "replay-overflow.finite"
    CAME_IN = "replay-overflow.came-in"
    EXACT = "replay-overflow.exact"
    RANGE = "replay-overflow.range"
    INTERMEDIATE = "replay-overflow.intermediate"
    UNEXPECTED = "replay-overflow.unexpected"
    MISSING = "replay-overflow.missing"
