"""MindSpore for msprobe. It compares, from a script; recording is not built yet, and its names raise `PluginError`."""

from typing import TYPE_CHECKING, Any

from msprobe_core.errors import PluginError
from msprobe_core.plugins import refuse_shadowing

if TYPE_CHECKING:
    from msprobe_core.report import compare, compare_distributed

refuse_shadowing()

__all__ = ["compare", "compare_distributed"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from msprobe_core import report  # imported on first use, as recording needs none of it

        return getattr(report, name)
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise PluginError(
        f"msprobe.mindspore.{name} is not available yet: this release of msprobe-mindspore records nothing; "
        "record PyTorch with msprobe.pytorch"
    )
