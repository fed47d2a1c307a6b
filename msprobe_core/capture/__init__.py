"""Recording: from the calls that a framework plugin reports to the entries that a writer stores."""

from msprobe_core.capture.debugger import PrecisionDebugger
from msprobe_core.capture.session import Session

__all__ = ["PrecisionDebugger", "Session"]
