"""Codes of what checks of plugins find; their templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class CheckCode(Code):
    """What a check of a plugin has found, or why it has not."""

    FOUND = "check.found"
    MORE = "check.more"
    FAILED = "check.failed"
    SLOW = "check.slow"
