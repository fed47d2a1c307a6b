"""One guard around every call into a plugin: whatever it raises, even ``sys.exit``, becomes an error that names it."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from msprobe_core.errors import MsprobeError, PluginError
from msprobe_core.interrupts import is_of_a_signal

_MAX_REASON = 300
"""Characters of an exception's description that are recorded in the place of a value."""


class UserCodeError(BaseException):
    """Carries an error of the training itself through the probe's code.

    A framework may report the error of an operator at the next synchronisation, which may be the probe's. If the probe
    suppressed it, it would be lost, and the training would continue with unwritten memory.
    """

    def __init__(self, error: Exception) -> None:
        """Wrap an error.

        Args:
            error: The training's error.
        """
        super().__init__(str(error))
        self.error = error


@contextmanager
def plugin_call(who: str, doing: str) -> Generator[None, None, None]:
    """Turn whatever a plugin raises in the block into a `PluginError`.

    Errors of msprobe, Ctrl-C, and exceptions raised by the program's own signal handlers pass through.

    Args:
        who: Description of the plugin's object, for example ``the writer 'csv' of the plugin 'tables'``.
        doing: Description of the operation, for example ``opening a dump``.

    Raises:
        PluginError: the block has raised.
    """
    try:
        yield
    except MsprobeError:
        raise
    except BaseException as error:
        if is_of_the_program(error):
            raise
        raise PluginError(f"{who} failed at {doing} ({described(error)})") from error


def is_of_the_program(error: BaseException) -> bool:
    """Whether an exception that passes through the probe's code must reach the program.

    These are Ctrl-C, exceptions raised by a signal handler, and `UserCodeError`.
    """
    if isinstance(error, UserCodeError):
        return True
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()  # others get no Ctrl-C
    return is_of_a_signal(error)


def kept(error: BaseException) -> Exception:
    """Return an exception that the probe handles itself, as an `Exception`.

    Raises:
        BaseException: it must reach the program; see `is_of_the_program`.
    """
    if is_of_the_program(error):
        raise error
    return error if isinstance(error, Exception) else PluginError(described(error))


def described(error: BaseException) -> str:
    """Return type and text of an exception in one line."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001  # of a third party
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def reason_of(error: BaseException) -> str:
    """Return type and text of an exception in one short line, to record in the place of a value."""
    return described(error)[:_MAX_REASON]
