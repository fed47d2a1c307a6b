"""Codes of what a comparison of two trainings' gradients finds; the templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class GradientCode(Code):
    """What differs between the gradients of two trainings, or cannot be compared."""

    DIFFERS = "gradients.differs"
    DROPS = "gradients.drops"

    NORM_DIFFERS = "gradients.norm-differs"
    NORM_DRIFTS = "gradients.norm-drifts"

    NORMS_ALONE = "gradients.norms-alone"
    ESTIMATED = "gradients.estimated"
    ALL_COUNT = "gradients.all-count"
    RANK_MISSING = "gradients.rank-missing"
    STEPS_MISSING = "gradients.steps-missing"
    PARAMETERS_MISSING = "gradients.parameters-missing"
    SIZE_DIFFERS = "gradients.size-differs"
    UNREADABLE = "gradients.unreadable"
