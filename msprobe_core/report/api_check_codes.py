"""Codes of what the report of a check of calls says; the templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class CheckReportCode(Code):
    """A finding about all checked calls together."""

    WRONG_ONE = "acc-check.headline.wrong-one"
    WRONG_SEVERAL = "acc-check.headline.wrong-several"
    SUSPECT_ONE = "acc-check.headline.suspect-one"
    SUSPECT_SEVERAL = "acc-check.headline.suspect-several"
    PROBED_ONE = "acc-check.headline.probed-one"
    PROBED_SEVERAL = "acc-check.headline.probed-several"
    NONE_WRONG = "acc-check.headline.none-wrong"
    NOTHING_CHECKED = "acc-check.headline.nothing-checked"
    # More about all of them.
    COUNTS = "acc-check.counts"
    NOT_CHECKED = "acc-check.not-checked"
    NOTED = "acc-check.noted"
    WEAK = "acc-check.weak"
    # One call.
    MEASURED = "acc-check.measured"
    DIRECTION = "acc-check.direction"
    # What to do next.
    NEXT_SCRIPT = "acc-check.next.script"
    NEXT_RECORD = "acc-check.next.record"
