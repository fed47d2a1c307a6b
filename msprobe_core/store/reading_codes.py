"""Codes of what readers note of files; their templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class ReadingCode(Code):
    """What readers of dumps leave out."""

    OF_FILE = "reading.of-file"
    WITHOUT_FILE = "reading.without-file"
    OTHER_FILES = "reading.kernels.other-files"
    WITHOUT_LONG_NAMES = "reading.kernels.without-long-names"
    LINES = "reading.kernels.lines"
    UNREADABLE = "reading.kernels.unreadable"


class DamageCode(Code):
    """Why a dump is damaged."""

    RECORDS = "damage.records"
    BATCHES = "damage.batches"
    MALFORMED = "damage.malformed"
    CALLS_LOST = "damage.calls-lost"
    UNREADABLE_FILES = "damage.unreadable-files"
    PARTS = "damage.parts"
