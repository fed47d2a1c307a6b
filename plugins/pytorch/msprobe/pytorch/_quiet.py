"""The guard around the probe's own work: invisible to PyTorch's modes, and never raising into the training."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, cast

import torch
from torch._C import _DisableAutocast, _get_tracing_state, _len_torch_dispatch_stack, _set_tracing_state  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]

from msprobe_core.plugin import is_of_the_program, kept

_active_transform: Callable[[], Any] = cast("Any", torch._C)._functorch.peek_interpreter_stack
_is_any_autocast_enabled: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


class RecordingGuard:
    """Context manager; create a new one for each block.

    Inside, no graph is built, no ``__torch_function__`` is called, autocast, tracing and ``torch.func`` are off, and no
    dispatch mode of the user sees the probe's work. All of this ends with the block. An exception ends the block too,
    and is passed to ``on_failure``.
    """

    __slots__ = ("_autocast", "_functions", "_grad", "_modes", "_on_failure", "_trace", "_transforms")

    def __init__(self, on_failure: Callable[[str, Exception], None] | None = None) -> None:
        """Create a guard.

        Args:
            on_failure: Called with an exception, which is then suppressed; ``None`` lets exceptions propagate.
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
