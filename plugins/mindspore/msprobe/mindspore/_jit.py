"""Functions and Cells under ``mindspore.jit``: one call of each is one record; what is inside is the compiler's.

What compiles a function reads its source and that of what it calls. Our patches name the original as what they wrap,
so the compiler finds that, and none of ours gets into a graph.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from mindspore import nn

from msprobe.mindspore._calls import ApiCalls
from msprobe.mindspore._compiling import api
from msprobe.mindspore._inside import inside
from msprobe_core.interception.patching import Function, FunctionPatch, Patches
from msprobe_core.names import OPTIMIZER

PREFIX = "Jit"

_BYTECODE = "mindspore.graph._utils.pijit_context"


class JitPatches:
    """Stands for what runs compiled functions."""

    def __init__(self, calls: ApiCalls, step_aside: Callable[[], Callable[[], None]]) -> None:
        """Prepare.

        Args:
            calls: Records them.
            step_aside: Takes the patches of functions out, where a compiler looks at functions instead of at their
                source; returns what puts them in again.
        """
        self._calls = calls
        self._step_aside = step_aside
        self._come_back: Callable[[], None] | None = None
        self._depth = 0
        places: list[FunctionPatch] = [
            FunctionPatch(api._JitExecutor, "__call__", self._run),
            FunctionPatch(api._CellGraphExecutor, "compile", _compile),
        ]
        context = getattr(sys.modules.get(_BYTECODE), "PIJitCaptureContext", None)
        if context is not None:
            places += [
                FunctionPatch(context, "__enter__", self._enter),
                FunctionPatch(context, "__exit__", self._exit),
            ]
        self._patches = Patches(places, are_imported=False)

    def install(self) -> None:
        """Begin."""
        self._patches.install()

    def remove(self) -> None:
        """End."""
        self._patches.remove()
        self._come_back = None

    def _run(self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not self._calls.is_looking:
            return function(*args, **kwargs)
        executor, *rest = args
        owner = executor.obj
        before = (executor,) if owner is None else (executor, *rest[:1])

        def run(*shown: Any, **named: Any) -> Any:
            return function(*before, *shown, **named)

        name = type(owner).__name__ if isinstance(owner, nn.Cell) else executor.fn.__name__
        shown = tuple(rest if owner is None else rest[1:])
        belongs_to = OPTIMIZER if isinstance(owner, nn.Optimizer) else None
        return self._calls.run_foreign(PREFIX, name, run, shown, kwargs, owner=belongs_to)

    # A compiler of bytecode sees the objects that a function uses, and compiles again if they are others.

    def _enter(self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not self._depth:
            self._come_back = self._step_aside()
        self._depth += 1
        return function(*args, **kwargs)

    def _exit(self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        try:
            return function(*args, **kwargs)
        finally:
            self._depth = max(self._depth - 1, 0)
            if not self._depth and self._come_back is not None:
                come_back, self._come_back = self._come_back, None
                come_back()


def _compile(function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    # What the compiler runs of Python, to fold constants, is no call of the user's.
    was_inside, inside.value = inside.value, True
    try:
        return function(*args, **kwargs)
    finally:
        inside.value = was_inside


def is_tracing() -> bool:
    """Whether a function runs only to find out what it calls (``jit(capture_mode="trace")``)."""
    return _jit_context is not None and _jit_context() is not None


_jit_context: Callable[[], Any] | None = getattr(sys.modules.get("mindspore.graph.jit_context"), "jit_context", None)
