"""Precision debugger for large-model training: record two runs, compare them, find where they first diverge."""

from typing import TYPE_CHECKING

from msprobe_core._version import __version__
from msprobe_core.lazy import lazy_names

if TYPE_CHECKING:
    from msprobe_core.capture import PrecisionDebugger
    from msprobe_core.compare import compare_dumps
else:  # imported on first use: `msprobe --version` needs none of it
    __getattr__ = lazy_names(
        __name__, {"msprobe_core.capture": "PrecisionDebugger", "msprobe_core.compare": "compare_dumps"}
    )

__all__ = ["PrecisionDebugger", "__version__", "compare_dumps"]
