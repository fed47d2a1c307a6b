"""Progress display of a command: a bar on a terminal, occasional lines in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with the number of finished items, the total, and the unit or the name of the last one."""

LINE_PERIOD_S = 30.0
"""Minimum interval between two lines in a log; shorter work gets none."""


@contextmanager
def progress_bar(verb: str, clock: Callable[[], float] = time.monotonic) -> Generator[Progress, None, None]:
    """Provide a callback that draws a bar on the terminal or, without one, writes occasional lines.

    Args:
        verb: Description of the work, for example ``comparing``; the callback's text follows it.
        clock: Monotonic clock, in seconds.
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
