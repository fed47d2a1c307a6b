"""The block in which our own work is done: no graph is built and no call is seen in it, and no failure leaves it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

try:  # 2.8 and later
    from mindspore.graph.api import _pynative_executor  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
except ImportError:
    from mindspore.common.api import _pynative_executor  # pyright: ignore[reportAttributeAccessIssue]

from msprobe.mindspore._inside import inside
from msprobe_core.guard import UserCodeError, is_of_the_program, kept

executor: Any = _pynative_executor
"""What runs the dynamic graph."""


class RecordingGuard:
    """Context manager; make a new one for each block.

    No exception of ours leaves it: ``on_failure`` gets it. An `UserCodeError` does, as what it carries.
    """

    __slots__ = ("_builds_graph", "_on_failure", "_was_inside")

    def __init__(self, on_failure: Callable[[str, Exception], None] | None = None) -> None:
        """Make one.

        Args:
            on_failure: Is told of an exception, and the block then ends as if there were none; ``None`` lets
                exceptions through.
        """
        self._on_failure = on_failure

    def __enter__(self) -> None:
        self._builds_graph: bool = executor.enable_grad()
        if self._builds_graph:
            executor.set_enable_grad(False)
        self._was_inside = inside.value
        inside.value = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        inside.value = self._was_inside
        if self._builds_graph:
            executor.set_enable_grad(True)
        if isinstance(error, UserCodeError):
            raise error.error from None
        if self._on_failure is None or error is None or is_of_the_program(error):
            return False
        self._on_failure("a call", kept(error))
        return True
