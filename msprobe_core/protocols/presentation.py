"""Extensions that present results: result tables of other formats, and files for other viewers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import polars as pl

_SLICE_ROWS = 8_192
"""Rows whose cells are computed at a time, so that writing takes the same memory for a table of any length."""


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
        header: Text of its header.
        value: Its cells: texts, numbers or booleans.
        number: Numbers that spreadsheets get instead of texts; null for a cell that has none.
        is_percent: Whether spreadsheets show the number, a ratio, in percent.
        width: Its width in a spreadsheet.
    """

    header: str
    value: pl.Expr
    number: pl.Expr | None = None
    is_percent: bool = False
    width: Width = Width.NUMBER


@dataclass(frozen=True)
class Colours:
    """The fills of rows in a spreadsheet.

    Attributes:
        column: The column of the rows that selects the fill.
        fills: Fill by value of that column, as RGB in hexadecimal; rows with other values are not coloured.
    """

    column: str
    fills: Mapping[str, str]


@dataclass(frozen=True)
class Companion:
    """A file to write next to a table.

    Attributes:
        name: Beginning of its name; the rank and the time follow, as in the name of the table.
        suffix: Without the dot.
        content: All of it.
    """

    name: str
    suffix: str
    content: bytes


class TableRows(Protocol):
    """The rows of a table: a `polars.DataFrame`, or rows in files with these methods of it."""

    @property
    def height(self) -> int:
        """Number of rows."""
        ...

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        ...

    def select(self, *columns: Any, **named: Any) -> pl.DataFrame:
        """Return expressions over all rows."""
        ...

    def slice(self, offset: int, length: int, /) -> pl.DataFrame:
        """Return consecutive rows."""
        ...

    def iter_slices(self, length: int, /) -> Iterator[pl.DataFrame]:
        """Yield all rows, as many at a time."""
        ...


@dataclass(frozen=True)
class Table:
    """Columns, and the rows that their cells are computed from.

    Attributes:
        columns: From left to right.
        rows: The rows of the result, in their order; a format may add columns to them.
        colours: The fills of rows in a spreadsheet; ``None`` for those by verdict.
        is_shown: Which rows the table has; ``None`` for all. A filtered copy of the rows would take more memory than
            everything else.
        marks: What the file name has between ``compare_result`` and the time; ``None`` for the rank, if there is one.
        companions: Files to write next to it.
    """

    columns: Sequence[Column]
    rows: TableRows
    colours: Colours | None = None
    is_shown: pl.Series | None = None
    marks: Sequence[str] | None = None
    companions: Sequence[Companion] = ()

    @property
    def num_rows(self) -> int:
        """Number of rows of the table."""
        return self.rows.height if self.is_shown is None else int(self.is_shown.sum())

    def cells(self) -> Iterator[pl.DataFrame]:
        """Yield the cells, some rows at a time, with the headers as names."""
        for part in self.slices():
            yield part.select(column.value.alias(column.header) for column in self.columns)

    def slices(self) -> Iterator[pl.DataFrame]:
        """Yield the rows that the cells show, in the same slices; at least one, so that an empty table has columns."""
        slices = self.rows.iter_slices(_SLICE_ROWS) if self.rows.height else [self.rows.slice(0, 0)]
        for number, part in enumerate(slices):
            shown = None if self.is_shown is None else self.is_shown.slice(number * _SLICE_ROWS, _SLICE_ROWS)
            yield part if shown is None else part.filter(shown)


@dataclass(frozen=True, kw_only=True)
class TableChoices:
    """What the user asked of a table. A format ignores what it does not have.

    Attributes:
        has_stacks: Whether to show call stacks, where they are known; ``None`` for the format's own default.
        has_highlights: Whether to colour rows by the format's own rules instead of the verdict.
        has_advice: Whether to write companions that advise where to look.
    """

    has_stacks: bool | None = None
    has_highlights: bool = False
    has_advice: bool = False


class TableFormat(Protocol):
    """A format of the result tables: which columns they have, and what their cells look like."""

    @property
    def name(self) -> str:
        """Value of ``msprobe compare --compat`` that selects it."""
        ...

    @property
    def summary(self) -> str:
        """What the tables are like, for the help text: ``Write tables in the format of SUMMARY``."""
        ...

    def table(self, unit: Any, choices: TableChoices) -> Table:
        """Return the table of one pair of dumps, in the process that compared it.

        Args:
            unit: The comparison: `msprobe_core.compare.result.UnitResult`. Its ``rows`` are described in
                ``docs/compare.md``.
            choices: What the user asked of the table.
        """
        ...

    def titles(self) -> Collection[str]:
        """Return the headers that tables of whole tensors may have. A plugin's metric with such a name is rejected."""
        ...


class PageGraphs(Protocol):
    """The graphs of a page, held outside of its data because there may be thousands."""

    def content(self, number: int) -> bytes | None:
        """Return the graph of a unit as JSON, see ``docs/view_format.md``; ``None`` if there is none."""
        ...


@dataclass(frozen=True)
class Page:
    """The page to export, and the destination.

    Attributes:
        data: Contents of the page: `msprobe_core.view.data.ViewData`, described in ``docs/view_format.md``.
        graphs: The graphs of its units.
        directory: The value of ``-o``; may not exist.
        stem: Beginning of the names of files that must not be overwritten: ``build_TIME`` for one run, ``compare_TIME``
            for two.
    """

    data: Any
    graphs: PageGraphs
    directory: Path
    stem: str


class Export(Protocol):
    """A format of another viewer."""

    @property
    def name(self) -> str:
        """Option of ``msprobe export`` that selects it, without the dashes."""
        ...

    @property
    def summary(self) -> str:
        """Help text of the option: one sentence."""
        ...

    @property
    def needs_graphs(self) -> bool:
        """Whether it exports graphs. An input without graphs, such as a monitor's files, is then rejected."""
        ...

    def write(self, page: Page) -> Sequence[Path]:
        """Write the files and return them.

        Raises:
            StoreError: a file cannot be written.
            CompareError: the page has nothing to export in this format.
        """
        ...


class ReportFormat(Protocol):
    """A report on a result, in addition to the files that a command always writes."""

    @property
    def name(self) -> str:
        """Value of ``--report`` that selects it."""
        ...

    @property
    def summary(self) -> str:
        """What the report is: one sentence."""
        ...

    @property
    def suffix(self) -> str:
        """Of the file, without the dot."""
        ...

    def comparison(self, summary: Mapping[str, Any]) -> str:
        """Return the report on a comparison.

        Args:
            summary: Content of ``summary.json``, described in ``docs/compare.md``.
        """
        ...

    def location(self, found: Mapping[str, Any]) -> str:
        """Return the report on a search for the first divergence.

        Args:
            found: Content of ``locate.json``, described in ``docs/locate.md``.
        """
        ...
