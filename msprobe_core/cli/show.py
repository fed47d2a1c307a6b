"""Print a result on a terminal that may be full, or a pipe whose reader has gone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msprobe_core.errors import StoreError, printable

if TYPE_CHECKING:
    from rich.console import Console


def show(draw: Callable[[Console], None], advice: str) -> None:
    """Print. A reader that has closed its end of the pipe has seen enough; the exit status stays.

    Args:
        draw: Prints to the console that it is given.
        advice: Where else the result is, or how to get it there, for the error.

    Raises:
        StoreError: it cannot be written.
    """
    from rich.console import Console
    from rich.text import Text

    class PatientConsole(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            """Print; what is not to be seen in a text that may come out of a dump, such as an escape, is spelt out."""
            for text in objects:
                if isinstance(text, Text) and not text.plain.isprintable():
                    text.plain = printable(text.plain)
            super().print(*objects, **options)

        def on_broken_pipe(self) -> None:
            """Do not exit, which rich would do with status 1."""
            raise BrokenPipeError

    try:
        draw(PatientConsole(highlight=False))
        sys.stdout.flush()
    except OSError as error:
        # Python writes what is left when it ends, and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return
        raise StoreError(f"the result cannot be shown ({error.strerror or error}); {advice}") from error
