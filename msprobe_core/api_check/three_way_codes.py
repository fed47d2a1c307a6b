"""Codes of the findings of three-way checks; the templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class ThreeWayCode(Code):
    """A finding on the recorded result of a call and those that devices compute again."""

    NOT_COMPUTED = "check.sides.not-computed"
    NOT_REPRODUCED = "check.sides.not-reproduced"
    WRONG_AGAIN = "check.sides.wrong-again"
    WRONG_OTHERWISE = "check.sides.wrong-otherwise"
    ONLY_FRESH = "check.sides.only-fresh"
    FRESH_WRONG = "check.sides.fresh-wrong"
    HOST_TOO = "check.sides.host-too"
    RATIOS = "check.sides.ratios"
    RATIO = "check.sides.ratios.one"
    DEVICES_DIFFER = "check.sides.devices-differ"
