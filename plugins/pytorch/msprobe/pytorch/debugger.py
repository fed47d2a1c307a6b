"""`PrecisionDebugger`, bound to PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msprobe_core import PrecisionDebugger as _PrecisionDebugger

if TYPE_CHECKING:
    from torch import nn

__path__: list[str] = []  # a package in other releases; modules below it are found by msprobe_core.compat


class PrecisionDebugger(_PrecisionDebugger):
    """Records PyTorch; see `msprobe_core.PrecisionDebugger`."""

    framework_name: ClassVar[str | None] = "pytorch"


def module_dump(module: nn.Module, name: str) -> None:
    """Record calls of one module and nothing else, until ``module_dump_end``.

    Its entries are called ``Module.{name}.{Class}.forward.N``, and so on. APIs, other modules and what runs inside this
    one are passed over, also where the level would have them; a module that the level records anyway is not recorded
    under its own name meanwhile. Takes effect between ``start`` and ``stop`` of a selected step.

    Raises:
        SessionError: no debugger has been made, ``module`` is none, or ``name`` is no name.
    """
    _PrecisionDebugger.dump_module(module, name)


def module_dump_end() -> None:
    """Record again what was recorded before ``module_dump``.

    Raises:
        SessionError: no debugger has been made.
    """
    _PrecisionDebugger.end_module_dump()
