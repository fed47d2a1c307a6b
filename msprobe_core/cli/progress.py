"""What a command shows of its progress: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console

Progress: TypeAlias = Callable[[int, int, str], None]
"""Told how many are done, of how many, and what is counted or what the last one was."""

LINE_PERIOD_S = 30.0
"""How often a log gets a line, at the most; what takes less time than this gets none."""


@contextmanager
def progress_bar(verb: str, clock: Callable[[], float] = time.monotonic) -> Generator[Progress, None, None]:
    """Give a callback that draws a bar on the terminal or, where there is none, writes a line now and then.

    Args:
        verb: What is being done, for example ``comparing``; what the callback names stands after it.
        clock: Seconds that never go back.
    """
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(verb, console, clock)
        return
    with Bar(console=console, transient=True) as bar:
        task = bar.add_task(verb, total=None)

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{verb} {what}")

        yield show


def _lines(verb: str, console: Console, clock: Callable[[], float]) -> Progress:
    last = clock()

    def show(done: int, total: int, what: str) -> None:
        nonlocal last
        now = clock()
        if now - last < LINE_PERIOD_S:
            return
        last = now
        counts = f"{done:,} of {total:,}"
        line = (
            f"msprobe: {verb} {what}: {done / total:.0%} ({counts})" if total else f"msprobe: {verb} {what}: {done:,}"
        )
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    return show
