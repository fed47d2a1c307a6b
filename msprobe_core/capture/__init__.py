"""Recording: from the calls that a framework plugin reports to the entries that a writer stores."""

from typing import TYPE_CHECKING

from msprobe_core.lazy import lazy_names

if TYPE_CHECKING:
    from msprobe_core.capture.debugger import PrecisionDebugger
    from msprobe_core.capture.session import Session
else:
    # The processors, which every command registers, are in this package, and need nothing of these.
    __getattr__ = lazy_names(
        __name__, {"msprobe_core.capture.debugger": "PrecisionDebugger", "msprobe_core.capture.session": "Session"}
    )

__all__ = ["PrecisionDebugger", "Session"]
