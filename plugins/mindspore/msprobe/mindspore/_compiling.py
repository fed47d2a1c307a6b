"""Suspend interception while a graph is compiled: anything found in Cells and parameters becomes part of the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msprobe_core.interception import Function, FunctionPatch

try:  # 2.8 and later
    from mindspore.graph import api  # pyright: ignore[reportMissingImports]
except ImportError:
    from mindspore.common import api


class Compiling:
    """Calls ``step_aside`` before a function is compiled, and ``come_back`` after it, even on failure.

    Several may be installed and removed in any order, as those of a monitor and of a debugger's window.
    """

    def __init__(self, step_aside: Callable[[], None], come_back: Callable[[], None]) -> None:
        self._step_aside = step_aside
        self._come_back = come_back
        self._depth = 0
        self._patch = FunctionPatch(api._JitExecutor, "compile", self._compile)

    def install(self) -> None:
        """Patch the compiler."""
        self._patch.install()

    def remove(self) -> None:
        """Restore the compiler."""
        self._patch.remove()

    def _compile(self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self._depth += 1
        if self._depth == 1:
            self._step_aside()
        try:
            return function(*args, **kwargs)
        finally:
            self._depth -= 1
            if not self._depth and self._patch.is_on:
                self._come_back()
