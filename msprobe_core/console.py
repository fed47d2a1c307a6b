"""Lines of text on a terminal or in a log: never wrapped, and tables whose columns are aligned."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def print_lines(console: Console, lines: Iterable[str | Text]) -> None:
    """Print lines as they are: their brackets are no markup, and long ones are left to the terminal to wrap."""
    from rich.text import Text

    for line in lines:
        console.print(Text(line) if isinstance(line, str) else line, soft_wrap=True)


def aligned(rows: Sequence[Sequence[str]], left: Collection[int]) -> Iterator[str]:
    """Yield a line for each row, with two spaces between columns as wide as their longest cells.

    Args:
        rows: Cells of each row.
        left: Indices of the columns whose cells begin under one another; those of others end so.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
