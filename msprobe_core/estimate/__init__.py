"""Run a training program for a few steps, bare and recorded, and report what recording costs."""

from msprobe_core.estimate.engine import Case, CaseResult, Estimate, Request, estimate
from msprobe_core.estimate.report import Scale, check_json, print_estimate, write_json

__all__ = [
    "Case",
    "CaseResult",
    "Estimate",
    "Request",
    "Scale",
    "check_json",
    "estimate",
    "print_estimate",
    "write_json",
]
