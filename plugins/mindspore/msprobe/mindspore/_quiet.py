"""The guard around the probe's own work: no graph is built and no call is recorded inside, and no failure escapes."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

try:  # 2.8 and later
    from mindspore.graph.api import _pynative_executor  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
except ImportError:
    from mindspore.common.api import _pynative_executor  # pyright: ignore[reportAttributeAccessIssue]

from msprobe.mindspore._unrecorded_calls import hidden, inside
from msprobe_core.plugin import UserCodeError, is_of_the_program, kept

executor: Any = _pynative_executor
"""The executor of the dynamic graph."""


class RecordingGuard:
    """Context manager; create a new one for each block.

    No exception of the probe escapes: ``on_failure`` receives it. A `UserCodeError` escapes, as the error that it
    carries.
    """

    __slots__ = ("_builds_graph", "_on_failure", "_was_hidden", "_was_inside")

    def __init__(self, on_failure: Callable[[str, Exception], None] | None = None) -> None:
        """Create a guard.

        Args:
            on_failure: Called with an exception, which is then suppressed; ``None`` lets exceptions propagate.
        """
        self._on_failure = on_failure

    def __enter__(self) -> None:
        self._builds_graph: bool = executor.enable_grad()
        if self._builds_graph:
            executor.set_enable_grad(False)
        self._was_inside, self._was_hidden = inside.value, hidden.value
        inside.value = hidden.value = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        inside.value, hidden.value = self._was_inside, self._was_hidden
        if self._builds_graph:
            executor.set_enable_grad(True)
        if isinstance(error, UserCodeError):
            raise error.error from None
        if self._on_failure is None or error is None or is_of_the_program(error):
            return False
        self._on_failure("a call", kept(error))
        return True
