"""Suspend interception while a graph is compiled: anything found in Cells and parameters becomes part of the graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

try:  # 2.8 and later
    from mindspore.graph import api  # pyright: ignore[reportMissingImports]
except ImportError:
    from mindspore.common import api


class Compiling:
    """Calls ``step_aside`` before a function is compiled, and ``come_back`` after it, even on failure."""

    _compiler: ClassVar[Any] = api._JitExecutor

    def __init__(self, step_aside: Callable[[], None], come_back: Callable[[], None]) -> None:
        self._step_aside = step_aside
        self._come_back = come_back
        self._depth = 0
        self._replaced: Callable[..., Any] | None = None

    def install(self) -> None:
        """Patch the compiler."""
        compile_graph: Callable[..., Any] = self._compiler.compile

        @functools.wraps(compile_graph)
        def patch(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            if self._depth == 1:
                self._step_aside()
            try:
                return compile_graph(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth and self._replaced is not None:
                    self._come_back()

        self._replaced = compile_graph
        self._compiler.compile = patch

    def remove(self) -> None:
        """Restore the compiler."""
        if self._replaced is not None:
            self._compiler.compile, self._replaced = self._replaced, None
