"""`PrecisionDebugger`, bound to PyTorch."""

from __future__ import annotations

from typing import ClassVar

from msprobe_core import PrecisionDebugger as _PrecisionDebugger
from msprobe_core.recording import module_dump, module_dump_end

__all__ = ["PrecisionDebugger", "module_dump", "module_dump_end"]

__path__: list[str] = []  # a package in other releases; modules below it are found by msprobe_core.former_names


class PrecisionDebugger(_PrecisionDebugger):
    """Records PyTorch; see `msprobe_core.PrecisionDebugger`."""

    framework_name: ClassVar[str | None] = "pytorch"
