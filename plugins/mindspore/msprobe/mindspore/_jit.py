"""Functions and Cells under ``mindspore.jit``: each call is one record; calls inside belong to the compiler.

The compiler of a function reads its source and that of its callees. Our patches name the original as what they wrap, so
the compiler finds the original, and no patch gets into a graph.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from mindspore import nn

from msprobe.mindspore._calls import ApiCalls
from msprobe.mindspore._compiling import api
from msprobe.mindspore._unrecorded_calls import unseen_by_all
from msprobe_core.interception import OPTIMIZER, Function, FunctionPatch, Patches

PREFIX = "Jit"

_BYTECODE = "mindspore.graph._utils.pijit_context"


class JitPatches:
    """Patches the entry points of compiled functions."""

    def __init__(self, calls: ApiCalls, step_aside: Callable[[], Callable[[], None]]) -> None:
        """Prepare.

        Args:
            calls: Records them.
            step_aside: Removes the patches of functions for compilers that inspect functions instead of their source;
                returns a function that restores them.
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

    # A bytecode compiler sees the objects that a function uses, and recompiles if they change.

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
    # Python code that the compiler runs to fold constants is not a call of the user.
    with unseen_by_all():
        return function(*args, **kwargs)


def is_tracing() -> bool:
    """Whether a function runs only to be traced (``jit(capture_mode="trace")``)."""
    return _jit_context is not None and _jit_context() is not None


_jit_context: Callable[[], Any] | None = getattr(sys.modules.get("mindspore.graph.jit_context"), "jit_context", None)
