"""MindSpore for msprobe. Not built yet: every public name raises `PluginError`."""

from typing import Any

from msprobe_core.errors import PluginError
from msprobe_core.plugins import refuse_shadowing

refuse_shadowing()

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise PluginError(
        f"msprobe.mindspore.{name} is not available yet: this release of msprobe-mindspore records nothing; "
        "record PyTorch with msprobe.pytorch"
    )
