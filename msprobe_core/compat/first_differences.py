"""The files of ``-da``: all calls of each rank and whether they are equal; for each step, where ranks diverge first.

They have the layout of ``mindstudio-probe`` 26.x. `msprobe_core.compare.divergence` finds the ranks that diverge first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from time import time_ns
from typing import Any

import msgspec
import polars as pl

from msprobe_core.compare.align import FOREIGN
from msprobe_core.compare.result import ComparisonResult, UnitFiles, UnitResult, UnitSummary
from msprobe_core.compat.call_table import table_of_c
from msprobe_core.errors import StoreError
from msprobe_core.execute.kept import KEPT_DIRECTORY
from msprobe_core.judge.fault import Fault
from msprobe_core.judge.verdict import Verdict
from msprobe_core.model import Role
from msprobe_core.report.files import ReportFiles, ResultFiles
from msprobe_core.store.atomic_file import unused_paths, whole_file
from msprobe_core.store.layout import create_file, make_directory
from msprobe_core.untrusted.files import read_plain
from msprobe_core.untrusted.paths import encode_json

FIRST_DIFFERENCES = "diff_analyze_"
"""Beginning of the names of the files of first differences."""

_RECORD = "differences"
"""File that lists the files of first differences."""

_FAILED = (Verdict.ERROR.value, Verdict.UNMATCHED.value)


@dataclass(frozen=True)
class DifferenceFiles(ResultFiles):
    """Writes the files of ``-da`` in addition to the others; a `msprobe_core.compare.run.ResultWriter`.

    Attributes:
        is_wanted: Whether to write them. If not, those of a comparison that is resumed are still removed.
    """

    is_wanted: bool = True

    @property
    def settings(self) -> object:
        """What files depend on, except for the time."""
        return super().settings, self.is_wanted

    def write_unit(self, unit: UnitResult) -> UnitFiles:
        """Write the tables of one pair, and a file of its calls."""
        files = super().write_unit(unit)
        return replace(files, calls=_write_calls(unit, files.tables[0])) if self.is_wanted else files

    def write_run(
        self,
        result: ComparisonResult[UnitSummary],
        files: Sequence[UnitFiles],
        first: Iterable[Sequence[UnitSummary]],
        *,
        resumes: bool,
    ) -> ReportFiles:
        """Write where units diverge first, and the summary; return the paths of the summary and the tables."""
        if resumes:
            _forget_differences(self.directory)
        calls = {unit.label: own.calls for unit, own in zip(result.units, files, strict=True) if own.calls is not None}
        if calls:
            _keep_differences(self.directory, _write_first_differences(list(first), calls, self.directory))
        return super().write_run(result, files, first, resumes=resumes)


def _write_calls(unit: UnitResult, table_path: Path) -> Path:
    """Write all calls of a unit, each with its rows and whether both sides are equal; return the path.

    Args:
        unit: The unit.
        table_path: Path of its table, which gives the directory and the name.

    Raises:
        StoreError: it cannot be written.
    """
    (path,) = unused_paths(table_path.parent, table_path.stem.removeprefix("debug_"), ["json"])
    with whole_file(path) as file:
        file.write(b"{")
        # One call in a line, so that a few can be read again without the others.
        for number, (entry, call) in enumerate(_calls(unit)):
            file.write((b",\n" if number else b"\n") + encode_json({entry: call})[1:-1])
        file.write(b"\n}")
    return path


def _calls(unit: UnitResult) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each call with its rows, one after the other if the rows of calls are consecutive."""
    if isinstance(unit.judged, pl.DataFrame) or not unit.judged.has_whole_entries:
        calls: dict[str, dict[str, Any]] = {}
        for row in _cells(unit):
            _append(calls.setdefault(row["api_origin_name"], _new_call()), row)
        yield from calls.items()
        return
    for entry, rows in groupby(_cells(unit), itemgetter("api_origin_name")):
        call = _new_call()
        for row in rows:
            _append(call, row)
        yield entry, call


def _cells(unit: UnitResult) -> Iterator[dict[str, Any]]:
    table = table_of_c(unit)
    columns = [
        *[column.value.cast(pl.String).fill_null("N/A").alias(column.header) for column in table.columns],
        pl.col("role").cast(pl.String).alias("state"),
        pl.col("entry").alias("api_origin_name"),
        pl.col("verdict").is_in(_FAILED).alias("_differs"),
    ]
    for part in table.rows.iter_slices(_SLICE):
        yield from part.select(columns).iter_rows(named=True)


_SLICE = 1 << 13
"""Number of rows whose cells are made at a time."""


def _new_call() -> dict[str, Any]:
    return {"is_same": True, "op_items": []}


def _append(call: dict[str, Any], row: dict[str, Any]) -> None:
    call["is_same"] = not row.pop("_differs") and call["is_same"]
    call["op_items"].append(row)


def _write_first_differences(
    steps: Sequence[Sequence[UnitSummary]], calls: Mapping[str, Path], directory: Path
) -> Sequence[Path]:
    """Write, for each step in which ranks diverge, the calls where they diverge first; return the paths.

    Args:
        steps: For each step in which ranks diverge, those that diverge first.
        calls: By label, the file that `_write_calls` wrote.
        directory: Of the whole result.

    Raises:
        StoreError: a file cannot be written, or one of ``calls`` cannot be read again.
    """
    paths: list[Path] = []
    for own in steps:
        first = [(unit, fault) for unit in own if (fault := unit.first_fault) is not None]
        place = directory / first[0][0].label.rpartition("/")[0]
        (path,) = unused_paths(place, f"{FIRST_DIFFERENCES}{time_ns()}", ["json"])
        content = {_rank_of(unit): [_call(fault.entry, _rows_of(calls[unit.label], fault))] for unit, fault in first}
        with whole_file(path) as file:
            file.write(encode_json(content, indent=2))
        paths.append(path)
    return paths


def _rank_of(unit: UnitSummary) -> str:
    return unit.label or "rank_0" if unit.rank is None else f"rank_{unit.rank}"


def _rows_of(path: Path, fault: Fault) -> Sequence[Mapping[str, str]]:
    wanted = [fault.entry, *([f"{fault.entry}{FOREIGN}"] if fault.only_on == "golden" else [])]
    begins = tuple(encode_json({name: 0})[1:-2] for name in wanted)
    content: dict[str, dict[str, Any]] = {}
    try:
        with path.open("rb") as lines:
            for line in lines:
                if line.startswith(begins):
                    content |= msgspec.json.decode(b"{" + line.rstrip(b",\n") + b"}")
    except (OSError, msgspec.DecodeError) as error:
        raise StoreError(f"{path}: was written a moment ago and cannot be read ({error})") from error
    found = [content[name]["op_items"] for name in reversed(wanted) if name in content]
    return found[0] if found else []


def _call(entry: str, rows: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    results = {Role.OUTPUT.value, Role.PARAMETERS_GRAD.value}
    stack = next((text for row in rows if (text := row.get("NPU_Stack_Info", "N/A")) != "N/A"), None)
    return {
        "op_name": entry,
        "data_info": {
            "input": [row for row in rows if row["state"] not in results],
            "output": [row for row in rows if row["state"] in results],
        },
        "stack_info": stack,
    }


def _forget_differences(directory: Path) -> None:
    """Remove the files of first differences of the comparison that is resumed."""
    record = directory / KEPT_DIRECTORY / _RECORD
    try:
        names = [os.fsdecode(name) for name in msgspec.msgpack.decode(read_plain(record), type=list[bytes])]
    except (OSError, msgspec.MsgspecError, ValueError):
        return
    for name in names:
        path = directory / name
        if path.name.startswith(FIRST_DIFFERENCES) and path.resolve().is_relative_to(directory.resolve()):
            path.unlink(missing_ok=True)
    record.unlink(missing_ok=True)


def _keep_differences(directory: Path, paths: Sequence[Path]) -> None:
    """List the files of first differences for `_forget_differences`."""
    record = directory / KEPT_DIRECTORY / _RECORD
    make_directory(record.parent, below=directory)
    with create_file(record) as file:
        file.write(msgspec.msgpack.encode([os.fsencode(path.relative_to(directory)) for path in paths]))
