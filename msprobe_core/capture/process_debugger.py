"""What there is once in a process: the debugger that the first construction makes, until it is closed."""

from __future__ import annotations

import atexit
import logging
import os
from typing import TYPE_CHECKING, Any, ClassVar

from msprobe_core.capture.controller import Controller
from msprobe_core.capture.framework_choice import find_framework
from msprobe_core.errors import SecondDebuggerError, SessionError
from msprobe_core.protocols.framework import Framework

if TYPE_CHECKING:
    from typing_extensions import Self

_logger = logging.getLogger(__name__)

_MAX_WAIT_AT_EXIT_S = 10.0
"""Longest wait, in seconds, of an ending process for a thread in start or stop; a daemon thread may never finish."""


class ProcessDebugger:
    """Makes and finds the debugger of this process; `PrecisionDebugger` is what users call."""

    framework_name: ClassVar[str | None] = None
    """The framework of a plugin's subclass; ``None`` here, where it is detected."""

    _instance: ClassVar[ProcessDebugger | None] = None
    _controller: Controller
    _model: Any
    """Model that ``start`` uses if it gets none."""
    _warnings: set[str]
    """Warnings that the log has already."""

    @classmethod
    def _made(cls, config_path: str | os.PathLike[str] | None, given: dict[str, Any], model: Any) -> Self:
        """Return the debugger of this process, created if there is none.

        Raises:
            MsprobeError: see `PrecisionDebugger`.
        """
        if ProcessDebugger._instance is not None:
            return cls._existing(config_path, given, model)
        debugger = object.__new__(cls)

        def forget() -> None:
            if ProcessDebugger._instance is debugger:
                ProcessDebugger._instance = None  # the child may create its own

        debugger._controller = Controller(config_path, given, debugger._framework, forget)
        debugger._model, debugger._warnings = model, set()
        ProcessDebugger._instance = debugger
        atexit.register(debugger._close_at_exit)
        if cls.framework_name is not None:
            try:
                debugger._controller.opened()
            except Exception:
                debugger.close()
                raise
        return debugger

    @classmethod
    def _existing(cls, config_path: str | os.PathLike[str] | None, given: dict[str, Any], model: Any) -> Self:
        existing = ProcessDebugger._instance
        if not isinstance(existing, cls):
            raise SecondDebuggerError(
                f"this process already has a {type(existing).__module__}.{type(existing).__name__}; close() it first"
            )
        existing._model = existing._model if model is None else model
        if not existing._controller.has_configuration(config_path, given):
            _logger.warning(
                "this process already has a PrecisionDebugger; it is returned, and the arguments of this construction "
                "are ignored: call close() before making another"
            )
        return existing

    def close(self) -> None:
        """Stop permanently, and allow another debugger to be created; also called when the process ends."""
        with self._controller.lock:
            self._give_way()
            self._controller.close()

    def _give_way(self) -> None:
        if ProcessDebugger._instance is self:
            ProcessDebugger._instance = None
            atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        lock = self._controller.lock
        is_locked = lock.acquire(timeout=_MAX_WAIT_AT_EXIT_S)
        try:
            self._give_way()
            self._controller.close_at_exit()
        finally:
            if is_locked:
                lock.release()

    @classmethod
    def _current(cls) -> Self:
        existing = ProcessDebugger._instance
        if existing is None:
            raise SessionError(f"no {cls.__name__} has been made yet; construct one before start(), stop() or step()")
        if not isinstance(existing, cls):
            raise SecondDebuggerError(
                f"the debugger of this process is a {type(existing).__module__}.{type(existing).__name__}"
            )
        return existing

    def _warn_once(self, warning: str, *values: object) -> None:
        if warning not in self._warnings:
            self._warnings.add(warning)
            _logger.warning(warning, *values)

    def _framework(self, model: Any) -> Framework:
        return find_framework(self.framework_name, model)
