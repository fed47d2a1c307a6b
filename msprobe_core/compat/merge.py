"""Put the results of several ranks side by side: ``msprobe merge_result``.

The spreadsheet has one sheet for each index, such as ``MaxAbsErr``, with a row for each value of the chosen APIs, in
execution order, and a column for each rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import polars as pl

from msprobe_core.compare.result import Mode
from msprobe_core.compat.read_table import NAMES, ROW_NAME, ResultTable, Wording, rank_files, read_table
from msprobe_core.compat.spellings import METRICS, RELATIVE_STATISTICS, STATISTIC_TITLES
from msprobe_core.config.text import read_yaml
from msprobe_core.errors import CompareError, ConfigError
from msprobe_core.judge.formatting import formatted
from msprobe_core.judge.statistics_columns import STATISTICS
from msprobe_core.protocols.presentation import Width
from msprobe_core.report.default_table import TENSOR_HEADERS
from msprobe_core.report.files import time_stamp
from msprobe_core.report.sheet import MAX_SHEET_ROWS, Sheet, SheetColumn, SheetPart, write_book
from msprobe_core.report.summary import incomplete_of
from msprobe_core.store.atomic_file import unused_paths, whole_file
from msprobe_core.store.layout import make_directory

_INDICES: Mapping[Mode, Mapping[str, str]] = {
    Mode.STATISTICS: {
        **{f"{title} diff": f"{name}_diff" for name, title in STATISTIC_TITLES.items()},
        **{f"{title}RelativeErr": f"{name}_rel_diff" for name, title in RELATIVE_STATISTICS.items()},
    },
    Mode.TENSOR: {title: TENSOR_HEADERS[name] for name, title in METRICS.items()},
}
"""The indices of a mode in the order of their sheets: the header of the established tool, and ours."""

_CONSISTENT_GRAD = "Requires_grad Consistent"
"""A further index of the established tool."""

_NO_NUMBER = ("N/A", "unsupported", "Nan", "NaN")
"""Cells without a number; the values of both sides are shown instead."""

_NUMBER = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"
_MAX_TITLE = 31
"""Maximum length of a sheet's name, in characters. Source: Microsoft, *Excel specifications and limits*."""


class MergeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to merge.

    Attributes:
        api: Parts of the names of rows, up to a dot: ``Functional.gelu.1.forward``.
        compare_index: Columns of the tables; all indices of the mode if there are none.
    """

    api: tuple[str, ...]
    compare_index: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Merged:
    """The outcome of a merge.

    Attributes:
        path: The spreadsheet.
        ranks: Ranks whose results it has.
        num_rows: Number of rows of each sheet.
        indices: Indices, one for each sheet.
        unknown: Parts of names that no row has.
        incomplete: Which of the compared dumps ended early, are damaged or missing, as far as ``summary.json`` says.
    """

    path: Path
    ranks: Sequence[int]
    num_rows: int
    indices: Sequence[str]
    unknown: Sequence[str]
    incomplete: Sequence[str]


def read_request(path: Path) -> MergeRequest:
    """Read a YAML file with ``api`` and, optionally, ``compare_index``.

    Raises:
        ConfigError: it cannot be read, or has other content.
    """
    example = "it needs a list 'api', for example api: [Functional.gelu.1.forward]"
    content = read_yaml(path, kind="a list of rows and indices", advice="give a YAML file", fault="is not valid YAML")
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: holds {type(content).__name__}; {example}")
    try:
        request = msgspec.convert(content, MergeRequest)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}; known fields are 'api' and 'compare_index', lists of text") from error
    for name, texts in (("api", request.api), ("compare_index", request.compare_index)):
        if texts is not None and not all(text.strip() for text in texts):
            raise ConfigError(f"{path}: '{name}' has an empty text")
    if not request.api:
        raise ConfigError(f"{path}: 'api' is empty; {example}")
    return request


def merge_results(directory: Path, output: Path, request: MergeRequest) -> Merged:
    """Merge the tables of the ranks in a directory into one spreadsheet.

    Args:
        directory: Holds ``compare_result_rank{n}_{time}``, as csv or xlsx, of any layout.
        output: For the spreadsheet; created if it is missing.
        request: Which rows and which columns.

    Raises:
        CompareError: there are not two tables, one cannot be read, or none has a requested row.
        ConfigError: an index is not one of their columns.
        StoreError: the spreadsheet cannot be written.
    """
    files = rank_files(directory)
    if len(files) < 2:
        raise CompareError(
            f"{directory}: holds {len(files) or 'no'} result{'s' * (len(files) != 1)} of a rank; give the directory of "
            "a comparison of two ranks or more, which holds compare_result_rank0_20250101120000.csv or .xlsx, and so on"
        )
    tables = [read_table(file, lambda name: _is_of(name, request.api)) for file in files]
    indices = _indices(tables, request)
    order = _in_order(tables)
    _check_rows(tables, request, len(order))
    make_directory(output)
    (path,) = unused_paths(output, f"multi_ranks_compare_merge_{time_stamp()}", ["xlsx"])
    with whole_file(path) as file:
        write_book(file, [_sheet(index, tables, order) for index in indices])
    unknown = [api for api in request.api if not any(f"{api}." in name for name, _ in order)]
    ranks = [table.file.rank for table in tables]
    return Merged(path, ranks, len(order), indices, unknown, incomplete_of(directory, [file.path for file in files]))


def _is_of(name: pl.Expr, apis: Sequence[str]) -> pl.Expr:
    return pl.any_horizontal(*[name.str.contains(f"{api}.", literal=True) for api in apis])


def _check_rows(tables: Sequence[ResultTable], request: MergeRequest, number: int) -> None:
    place = tables[0].file.path.parent
    if number >= MAX_SHEET_ROWS:
        raise CompareError(f"{place}: {number:,} rows are more than a sheet can hold; name fewer APIs in 'api'")
    if not number:
        raise CompareError(
            f"{place}: no row of any rank is of {', '.join(request.api)}; 'api' has parts of the names in the tables, "
            "up to a dot, for example Functional.gelu.1.forward"
        )


def _indices(tables: Sequence[ResultTable], request: MergeRequest) -> Sequence[str]:
    """Return the headers to merge: those of the tables, or of the established tool if the tables differ in them."""
    first = tables[0]
    for table in tables:
        if table.mode is not first.mode:
            raise CompareError(
                f"{first.file.path.name} is of the mode {first.mode.value} and {table.file.path.name} of the mode "
                f"{table.mode.value}; only results of one mode can be merged"
            )
    if first.mode is Mode.CHECKSUM:
        raise CompareError(
            f"{first.file.path}: is of the mode md5, whose tables have no numbers to merge; compare dumps with "
            "statistics or tensors"
        )
    if request.compare_index:
        return [_spelled(index, tables) for index in dict.fromkeys(request.compare_index)]
    by_their_words = any(table.wording is Wording.COMPAT for table in tables)
    known = _INDICES[first.mode]
    if not by_their_words:
        return list(known.values())
    return [*known, *([_CONSISTENT_GRAD] if all(_CONSISTENT_GRAD in table.headers for table in tables) else [])]


def _spelled(index: str, tables: Sequence[ResultTable]) -> str:
    """Return an index, which may be any column under either tool's header, if a table has it."""
    if not any(_column(index, table) for table in tables):
        known = [header for header in tables[0].headers if header not in NAMES[tables[0].wording]]
        raise ConfigError(f"'compare_index' has {index!r}, which no table has; their columns are {', '.join(known)}")
    return index


def _column(index: str, table: ResultTable) -> str | None:
    """Return the table's column for an index; ``None`` if it has none."""
    if index in table.headers:
        return index
    theirs_to_ours = _INDICES[table.mode]
    ours_to_theirs = {ours: theirs for theirs, ours in theirs_to_ours.items()}
    other = theirs_to_ours.get(index) or ours_to_theirs.get(index)
    return other if other in table.headers else None


_Key = tuple[str, int]
"""Name of a row, and its 0-based number among the rows of that name."""


def _in_order(tables: Iterable[ResultTable]) -> list[_Key]:
    """Return the rows of all ranks in execution order; a row that some ranks lack follows its predecessor."""
    order: list[_Key] = []
    known: set[_Key] = set()
    for table in tables:
        followers: dict[_Key | None, list[_Key]] = {}
        last: _Key | None = None
        for key in _keys(table):
            if key in known:
                last = key
            else:
                followers.setdefault(last, []).append(key)
        known.update(key for group in followers.values() for key in group)
        order = followers.get(None, []) + [row for key in order for row in (key, *followers.get(key, ()))]
    return order


def _keys(table: ResultTable) -> list[_Key]:
    numbers: dict[str, int] = {}
    keys: list[_Key] = []
    for name in table.rows[ROW_NAME].to_list():
        keys.append((name, numbers.get(name, 0)))
        numbers[name] = keys[-1][1] + 1
    return keys


def _sheet(index: str, tables: Sequence[ResultTable], order: Sequence[_Key]) -> Sheet:
    title = NAMES[Wording.COMPAT if any(t.wording is Wording.COMPAT for t in tables) else Wording.OURS][0]
    ranks = [f"rank{table.file.rank}" for table in tables]
    columns = [SheetColumn(title, Width.NAME.value), *[SheetColumn(rank, Width.NAME.value / 2) for rank in ranks]]
    cells = [dict(zip(_keys(table), _cells(index, table), strict=True)) for table in tables]
    texts = pl.DataFrame(
        [
            pl.Series(title, [name for name, _ in order], dtype=pl.String),
            *[
                pl.Series(rank, [own.get(key) for key in order], dtype=pl.String)
                for rank, own in zip(ranks, cells, strict=True)
            ],
        ]
    )
    numbers = texts.select(
        pl.when(pl.col(rank).str.contains(_NUMBER)).then(pl.col(rank)).cast(pl.Float64, strict=False) for rank in ranks
    )
    part = SheetPart(texts, {series.name: series for series in numbers.iter_columns()})
    return Sheet(_title(index), columns, len(order), [part])


def _title(index: str) -> str:
    """Return the name of an index's sheet, without characters that are not allowed in it."""
    return "".join("_" if c in "[]:*?/\\" else c for c in index)[:_MAX_TITLE]


def _cells(index: str, table: ResultTable) -> list[str | None]:
    """Return a column, with the values of both sides in cells without a number."""
    column = _column(index, table)
    if column is None:
        return [None] * table.rows.height
    indices = _INDICES[table.mode]
    is_index = column in indices or column in indices.values()
    return table.rows.select(_with_values(column, table) if is_index else column).to_series().to_list()


def _with_values(column: str, table: ResultTable) -> pl.Expr:
    """Return an index, with its statistic of both sides in cells without a number."""
    statistic = next((name for name in STATISTICS if column.lower().removeprefix("l2").startswith(name)), "max")
    if table.wording is Wording.OURS:
        titles = {side: (f"{side}_{statistic}", f"{side}_value") for side in ("target", "golden")}
    else:
        shown = "l2norm" if statistic == "norm" else statistic
        titles = {side: (f"{side} {shown}",) for side in ("NPU", "Bench")}
    values = [
        pl.coalesce(*[pl.col(header) for header in headers if header in table.headers], pl.lit("N/A"))
        for headers in titles.values()
    ]
    index = pl.col(column)
    text = formatted("{}:{{}}  {}:{{}}".format(*titles), *values)
    return pl.when(index.is_null() | index.is_in(_NO_NUMBER)).then(text).otherwise(index).alias(column)
