"""A table of results: its columns, whatever the layout, over rows that it shares with the result."""

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
"""How many rows are put into text at a time, so that a table of any length takes the same memory to write."""


class TableLayout(str, Enum):
    """Which columns a table has, and what its cells look like.

    Attributes:
        OURS: Numbers as numbers, target and golden, every measure there is.
        A: That of mstt 8.x, for scripts that read it.
        C: That of ``mindstudio-probe`` 26.x, likewise.
    """

    OURS = "ours"
    A = "a"
    C = "c"


class Width(float, Enum):
    """How wide a column is in a spreadsheet, in characters."""

    NARROW = 10.0
    NUMBER = 16.0
    NAME = 48.0
    SENTENCE = 60.0


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        header: What its first cell says.
        value: What its cells hold: texts, numbers or truth values.
        number: The numbers behind texts, which spreadsheets get instead; null for a cell that has none.
        is_percent: Whether spreadsheets show the number, a ratio, in percent.
        width: In a spreadsheet.
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
        column: Of the rows, by which they are coloured.
        fills: Colour by what stands there, as RGB in hexadecimal; what is not here is not coloured.
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
        rows: Those of the result.
        colours: Of the rows, in a spreadsheet.
        is_shown: Which rows are in the table; ``None`` for all. Not taken out beforehand, as a copy of so many rows
            takes more memory than all else.
    """

    columns: Sequence[Column]
    rows: pl.DataFrame
    colours: Colours = BY_VERDICT
    is_shown: pl.Series | None = None

    @property
    def num_rows(self) -> int:
        """How many rows the table has."""
        return self.rows.height if self.is_shown is None else int(self.is_shown.sum())

    def cells(self) -> Iterator[pl.DataFrame]:
        """Yield what the cells hold, some rows at a time, with the headers as names."""
        for part in self.slices():
            yield part.select(column.value.alias(column.header) for column in self.columns)

    def slices(self) -> Iterator[pl.DataFrame]:
        """Yield the rows that cells are made of, likewise; at least once, so that an empty table has its columns."""
        for start in range(0, max(self.rows.height, 1), _SLICE_ROWS):
            part = self.rows.slice(start, _SLICE_ROWS)
            yield part if self.is_shown is None else part.filter(self.is_shown.slice(start, _SLICE_ROWS))


def with_stacks(result: UnitResult, text_of: Callable[[Sequence[str]], str]) -> pl.DataFrame:
    """Return the rows with a column ``stack_info``: the target's stack on the first row of each entry, else null.

    Args:
        result: Has the rows and the stacks.
        text_of: Makes the text of a stack.
    """
    is_first = (pl.int_range(pl.len()).over("entry") == 0) & (pl.col("match") != Match.GOLDEN.value)
    texts = _texts_of(result.stacks, text_of)
    entries = result.rows.select(pl.when(is_first).then(pl.col("entry")))["entry"].to_list()
    found = [None if entry is None else texts.get(entry) for entry in entries]
    # Many calls share one stack of several kilobytes: each text is held once.
    kind = pl.Enum(list(dict.fromkeys(text for text in found if text is not None)))
    return result.rows.with_columns(pl.Series(STACK_COLUMN, found, dtype=kind))


def _texts_of(stacks: Mapping[str, Sequence[str]], text_of: Callable[[Sequence[str]], str]) -> dict[str, str]:
    """Return the text of each entry's stack, made once for the entries that share one."""
    texts: dict[int, str] = {}
    for frames in stacks.values():
        if id(frames) not in texts:
            texts[id(frames)] = text_of(frames)
    return {entry: texts[id(frames)] for entry, frames in stacks.items()}
