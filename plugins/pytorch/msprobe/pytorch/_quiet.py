"""The block in which our own work is done: invisible to PyTorch's modes, and never raising into the training."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, cast

import torch
from torch._C import _DisableAutocast, _get_tracing_state, _len_torch_dispatch_stack, _set_tracing_state  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]

from msprobe_core.guard import is_of_the_program, kept

_active_transform: Callable[[], Any] = cast("Any", torch._C)._functorch.peek_interpreter_stack
_is_any_autocast_enabled: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


class RecordingGuard:
    """Context manager; make a new one for each block.

    Under it no graph is built, no ``__torch_function__`` is called, autocast, tracing and ``torch.func`` are off, and
    no dispatch mode of the user sees what we do. Nothing of that outlives the block; nor does an exception, which
    ``on_failure`` gets.
    """

    __slots__ = ("_autocast", "_functions", "_grad", "_modes", "_on_failure", "_trace", "_transforms")

    def __init__(self, on_failure: Callable[[str, Exception], None] | None = None) -> None:
        """Make one.

        Args:
            on_failure: Is told of an exception, and the block then ends as if there were none; ``None`` lets
                exceptions through.
        """
        self._on_failure = on_failure

    def __enter__(self) -> None:
        # First: switching grad mode is itself reported to function modes.
        self._functions = torch._C.DisableTorchFunction()
        self._functions.__enter__()
        self._grad = torch.is_grad_enabled()
        if self._grad:
            torch._C._set_grad_enabled(False)
        self._autocast = None
        if _is_any_autocast_enabled():
            self._autocast = _DisableAutocast()
            self._autocast.__enter__()
        self._trace = _get_tracing_state()
        if self._trace is not None:
            _set_tracing_state(None)
        self._transforms = None
        if _active_transform() is not None:
            self._transforms = torch._C._DisableFuncTorch()
            self._transforms.__enter__()
        self._modes = None
        if _len_torch_dispatch_stack():
            from torch.utils._python_dispatch import _disable_current_modes  # pyright: ignore[reportPrivateUsage]

            self._modes = _disable_current_modes()
            self._modes.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._modes is not None:
            self._modes.__exit__(kind, error, trace)
        if self._transforms is not None:
            self._transforms.__exit__(kind, error, trace)
        if self._trace is not None:
            _set_tracing_state(self._trace)
        if self._autocast is not None:
            self._autocast.__exit__(kind, error, trace)
        if self._grad is not torch.is_grad_enabled():
            torch._C._set_grad_enabled(self._grad)
        self._functions.__exit__(kind, error, trace)
        if self._on_failure is None or error is None or is_of_the_program(error):
            return False
        self._on_failure("a call", kept(error))
        return True
