"""A result of a bisection."""

from __future__ import annotations

import math
from typing import Any

from msprobe_core.findings import Finding
from msprobe_core.free_benchmark.bisect import BisectResult, BisectVerdict, PartOfModules
from msprobe_core.free_benchmark.bisect_codes import BisectCode
from msprobe_core.model import ReferenceFormat


def part(*modules: str, share: float = 0.9, times: float = 9.0, **others: Any) -> PartOfModules:
    return PartOfModules(modules=modules, share=share, change=0.1, times=times, **others)


def result(**changes: Any) -> BisectResult:
    fields: dict[str, Any] = {
        "target": "loss", "reference": ReferenceFormat.FP32, "verdict": BisectVerdict.FOUND,
        "headline": Finding(BisectCode.FOUND, fields={
            "module": "a", "target": "loss", "format": "fp32", "percent": 90.0, "difference": 0.1, "times": 9.0,
        }),
        "notes": (Finding(BisectCode.NO_NOISE),), "num_modules": 3, "value": 1.0, "raised_value": 1.1, "loss": 1.0,
        "raised_loss": 1.1, "difference": 0.1, "repeat_difference": 0.0, "noise": 0.1, "measured": (part("a"),),
        "parts": (part("a", loss=1.05, times=math.inf), part("b", "c", is_joint=True)), "num_pairs": 3, "num_steps": 7,
        "seconds": 0.5,
    }  # fmt: skip
    return BisectResult(**{**fields, **changes})
