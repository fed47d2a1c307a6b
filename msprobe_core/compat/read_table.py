"""Read result tables, csv and xlsx, with our headers or those of the established tool."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from io import FileIO
from pathlib import Path
from typing import Any

import polars as pl

from msprobe_core.compare.result import Mode
from msprobe_core.errors import CompareError, UnreadableResultError
from msprobe_core.untrusted.files import most_unfolded, open_plain, read_plain, reading
from msprobe_core.untrusted.malformed import MalformedError

MAX_BYTES = 1 << 30
"""Largest table that is read, in bytes."""

_MOST_PER_PACKED_BYTE = 64
"""Limit of decompression: a spreadsheet is a zip file, which compresses equal cells to a twenty-fifth."""

_MAX_DESCRIBING_BYTES = 1 << 20
"""Limit for styles and other metadata, which take a hundred times as much memory when they are loaded."""

_BYTES_PER_CELL = 16

# Releases up to 8.x name both sides: compare_result_rank1-rank1_….
_RANK_TABLE = re.compile(r"compare_result_rank(\d+)(?:-rank\d+)?_(\d{14})(?:_\d+)?\.(csv|xlsx)", re.ASCII)


class Wording(str, Enum):
    """The tool whose headers a table has."""

    OURS = "ours"
    COMPAT = "compat"


NAMES = {Wording.OURS: ("target_name", "golden_name"), Wording.COMPAT: ("NPU Name", "Bench Name")}
"""Headers of the names of both sides."""


@dataclass(frozen=True)
class RankFile:
    """The file of one rank's table, with the time in its name."""

    path: Path
    rank: int
    stamp: str


@dataclass(frozen=True)
class ResultTable:
    """Some rows of one rank's table.

    Attributes:
        file: Its file.
        headers: All of them.
        rows: Texts, with all columns; null for an empty cell.
    """

    file: RankFile
    headers: Sequence[str]
    rows: pl.DataFrame

    @property
    def wording(self) -> Wording:
        """The tool whose headers it has."""
        return Wording.OURS if NAMES[Wording.OURS][0] in self.headers else Wording.COMPAT

    @property
    def mode(self) -> Mode:
        """What was compared, by the headers."""
        if {"Cosine", "cosine_similarity"} & {*self.headers}:
            return Mode.TENSOR
        if {"Max diff", "max_diff"} & {*self.headers}:
            return Mode.STATISTICS
        return Mode.CHECKSUM


def rank_files(directory: Path) -> list[RankFile]:
    """Return the tables of ranks in a directory, by rank.

    Of a spreadsheet and a csv file of one name, the csv file is read, because the sheet may lack rows.

    Raises:
        CompareError: the directory cannot be read, or has several results of one rank.
    """
    with reading(directory, CompareError):
        names = sorted(path.name for path in directory.iterdir() if path.is_file())
    found: dict[int, list[RankFile]] = {}
    for name in names:
        if match := _RANK_TABLE.fullmatch(name):
            file = RankFile(directory / name, int(match[1]), match[2])
            others = found.setdefault(file.rank, [])
            if not any(other.path.stem == file.path.stem for other in others):  # csv sorts before xlsx
                others.append(file)
    for rank, files in sorted(found.items()):
        if len(files) > 1:
            raise CompareError(
                f"{directory}: holds {len(files)} results of rank {rank}, {files[0].path.name} and "
                f"{files[1].path.name}; leave one of each rank there"
            )
    return [found[rank][0] for rank in sorted(found)]


def read_table(file: RankFile, is_wanted: Callable[[pl.Expr], pl.Expr]) -> ResultTable:
    """Read selected rows of a table.

    Args:
        file: The table.
        is_wanted: Selects rows by name: the target's name, or the golden one if the target lacks the row.

    Raises:
        CompareError: it cannot be read, or is not a result of a comparison.
    """
    path = file.path
    rows = _read(path)
    headers = rows.columns
    for names in NAMES.values():
        if names[0] in headers and names[1] in headers:
            target, golden = (pl.col(name) for name in names)
            name = pl.when(target.is_null() | (target == "N/A")).then(golden).otherwise(target)
            named = rows.with_columns(name.alias(ROW_NAME))
            return ResultTable(file, headers, named.filter(is_wanted(pl.col(ROW_NAME))))
    raise UnreadableResultError(
        f"{path}: is no result of a comparison: it has neither a column 'target_name' nor a column 'NPU Name'"
    )


ROW_NAME = "\0name"
"""Column that `read_table` adds: the name of the row."""


def _read(path: Path) -> pl.DataFrame:
    try:
        return _read_csv(path) if path.suffix == ".csv" else _read_xlsx(path)
    except CompareError:
        raise
    except OSError as error:
        raise CompareError(f"{path}: cannot be read ({error.strerror or error})") from error
    except Exception as error:  # the libraries raise errors of many types
        raise UnreadableResultError(
            f"{path}: is no table that can be read ({type(error).__name__}: {error})"
        ) from error


def _read_csv(path: Path) -> pl.DataFrame:
    return pl.read_csv(read_plain(path, MAX_BYTES), infer_schema=False)


def _read_xlsx(path: Path) -> pl.DataFrame:
    # Imported here: openpyxl takes longer to import than most commands take.
    from openpyxl import load_workbook

    with open_plain(path) as file:
        size = _checked_size(path, file)
        book: Any = load_workbook(file, read_only=True, data_only=True)
        try:
            sheet = book.worksheets[0]
            headers = [str(header) for header in next(sheet.iter_rows(max_row=1, values_only=True), ())]
            if len({*headers}) < len(headers):
                raise CompareError(f"{path}: has several columns of one name")
            lines = sheet.iter_rows(min_row=2, max_col=len(headers), values_only=True)
            texts = list(_bounded(lines, len(headers), most_unfolded(size)))
        finally:
            book.close()
    return pl.DataFrame(texts, schema=dict.fromkeys(headers, pl.String), orient="row")


def _checked_size(path: Path, file: FileIO) -> int:
    """Return the size of a spreadsheet in bytes.

    Raises:
        CompareError: it or its decompressed content is too large.
    """
    size = file.seek(0, io.SEEK_END)
    if size > MAX_BYTES:
        raise CompareError(f"{path}: is larger than {MAX_BYTES >> 30} GiB")
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
    is_content = re.compile(r"xl/(worksheets/.*|sharedStrings\.xml)")
    others = sum(member.file_size for member in members if not is_content.fullmatch(member.filename))
    if others > _MAX_DESCRIBING_BYTES or sum(member.file_size for member in members) > (
        _MAX_DESCRIBING_BYTES + _MOST_PER_PACKED_BYTE * size
    ):
        raise CompareError(f"{path}: unpacks to more than a spreadsheet of {size:,} bytes should")
    return size


def _bounded(lines: Iterable[tuple[Any, ...]], num_columns: int, most: int) -> Iterator[tuple[str | None, ...]]:
    """Yield lines as texts. A small file can have rows far apart, and many cells that refer to one text.

    Raises:
        MalformedError: together they are larger than ``most`` bytes.
    """
    num_bytes = 0
    for line in lines:
        texts = tuple(None if value is None else str(value) for value in line)
        num_bytes += _BYTES_PER_CELL * num_columns + sum(map(len, filter(None, texts)))
        if num_bytes > most:
            raise MalformedError("its rows are more than a spreadsheet of its length should have")
        yield texts
