"""Codes of the findings of exact probes; the templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class ProbeCode(Code):
    """A finding of an exact probe."""

    EXACT = "probe.exact"
    EXACT_SHORT = "probe.exact-short"
    WRONG = "probe.wrong"
    NARROW = "probe.narrow"
    # Why a call was not probed.
    MODULE = "probe.not.module"
    NOT_LINEAR = "probe.not.linear"
    NOT_REPLAYED = "probe.not.replayed"
    DTYPE = "probe.not.dtype"
    SCALED = "probe.not.scaled"
    DIVIDED = "probe.not.divided"
    EMPTY = "probe.not.empty"
    TOO_LONG = "probe.not.too-long"
