"""Ctrl-C, and the signals that tell a process to end: none is lost, whatever runs when it comes.

Python has a handler raise its exception wherever the interpreter happens to be. That may be a function that native code
has called, which then goes on without it: polars formats an object, for example, takes the exception for a failure to
do so, and goes on with ``<unprintable str object>`` in the object's place. The interruption is lost, and what is
computed from there on is wrong.
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
"""The signals, and what becomes of each if nobody has said otherwise; ``nohup`` for example has."""

_PAUSE_S = 0.01
"""Before an interruption that was lost is raised again: native code should be left by then."""


class Ended(KeyboardInterrupt):
    """The process was told to end, by another signal than that of Ctrl-C."""


@final
class Interrupts:
    """Has the signals raise `KeyboardInterrupt` while its block lasts, and sees to it that they do.

    One that native code reports as lost is raised again. One that it drops in silence is raised by the next call of
    `raise_if_interrupted`, which long work makes before it takes a result for granted. In a thread other than the main
    one, which gets no signals, nothing is done.

    Attributes:
        number: Of the first signal that came; ``None`` if none has.
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
        """Raise if a signal has come.

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
    """Send a signal to the main thread, which ends what it waits for there."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:  # Windows
        signal.raise_signal(number)


def raise_if_interrupted() -> None:
    """Raise what an interruption should have raised that was lost; to be called often, and before a result is kept.

    Libraries that are imported in the meantime may have put handlers of their own before Python's, as polars does. It
    lets waiting for a lock go on after a signal, and works on in processes that are not to be interrupted. So Python's
    are put back.

    Raises:
        KeyboardInterrupt: it was lost.
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
    """Whether a handler of a signal has raised an exception, or something that it has called.

    Python runs handlers wherever the main thread happens to be, so that this may pass through any code.
    """
    codes = {code for number in signal.valid_signals() if (code := _code_of(signal.getsignal(number))) is not None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    """Return the code of a function, a method, or an object that can be called; of a partial, of what it calls."""
    function: object = getattr(handler, "func", handler)
    code: CodeType | None = getattr(function, "__code__", None)
    return code or getattr(vars(type(function)).get("__call__"), "__code__", None)
