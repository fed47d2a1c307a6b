"""Codes of how a recording ended; their templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class EndingCode(Code):
    """How a recording ended that may lack calls."""

    EARLY = "ending.early"
    EARLY_BECAUSE = "ending.early-because"
    BETWEEN_WINDOWS = "ending.between-windows"
    BETWEEN_WINDOWS_BECAUSE = "ending.between-windows-because"
    DAMAGED = "ending.damaged"
    DAMAGED_BECAUSE = "ending.damaged-because"
