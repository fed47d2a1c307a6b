"""Codes of what checks in the training process find about themselves; the templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class UncheckedCode(Code):
    """Why a kind of call was not checked."""

    WAITS = "check.online.waits"
    TOO_LARGE = "check.online.too-large"
    FAILED = "check.online.failed"
