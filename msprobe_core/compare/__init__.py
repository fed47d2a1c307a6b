"""Compare two runs: align their rows, compute the differences, judge them, name the first fault."""

from msprobe_core.compare.engine import ComparisonResult, UnitResult, compare_dumps

__all__ = ["ComparisonResult", "UnitResult", "compare_dumps"]
