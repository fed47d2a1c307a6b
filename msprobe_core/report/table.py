"""A table of results in any layout: columns computed from rows that it shares with the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import polars as pl

from msprobe_core.compare.result import UnitResult
from msprobe_core.judge.columns import Match
from msprobe_core.judge.verdict import Verdict

STACK_COLUMN = "stack_info"

_SLICE_ROWS = 8_192
"""Number of rows formatted at a time, so that memory does not depend on the length of a table."""


class TableLayout(str, Enum):
    """The columns of a table, and the format of their cells.

    Attributes:
        OURS: Numbers as numbers, target and golden, all available metrics.
        A: The layout of mstt 8.x, for scripts that read it.
        C: The layout of ``mindstudio-probe`` 26.x, for scripts that read it.
    """

    OURS = "ours"
    A = "a"
    C = "c"


class Width(float, Enum):
    """Width of a column in a spreadsheet, in characters."""

    NARROW = 10.0
    NUMBER = 16.0
    NAME = 48.0
    SENTENCE = 60.0


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        header: Text of its first cell.
        value: Content of its cells: texts, numbers or truth values.
        number: Numbers for spreadsheets in place of texts; null for a cell without one.
        is_percent: Whether spreadsheets show the number, a ratio, in percent.
        width: Width in a spreadsheet.
    """

    header: str
    value: pl.Expr
    number: pl.Expr | None = None
    is_percent: bool = False
    width: Width = Width.NUMBER


@dataclass(frozen=True)
class Colours:
    """How a spreadsheet colours rows.

    Attributes:
        column: Column of the rows that determines their colour.
        fills: Colour by value of that column, as RGB in hexadecimal; rows with other values are not coloured.
    """

    column: str
    fills: Mapping[str, str]


BY_VERDICT = Colours(
    "verdict",
    {
        Verdict.ERROR.value: "FFC7CE",
        Verdict.WARNING.value: "FFEB9C",
        Verdict.UNMATCHED.value: "D9D9D9",
    },
)


@dataclass(frozen=True)
class Table:
    """Columns, and the rows that they are computed from.

    Attributes:
        columns: From left to right.
        rows: The rows of the result.
        colours: Colours of the rows in a spreadsheet.
        is_shown: Which rows are in the table; ``None`` for all. The rows are not filtered beforehand, because a copy of
            so many rows takes more memory than everything else.
    """

    columns: Sequence[Column]
    rows: pl.DataFrame
    colours: Colours = BY_VERDICT
    is_shown: pl.Series | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows in the table."""
        return self.rows.height if self.is_shown is None else int(self.is_shown.sum())

    def cells(self) -> Iterator[pl.DataFrame]:
        """Yield the content of the cells, some rows at a time, with the headers as names."""
        for part in self.slices():
            yield part.select(column.value.alias(column.header) for column in self.columns)

    def slices(self) -> Iterator[pl.DataFrame]:
        """Yield the rows some at a time, at least once, so that an empty table has its columns."""
        for start in range(0, max(self.rows.height, 1), _SLICE_ROWS):
            part = self.rows.slice(start, _SLICE_ROWS)
            yield part if self.is_shown is None else part.filter(self.is_shown.slice(start, _SLICE_ROWS))


def with_stacks(result: UnitResult, text_of: Callable[[Sequence[str]], str]) -> pl.DataFrame:
    """Return the rows with a column ``stack_info``: the target's stack on the first row of each entry, else null.

    Args:
        result: Provides the rows and the stacks.
        text_of: Formats a stack as text.
    """
    is_first = (pl.int_range(pl.len()).over("entry") == 0) & (pl.col("match") != Match.GOLDEN.value)
    texts = _texts_of(result.stacks, text_of)
    entries = result.rows.select(pl.when(is_first).then(pl.col("entry")))["entry"].to_list()
    found = [None if entry is None else texts.get(entry) for entry in entries]
    # Many calls share one stack of several kilobytes: an enum stores each text once.
    kind = pl.Enum(list(dict.fromkeys(text for text in found if text is not None)))
    return result.rows.with_columns(pl.Series(STACK_COLUMN, found, dtype=kind))


def _texts_of(stacks: Mapping[str, Sequence[str]], text_of: Callable[[Sequence[str]], str]) -> dict[str, str]:
    """Return the text of each entry's stack, formatted once for entries that share one."""
    texts: dict[int, str] = {}
    for frames in stacks.values():
        if id(frames) not in texts:
            texts[id(frames)] = text_of(frames)
    return {entry: texts[id(frames)] for entry, frames in stacks.items()}
