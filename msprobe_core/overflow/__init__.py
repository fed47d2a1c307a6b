"""Search the dumps of one run for the first call that turned finite values into NaN or Inf."""

from msprobe_core.overflow.result import Finding, Harmless, Kind, OverflowResult, RankNote, StepResult
from msprobe_core.overflow.search import search

__all__ = ["Finding", "Harmless", "Kind", "OverflowResult", "RankNote", "StepResult", "search"]
