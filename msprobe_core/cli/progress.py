"""The bar that a command draws while it works."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int, str], None]
"""Told how many are done, of how many, and what is counted or what the last one was."""


@contextmanager
def progress_bar(verb: str) -> Generator[Progress, None, None]:
    """Give a callback that draws a bar on the terminal, if there is one.

    Args:
        verb: What is being done, for example ``comparing``; what the callback names stands after it.
    """
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(verb, total=None)

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{verb} {what}")

        yield show
