"""One guard around every call into a plugin: what it raises, also ``sys.exit``, is an error that names it."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from msprobe_core.errors import MsprobeError, PluginError
from msprobe_core.interrupts import is_of_a_signal


class UserCodeError(BaseException):
    """Carries an error out of our work that is the training's own.

    A framework may report the error of an operator when a value is next waited for, which may be by us. Kept back, it
    would be lost, and the training would go on with unwritten memory.
    """

    def __init__(self, error: Exception) -> None:
        """Make one.

        Args:
            error: The training's.
        """
        super().__init__(str(error))
        self.error = error


@contextmanager
def plugin_call(who: str, doing: str) -> Generator[None, None, None]:
    """Turn whatever a plugin raises in the block into a `PluginError`.

    Errors of ours, Ctrl-C, and what the program's own signal handlers raise pass through.

    Args:
        who: The plugin's object, in words, for example ``the writer 'csv' of the plugin 'tables'``.
        doing: What it was to do, for example ``opening a dump``.

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
    """Whether an exception that passes through our code is not ours to keep.

    That is Ctrl-C, what a signal handler raises, and a `UserCodeError`.
    """
    if isinstance(error, UserCodeError):
        return True
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()  # others get no Ctrl-C
    return is_of_a_signal(error)


def kept(error: BaseException) -> Exception:
    """Return an exception that has to stay with us as one that is no order to end anything.

    Raises:
        BaseException: it is the program's; see `is_of_the_program`.
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
