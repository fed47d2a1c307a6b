"""Comparison of two runs: align their rows, compute differences, judge them, and find the first fault."""

from msprobe_core.compare.pairs import Chosen
from msprobe_core.compare.result import ComparisonResult, UnitResult, UnitSummary
from msprobe_core.compare.run import compare_dumps
from msprobe_core.compare.unit import CompareOptions

__all__ = ["Chosen", "CompareOptions", "ComparisonResult", "UnitResult", "UnitSummary", "compare_dumps"]
