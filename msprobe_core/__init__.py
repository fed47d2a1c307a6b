"""Precision debugger for large-model training: record two runs, compare them, find where they first diverge."""

from typing import TYPE_CHECKING, Any

from msprobe_core._version import __version__

if TYPE_CHECKING:
    from msprobe_core.capture import PrecisionDebugger
    from msprobe_core.compare import compare_dumps

__all__ = ["PrecisionDebugger", "__version__", "compare_dumps"]


def __getattr__(name: str) -> Any:
    # Imported on first use: `msprobe --version` needs none of it.
    if name == "PrecisionDebugger":
        from msprobe_core.capture import PrecisionDebugger

        return PrecisionDebugger
    if name == "compare_dumps":
        from msprobe_core.compare import compare_dumps

        return compare_dumps
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
