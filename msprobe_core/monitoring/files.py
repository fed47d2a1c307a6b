"""Read the files of a monitor: CSV as the established one writes it, or Arrow; one directory per rank.

Two formats are supported. ``{time}-rank{R}-{8 hex}/{quantity}_{first}-{last}.csv`` has a file for each quantity and
range of steps, with the columns ``vpp_stage,name,step[,micro_step]``, then statistics, then ``shape,dtype``. Its
version 2 writes ``rank_{R}/{monitor}_step{first}-{last}.csv`` with ``vpp_stage,step,module_name,scope[,micro_step]``
and statistics. Files grow while a training runs, so the last line may be incomplete.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path

import polars as pl

from msprobe_core.errors import DumpError, MissingDumpError
from msprobe_core.findings import Finding
from msprobe_core.monitoring.arrow_files import read_table
from msprobe_core.monitoring.history import SCHEMA, Monitored
from msprobe_core.monitoring.monitoring_codes import MonitoringCode
from msprobe_core.monitoring.quantities import SCOPES, Quantity
from msprobe_core.monitoring.rank_directories import (
    ARROW_FILE,
    VALUE_FILE,
    RankDirectory,
    began_between,
    rank_directories,
)
from msprobe_core.untrusted.files import read_plain, reading

_SUBDIRECTORY = "monitor_output"
"""Default output directory of the established monitor."""

_SCOPES = {scope: quantity.value for scope, quantity in SCOPES.items()}

_DESCRIBING = frozenset({"shape", "dtype", "id", "caller"})
_NAMES = ("name", "module_name")
_COMMON = ("norm", "max", "min", "mean", "nans", "zeros")
_ABSENT = ["".join(letters) for letters in itertools.product("nN", "aA", "nN")]
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ABSENT_COLUMN = "is_absent"
_MAX_STEP = (1 << 62) - 1
_MAX_DECIMALS = 300
_SAMPLED = 100
_MOST_DIGITS = 6
"""Of an exponent."""
_LONG = 1000
"""Bytes of a field from which the careful reader is taken, which knows bounds."""


def is_monitored(path: Path) -> bool:
    """Whether a directory has files of a monitor, of one rank or of several."""
    return bool(rank_directories(path))


def find_monitored(path: Path) -> Path | None:
    """Return the directory with a run's monitor files: ``path`` itself, or ``monitor_output`` in it."""
    return next((each for each in (path, path / _SUBDIRECTORY) if is_monitored(each)), None)


def monitored_directory(path: Path) -> Path:
    """Return the directory with a run's monitor files: ``path`` itself, or ``monitor_output`` in it.

    Raises:
        DumpError: there is none.
    """
    found = find_monitored(path)
    if found is None:
        raise MissingDumpError(f"{path}: holds nothing of a monitor; give the directory that MONITOR_OUTPUT_DIR named")
    return found


def read_monitored(
    path: Path,
    steps: Collection[int] = (),
    ranks: Collection[int] = (),
    files: KnownFiles | None = None,
    *,
    between: tuple[datetime | None, datetime | None] = (None, None),
) -> Monitored:
    """Read the files of a monitor.

    If a rank has several directories, as after a resumed training, the latest one that has a step is used for it.

    Args:
        path: A directory with one directory per rank, or the directory of one rank.
        steps: Steps to read; empty for all.
        ranks: Ranks to read; empty for all.
        files: Those that were read before and are not read again; gets the others.
        between: When trainings to read began, first and last; ``None`` for no bound.

    Raises:
        DumpError: there are no files of a monitor, none of the requested steps and ranks, or a file cannot be read.
    """
    directories = rank_directories(path)
    if not directories:
        raise MissingDumpError(
            f"{path}: holds nothing of a monitor, which makes a directory for each rank, such as "
            "Nov21_05-57-08-rank0-95f81c46 or rank_0, with files such as actv_0-0.csv"
        )
    if not (directories := began_between(directories, *between)):
        raise DumpError(f"{path}: no training in it began between the times that were asked for")
    chosen = [each for each in directories if not ranks or each.rank in ranks]
    found = _read(chosen, steps, files)
    if found is None:
        raise DumpError(f"{path}: has none of the steps and ranks that were asked for")
    return found


def read_ranks(path: Path) -> Iterator[Monitored]:
    """Read one rank after the other, so that not all of them are in memory; ranks without rows are left out.

    While one is worked on, the next one is read.

    Args:
        path: A directory with one directory per rank, or the directory of one rank.

    Raises:
        DumpError: a file cannot be read.
    """
    by_rank: dict[int, list[RankDirectory]] = {}
    for directory in rank_directories(path):
        by_rank.setdefault(directory.rank, []).append(directory)
    with ThreadPoolExecutor(1) as reader:
        ahead: Future[Monitored | None] | None = None
        for rank in (*sorted(by_rank), None):
            ready, ahead = ahead, None if rank is None else reader.submit(_read, by_rank[rank], ())
            found = None if ready is None else ready.result()
            if found is not None and found.frame.height:
                yield found


def _read(
    directories: Sequence[RankDirectory], steps: Collection[int], files: KnownFiles | None = None
) -> Monitored | None:
    notes: list[Finding] = []
    frames: list[pl.DataFrame] = []
    decimals = [0]
    for number, directory in enumerate(sorted(directories, key=lambda each: each.time)):
        for file, quantity in _files_of(directory, steps):
            content = _read_any(file, quantity, notes) if files is None else files.content(file, quantity, notes)
            if content is None:
                continue
            own = content.frame.filter(pl.col("step").is_in(list(steps))) if steps else content.frame
            frames.append(own.with_columns(rank=pl.lit(directory.rank, pl.Int64), _directory=pl.lit(number)))
            decimals.append(content.decimals)
    if not frames:
        return None
    frame = _latest(pl.concat(frames, how="diagonal"), notes)
    known = [name for name in frame.columns if name not in SCHEMA]
    ordered = [name for name in _COMMON if name in known]
    statistics = [*ordered, *(name for name in known if name not in ordered)]
    return Monitored(
        frame=frame.select(*SCHEMA, *statistics), statistics=statistics, resolution=10.0 ** -max(decimals), notes=notes
    )


def _latest(frame: pl.DataFrame, notes: list[Finding]) -> pl.DataFrame:
    """Keep the latest directory's version of each value, and note if an older one was dropped."""
    keys = [name for name in SCHEMA if name != "place"]
    if frame.group_by("rank").agg(pl.col("_directory").n_unique())["_directory"].max() == 1:
        # Hashes are a fifth of the work, and nearly always all there is to do.
        has_repeated = frame.select(keys).hash_rows().n_unique() < frame.height
        frame = frame.drop("_directory")
        return frame.unique(keys, keep="last", maintain_order=True) if has_repeated else frame
    newest = frame.group_by(keys, maintain_order=True).agg(_newest=pl.col("_directory").max())
    kept = frame.join(newest, on=keys, how="inner", nulls_equal=True, maintain_order="left")
    kept = kept.filter(pl.col("_directory") == pl.col("_newest"))
    if kept.height < frame.height:
        notes.append(Finding(MonitoringCode.SEVERAL_DIRECTORIES))
    return kept.drop("_directory", "_newest").unique(keys, keep="last", maintain_order=True)


def _files_of(directory: RankDirectory, steps: Collection[int]) -> list[tuple[Path, str | None]]:
    """Return the files of a rank with their quantities, ordered by step; last those that have all quantities."""
    files: list[tuple[int, str, Path]] = []
    for path in directory.path.iterdir():
        match = VALUE_FILE.match(path.name)
        if match is None or not path.is_file():
            continue
        first, last = (min(int(match[name]), _MAX_STEP) for name in ("first", "last"))
        if not steps or any(first <= step <= last for step in steps):
            files.append((first, match["quantity"], path))
    tables = sorted(path for path in directory.path.iterdir() if ARROW_FILE.match(path.name))
    return [*((path, quantity) for _, quantity, path in sorted(files)), *((path, None) for path in tables)]


@dataclass(frozen=True)
class _Content:
    """Rows of a file, and the maximum number of decimals."""

    frame: pl.DataFrame
    decimals: int


class KnownFiles:
    """The content of files that were read, for those who read a directory again while a training writes to it."""

    def __init__(self) -> None:
        """Know nothing."""
        self._read: dict[Path, tuple[tuple[int, int], _Content | None, list[Finding]]] = {}

    def content(self, path: Path, quantity: str | None, notes: list[Finding]) -> _Content | None:
        """Return a file's rows, from memory if it is as it was.

        Raises:
            DumpError: it cannot be read, or is not a file of a monitor.
        """
        state = _state_of(path)
        known = self._read.get(path)
        if known is None or known[0] != state:
            own: list[Finding] = []
            known = state, _read_any(path, quantity, own), own
            self._read[path] = known
        notes += known[2]
        return known[1]


def _state_of(path: Path) -> tuple[int, int]:
    with reading(path):
        found = path.stat()
    return found.st_mtime_ns, found.st_size


def _read_any(path: Path, quantity: str | None, notes: list[Finding]) -> _Content | None:
    """Return the rows of a file of one quantity, or of a table of all."""
    if quantity is not None:
        return _read_file(path, quantity, notes)
    frame = read_table(path, notes)
    return _Content(frame, _MAX_DECIMALS) if frame.height else None


def _read_file(path: Path, quantity: str, notes: list[Finding]) -> _Content | None:
    """Return a file's rows; ``None`` if it has none yet.

    Raises:
        DumpError: it cannot be read, or is not a file of a monitor.
    """
    with reading(path):
        content = read_plain(path).removeprefix(_BYTE_ORDER_MARK)
    begin, end = content.find(b"\n") + 1, content.rfind(b"\n")
    if end + 1 < len(content):
        notes.append(Finding.of(MonitoringCode.CUT_LINE, file=path.name, directory=path.parent.name))
    body = content[begin : max(begin, end)]
    try:
        first = (content[:begin] or content).decode()
        if not begin or not content[:end].strip():
            return None
        (header,) = csv.reader([first.removesuffix("\n")])
        _check_header(path, header)
        frame, num_lines = _fitting(body, header)
    except UnicodeDecodeError as error:
        raise DumpError(f"{path}: is not text in UTF-8, as files of a monitor are ({error.reason})") from error
    except (csv.Error, ValueError) as error:
        raise DumpError(f"{path}: is not a table of comma-separated values ({error})") from error
    kept = _typed(frame, header, quantity)
    if num_odd := num_lines - kept.height:
        notes.append(Finding.of(MonitoringCode.ODD_LINES, file=path.name, directory=path.parent.name, count=num_odd))
    return _Content(kept.filter(~pl.col(_ABSENT_COLUMN)).drop(_ABSENT_COLUMN), _decimals(body, header))


def _fitting(body: bytes, header: list[str]) -> tuple[pl.DataFrame, int]:
    """Return the lines that fit a header, as numbers or text, and the number of lines that are not empty.

    Raises:
        csv.Error: it is no table.
        UnicodeDecodeError: it is not UTF-8.
    """
    num_lines = body.count(b"\n") + bool(body)
    # Where each line has as many commas as the first, outside of quotes, the fast reader sees what the other does.
    with contextlib.suppress(pl.exceptions.PolarsError):
        if body and b"\r" not in body:
            frame = pl.read_csv(body, has_header=False, schema=_fast_schema(header))
            is_whole = frame.height == num_lines and not frame[header[-1]].null_count()
            texts = pl.col(pl.String)
            if is_whole and frame.select(pl.max_horizontal(texts.str.len_bytes()).max()).item() < _LONG:
                return frame.with_columns(texts.fill_null("")), num_lines
    return _carefully(body, header)


def _fast_schema(header: list[str]) -> dict[str, type[pl.DataType]]:
    """Return the columns as the fast reader is to have them: as numbers what is nearly always a number."""
    telling = _telling(header)
    return {name: pl.String if name in _TEXTS or name == telling else pl.Float64 for name in header}


def _carefully(body: bytes, header: list[str]) -> tuple[pl.DataFrame, int]:
    rows = list(csv.reader(body.decode().splitlines()))
    fitting = [row for row in rows if len(row) == len(header)]
    return pl.DataFrame(fitting, schema=dict.fromkeys(header, pl.String), orient="row"), sum(map(bool, rows))


def _check_header(path: Path, header: list[str]) -> None:
    if "step" not in header or not {*_NAMES} & {*header} or len({*header}) < len(header):
        raise DumpError(
            f"{path}: begins with {','.join(header)[:80]!r}, where a monitor's files name their columns: "
            "vpp_stage,name,step,… or vpp_stage,step,module_name,scope,…"
        )


_KEYS = frozenset({*SCHEMA, *_NAMES, "vpp_stage", "scope", *_DESCRIBING, _ABSENT_COLUMN})
_TEXTS = _KEYS - {"vpp_stage", "step", "micro_step"}


def _decimals(body: bytes, header: list[str]) -> int:
    """Return the maximum number of decimals: a monitor rounds all numbers to the same number of decimals.

    A hundred lines show it.
    """
    places = [place for place, name in enumerate(header) if name not in _KEYS]
    rows = [row for row in csv.reader(_sampled(body).decode().splitlines()) if len(row) == len(header)]
    found = max((_decimals_of(row[place]) for row in rows for place in places), default=0)
    return min(max(found, 0), _MAX_DECIMALS)


def _decimals_of(number: str) -> int:
    """Return the decimals of a number, 0 of one without a point."""
    after = number.partition(".")[2]
    if after.isdecimal():
        return len(after)
    fraction, _, exponent = after.lower().partition("e")
    digits = exponent.lstrip("+-")
    if not fraction.isdecimal() or len(digits) > _MOST_DIGITS or not (digits.isdecimal() or not exponent):
        return 0
    return len(fraction) - (int(digits or 0) if not exponent.startswith("-") else -int(digits))


def _sampled(body: bytes) -> bytes:
    """Return some lines at about equal distances, of few lines all."""
    begins = {body.rfind(b"\n", 0, len(body) * i // _SAMPLED) + 1 for i in range(_SAMPLED)}
    if len(begins) < _SAMPLED and body.count(b"\n") < _SAMPLED:
        return body
    return b"\n".join(body[begin : body.find(b"\n", begin)] for begin in begins)


def _typed(frame: pl.DataFrame, header: list[str], quantity: str) -> pl.DataFrame:
    """Return rows with the columns of `SCHEMA` except the rank, and statistics; rows without a step are left out."""
    typed = frame.select(_columns_of(tuple(header), quantity))
    return typed.filter(pl.col("step").is_not_null() & (pl.col("step") >= 0))


@lru_cache(maxsize=64)
def _columns_of(header: tuple[str, ...], quantity: str) -> list[pl.Expr]:
    """Return the columns of `_typed`; making them takes as long as computing them of a thousand rows."""
    scope = pl.lit(quantity) if "scope" not in header else pl.col("scope").replace(_SCOPES)
    suffix = f".{quantity}" if "scope" not in header else pl.concat_str(pl.lit("."), scope)
    name = pl.col(next(name for name in _NAMES if name in header))

    def integer(name: str) -> pl.Expr:
        if name not in header:
            return pl.lit(None, pl.Int64)
        return pl.col(name).cast(pl.Float64, strict=False).cast(pl.Int64, strict=False)

    stage = integer("vpp_stage")
    columns = {
        "quantity": scope,
        "stage": pl.when(stage >= 0).then(stage),  # -1: no virtual pipeline
        "name": name.str.strip_suffix(suffix),  # fc1.weight.exp_avg of scope exp_avg
        # Version 2 gives reduced gradients that of the last micro-batch.
        "micro_step": pl.when(scope != Quantity.GRADIENT_REDUCED.value).then(integer("micro_step")),
        "step": integer("step"),
        "place": pl.int_range(pl.len(), dtype=pl.Int64),
        _ABSENT_COLUMN: _is_absent(header).fill_null(False),
        **{name: pl.col(name).cast(pl.Float64, strict=False) for name in header if name not in _KEYS},
    }
    return [column.alias(name) for name, column in columns.items()]


def _is_absent(header: Sequence[str]) -> pl.Expr:
    """Whether a row has no value at all: its shape, or its count of NaN, is NaN itself."""
    telling = _telling(header)
    return pl.lit(False) if telling is None else pl.col(telling).is_in(_ABSENT)


def _telling(header: Sequence[str]) -> str | None:
    return next((name for name in ("shape", "nans") if name in header), None)
