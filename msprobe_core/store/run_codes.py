"""Codes of which dumps in a directory belong to one run; their templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class RunCode(Code):
    """What an earlier run, or another process, has left in a directory."""

    UNITS_LEFT_OUT = "run.units-left-out"
    STEPS_LEFT_OUT = "run.steps-left-out"
    EARLIER_STEPS = "run.earlier-steps"
    SEVERAL_PROCESSES = "run.several-processes"

    RANK = "run.rank"
    RANKS = "run.ranks"
    STEP = "run.step"
    STEPS = "run.steps"
    BEGUN = "run.begun"
    WRITTEN = "run.written"
