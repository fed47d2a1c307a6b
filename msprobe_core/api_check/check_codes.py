"""Codes of the findings of checks of single calls; the templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class CheckCode(Code):
    """A finding of the check of a call."""

    NOT_IN_TABLE = "check.not-in-table"
    NO_OUTPUT = "check.no-output"
    OUT_OF_MEMORY = "check.out-of-memory"
    CRASHED = "check.crashed"
    NOT_UNIQUE = "check.not-unique"
    HOST_IS_OFF_TOO = "check.host-is-off-too"
