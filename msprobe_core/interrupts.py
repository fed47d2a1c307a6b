"""Handle Ctrl-C and termination signals so that none is lost, whatever code runs when it arrives.

Python raises a handler's exception wherever the interpreter happens to be. That may be a function called by native
code, which then continues without its result. Polars, for example, takes the exception for a failure to format an
object, and continues with ``<unprintable str object>`` in its place. The interruption is lost, and everything computed
afterwards is wrong.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_DEFAULTS: dict[str, Any] = {
    "SIGINT": signal.default_int_handler,
    "SIGTERM": signal.SIG_DFL,
    "SIGHUP": signal.SIG_DFL,  # Windows has none
}
"""The signals, and the handler of each if the program has set none; ``nohup``, for example, sets one."""

_PAUSE_S = 0.01
"""Delay before a lost interruption is raised again; native code should have returned by then."""


class Ended(KeyboardInterrupt):
    """The process was told to terminate, by a signal other than that of Ctrl-C."""


@final
class Interrupts:
    """Makes the signals raise `KeyboardInterrupt` inside its block, and ensures that they do.

    An interruption that native code reports as lost is raised again. One that it drops silently is raised by the next
    call of `raise_if_interrupted`, which long-running work calls before it trusts a result. In threads other than the
    main one, which receive no signals, it does nothing.

    Attributes:
        number: Number of the first signal that arrived; ``None`` if none has.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._is_closed = False
        self._former: dict[int, Any] = {}
        self._former_hook: Callable[[UnraisableHookArgs], Any] = sys.unraisablehook
        self._again: threading.Timer | None = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._former_hook, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
            for name, default in _DEFAULTS.items():
                number = getattr(signal, name, None)
                if number is not None and signal.getsignal(number) is default:
                    self._former[number] = signal.signal(number, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_closed = True
        if threading.current_thread() is not threading.main_thread():
            return
        if self._again is not None:
            self._again.cancel()
            self._again.join()
        for number, handler in self._former.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._former_hook

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        self.number = self.number or number
        if not self._is_closed:
            self.check()

    def check(self) -> None:
        """Raise if a signal has arrived.

        Raises:
            KeyboardInterrupt: it has; `Ended` if it is not that of Ctrl-C.
        """
        if self.number is not None:
            raise KeyboardInterrupt if self.number == signal.SIGINT else Ended

    def _on_unraisable(self, unraisable: UnraisableHookArgs) -> None:
        if self.number is None or not issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._former_hook(unraisable)
        elif self._again is None or not self._again.is_alive():
            self._again = threading.Timer(_PAUSE_S, _send, [self.number])
            self._again.start()


def _send(number: int) -> None:
    """Send a signal to the main thread, which interrupts what it waits for."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:  # Windows
        signal.raise_signal(number)


def raise_if_interrupted() -> None:
    """Raise an interruption that was lost; call it often, and before a result is kept.

    Libraries imported in the meantime may have installed their own handlers in place of Python's, as polars does. Its
    handler lets a wait for a lock continue after a signal, and continues work in processes that must not be
    interrupted. So Python's handler is restored.

    Raises:
        KeyboardInterrupt: an interruption was lost.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_ours = isinstance(handler, Interrupts)
    if (is_ours or handler is signal.SIG_IGN) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
    for name in _DEFAULTS:
        handler = signal.getsignal(getattr(signal, name, signal.SIGINT))
        if isinstance(handler, Interrupts):
            handler.check()


def is_of_a_signal(error: BaseException) -> bool:
    """Whether an exception was raised by a signal handler, or by code that a handler called.

    Python runs handlers wherever the main thread happens to be, so such an exception may pass through any code.
    """
    codes = {code for number in signal.valid_signals() if (code := _code_of(signal.getsignal(number))) is not None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    """Return the code of a function, a method, or a callable object; for a partial, of the function it calls."""
    function: object = getattr(handler, "func", handler)
    code: CodeType | None = getattr(function, "__code__", None)
    return code or getattr(vars(type(function)).get("__call__"), "__code__", None)
