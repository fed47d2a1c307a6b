"""Capture: from calls that a framework plugin reports to entries that a writer stores."""

from msprobe_core.capture.debugger import PrecisionDebugger
from msprobe_core.capture.session import Session

__all__ = ["PrecisionDebugger", "Session"]
