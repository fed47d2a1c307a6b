"""A guard under which our own tensor work is invisible: to autograd, to function modes and to autocast."""

from __future__ import annotations

from types import TracebackType

import torch
from torch._C import _DisableAutocast, _len_torch_dispatch_stack  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]


class Quiet:
    """Context manager; make a new one for each block.

    Under it no graph is built, no ``__torch_function__`` is called, autocast is off, and no dispatch mode of the user
    sees what we do. Nothing of that outlives the block.
    """

    __slots__ = ("_autocast", "_functions", "_grad", "_modes")

    def __enter__(self) -> None:
        # First: switching grad mode is itself reported to function modes.
        self._functions = torch._C.DisableTorchFunction()
        self._functions.__enter__()
        self._grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        self._autocast = _DisableAutocast()
        self._autocast.__enter__()
        self._modes = None
        if _len_torch_dispatch_stack():
            from torch.utils._python_dispatch import _disable_current_modes  # pyright: ignore[reportPrivateUsage]

            self._modes = _disable_current_modes()
            self._modes.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._modes is not None:
            self._modes.__exit__(kind, error, trace)
        self._autocast.__exit__(kind, error, trace)
        torch._C._set_grad_enabled(self._grad)
        self._functions.__exit__(kind, error, trace)
