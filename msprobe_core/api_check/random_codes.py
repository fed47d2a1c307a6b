"""Codes of the findings of checks of random functions; the templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class RandomCode(Code):
    """What the results of a random function are."""

    AS_DRAWN = "random.as-drawn"
    SCALED = "random.scaled"
    UNCHANGED = "random.unchanged"
    SHORT = "random.short"
    CHANGED = "random.changed"
    KEPT = "random.kept"
    IN_PART = "random.in-part"
    SHARE = "random.share"
    PLACES = "random.places"
    PAIRS = "random.pairs"
    DISTRIBUTION = "random.distribution"
    OUTSIDE = "random.outside"
