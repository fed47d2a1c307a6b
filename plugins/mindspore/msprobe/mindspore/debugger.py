"""`PrecisionDebugger`, bound to MindSpore."""

from __future__ import annotations

from typing import ClassVar

from msprobe_core import PrecisionDebugger as _PrecisionDebugger

__path__: list[str] = []  # a package in other releases; modules below it are found by msprobe_core.former_names


class PrecisionDebugger(_PrecisionDebugger):
    """Records MindSpore; see `msprobe_core.PrecisionDebugger`."""

    framework_name: ClassVar[str | None] = "mindspore"
