"""Print a result on a terminal that may be full, or to a pipe whose reader may be gone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msprobe_core.console import print_lines
from msprobe_core.errors import StoreError, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def show(draw: Callable[[Console], None], advice: str) -> None:
    """Print a result. If the reader has closed its end of the pipe, stop silently; the exit status is unchanged.

    Args:
        draw: Prints to the console that it receives.
        advice: Where else the result is, or how to write it there, for the error.

    Raises:
        StoreError: it cannot be written.
    """
    from rich.console import Console
    from rich.text import Text

    class PatientConsole(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            """Print; invisible characters in text that may come from a dump, such as escapes, are spelt out."""
            for text in objects:
                if isinstance(text, Text) and not text.plain.isprintable():
                    text.plain = printable(text.plain)
            super().print(*objects, **options)

        def on_broken_pipe(self) -> None:
            """Do not exit; rich would exit with status 1."""
            raise BrokenPipeError

    with printing(advice):
        draw(PatientConsole(highlight=False))


def show_lines(lines: Iterable[str | Text], advice: str) -> None:
    """Print a result that is nothing but lines; see `show`."""
    show(lambda console: print_lines(console, lines), advice)


@contextmanager
def printing(advice: str) -> Generator[None, None, None]:
    """Print in the block, and do nothing else. If the reader has closed its end of the pipe, the block ends silently.

    Whatever is printed later goes nowhere, so a command does all of its work, and its exit status is unchanged.

    Args:
        advice: See `show`.

    Raises:
        StoreError: it cannot be written.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # Python flushes the rest at exit, and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise StoreError(f"the result cannot be shown ({error.strerror or error}); {advice}") from error
