"""What the judge may note of how rows were judged."""

from __future__ import annotations

from msprobe_core.findings import Code


class JudgeCode(Code):
    """What may be noted of limits, noise and excuses."""

    MEASURED = "judge.noise.measured"
    MEASURED_IN_PART = "judge.noise.measured-in-part"
    CLOSED_FORM = "judge.noise.closed-form"
    CLOSED_FORM_BECAUSE = "judge.noise.closed-form-because"
    CARRIED = "judge.noise.carried"
    TURNED = "judge.noise.turned"
    IDLE_LIMITS = "judge.idle-limits"
    LONE_GRADIENTS = "judge.lone-gradients"
