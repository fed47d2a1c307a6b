"""Compare two dumps, or the ranks of two steps, and hold the result."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import cast

import polars as pl

from msprobe_core.compare import metrics
from msprobe_core.compare.align import Match, align
from msprobe_core.compare.fault import Fault, first_fault, first_lone_call, judge_nodes
from msprobe_core.compare.sketches import add_sketch_error
from msprobe_core.compare.tensors import Progress, compare_files
from msprobe_core.compare.verdict import (
    UNRECORDED,
    Verdict,
    check_recorded,
    differs,
    failures,
    has_failed,
    is_uncompared,
    judge,
)
from msprobe_core.errors import CompareError, DumpError, MsprobeError
from msprobe_core.hookspecs import Dump, Reader
from msprobe_core.model import Phase, Task
from msprobe_core.plugins import registry
from msprobe_core.store.json_reader import read_stacks
from msprobe_core.store.layout import Unit, find_units

_logger = logging.getLogger(__name__)


class Mode(str, Enum):
    """What a pair of dumps allows to compare."""

    STATISTICS = "statistics"
    CHECKSUM = "md5"
    TENSOR = "tensor"


@dataclass(frozen=True)
class UnitResult:
    """The comparison of one pair of dumps.

    Attributes:
        label: The target directory's name, such as ``rank0``; empty for two single dumps.
        target: Where the target dump is.
        golden: Where the golden dump is.
        mode: What was compared.
        rows: One row per pair of values, judged.
        nodes: One row per entry, judged.
        counts: Number of rows by verdict, and by the side that has them alone.
        fault: Where the calls that both sides have begin to disagree; ``None`` if they do not.
        lone_call: The first call that only one side has; ``None`` if there is none.
        first_difference: Row name of the first pair that differs at all, also within its limit.
        notes: What there is to say about the dumps themselves.
        stacks: Frames of the target by entry.
    """

    label: str
    target: Path
    golden: Path
    mode: Mode
    rows: pl.DataFrame
    nodes: pl.DataFrame
    counts: Mapping[str, int]
    fault: Fault | None
    lone_call: Fault | None
    first_difference: str | None
    notes: Sequence[str]
    stacks: Mapping[str, Sequence[str]]

    @property
    def first_fault(self) -> Fault | None:
        """The earlier of ``fault`` and ``lone_call``."""
        found = [fault for fault in (self.fault, self.lone_call) if fault is not None]
        return min(found, key=lambda fault: fault.position, default=None)

    @property
    def agrees(self) -> bool:
        """Whether every row is matched and within its limit; warnings do not count."""
        return not self.counts[Verdict.ERROR.value] and not self.counts[Verdict.UNMATCHED.value]


@dataclass(frozen=True)
class ComparisonResult:
    """The comparison of two dumps or of two steps with their ranks.

    Attributes:
        target: As given.
        golden: As given.
        units: One per pair, by rank.
        missing: Ranks that were not compared, in words: those that one side lacks, and those that cannot be read.
    """

    target: Path
    golden: Path
    units: Sequence[UnitResult]
    missing: Sequence[str] = field(default_factory=list[str])

    @property
    def agrees(self) -> bool:
        """Whether every pair agrees and no rank was left out."""
        return not self.missing and all(unit.agrees for unit in self.units)


def compare_dumps(
    target: Path | str,
    golden: Path | str,
    *,
    stack_path: Path | str | None = None,
    progress: Progress | None = None,
) -> ComparisonResult:
    """Compare two dumps.

    Args:
        target: The run under test: a ``dump.json`` or ``dump.arrow``, a rank's directory, or a step's directory.
        golden: The trusted run, of the same kind.
        stack_path: The target's ``stack.json`` if it is not beside the dump.
        progress: Told how many tensors have been compared, and of how many.

    Returns: the result; a numeric difference is not an error.

    Raises:
        CompareError: the two have nothing in common, or are not of the same kind.
        DumpError: one of them cannot be read.
    """
    target, golden = Path(target), Path(golden)
    pairs, missing = _pair_up(target, golden)
    units: list[UnitResult] = []
    failed: list[str] = []
    for label, target_path, golden_path in pairs:
        try:
            target_dump, golden_dump = read_dump(target_path), read_dump(golden_path)
            units.append(_compare_unit(label, target_dump, golden_dump, stack_path, progress))
        except (CompareError, DumpError) as error:  # noqa: PERF203  # a pair of ranks costs more than a try
            if len(pairs) == 1:
                raise
            failed.append(f"{label} could not be compared: {error}")
    if not units:
        raise CompareError(f"no rank of {target} and {golden} could be compared; {failed[0]}")
    return ComparisonResult(target, golden, units, [*missing, *failed])


def read_dump(path: Path) -> Dump:
    """Return the dump at ``path``, read by the first reader that recognises it.

    Raises:
        DumpError: it cannot be read.
        CompareError: no reader recognises it.
    """
    _check_exists(path)
    reader = _reader_of(path)
    if reader is None:
        raise CompareError(f"{path}: is no dump that is known here; give a dump.json, a rank's directory or a step's")
    try:
        return reader.read(path)
    except MsprobeError:
        raise
    except Exception as error:
        raise DumpError(f"{path}: the reader '{reader.name}' failed ({type(error).__name__}: {error})") from error


def _reader_of(path: Path) -> Reader | None:
    for reader in registry().readers():
        try:
            if reader.recognises(path):
                return reader
        except Exception as error:  # noqa: BLE001, PERF203  # a reader of others must not keep ours from their files
            _logger.warning("the reader '%s' failed at %s (%s: %s)", reader.name, path, type(error).__name__, error)
    return None


def _check_exists(path: Path) -> None:
    try:
        exists = path.exists()
    except (OSError, ValueError) as error:  # a name that is too long, or holds a null character
        raise CompareError(f"{path}: is no path ({error})") from error
    if not exists:
        raise CompareError(f"{path}: does not exist")


def _pair_up(target: Path, golden: Path) -> tuple[list[tuple[str, Path, Path]], list[str]]:
    """Return the pairs to compare, each with a label, and the names of what has no partner."""
    for path in (target, golden):
        _check_exists(path)
    if _is_dump(target) and _is_dump(golden):
        return [("", target, golden)], []
    if _is_dump(target) != _is_dump(golden):
        single, step = (target, golden) if _is_dump(target) else (golden, target)
        raise CompareError(f"{single} is one dump and {step} is not; give two dumps or two step directories")
    return _pair_units(find_units(target), find_units(golden), target, golden)


def _is_dump(path: Path) -> bool:
    return path.is_file() or _reader_of(path) is not None


def _pair_units(
    targets: Sequence[Unit], goldens: Sequence[Unit], target: Path, golden: Path
) -> tuple[list[tuple[str, Path, Path]], list[str]]:
    have_ranks = [units[0].rank is not None for units in (targets, goldens)]
    if len(targets) == len(goldens) == 1 and not all(have_ranks):
        # One process on either side: whatever the directories are called, they belong together.
        return [(targets[0].label, targets[0].directory, goldens[0].directory)], []
    for units, path, has_rank in ((targets, target, have_ranks[0]), (goldens, golden, have_ranks[1])):
        if not has_rank:
            labels = ", ".join(unit.label for unit in units[:4])
            raise CompareError(
                f"{path}: holds {labels} without a rank, and the other side more than one process; give the "
                "directories of the two to compare, or remove what earlier runs left"
            )
    by_rank = {unit.rank: unit for unit in goldens}
    pairs = [(unit.label, unit.directory, by_rank[unit.rank].directory) for unit in targets if unit.rank in by_rank]
    if not pairs:
        ranks = [", ".join(unit.label for unit in units[:4]) for units in (targets, goldens)]
        raise CompareError(
            f"{target} and {golden} have no rank in common ({ranks[0]} and {ranks[1]}); to compare two ranks with each "
            "other, give their directories"
        )
    ranks = {unit.rank for unit in targets}
    missing = [f"{unit.label} is in {target} only" for unit in targets if unit.rank not in by_rank]
    missing += [f"{unit.label} is in {golden} only" for unit in goldens if unit.rank not in ranks]
    return pairs, missing


def _compare_unit(
    label: str, target: Dump, golden: Dump, stack_path: Path | str | None, progress: Progress | None
) -> UnitResult:
    for dump in (target, golden):
        if not dump.frame.height:
            raise CompareError(f"{dump.path}: holds no values to compare (task '{dump.header.task}')")
        check_recorded(dump)
    rows = align(target.frame, golden.frame)
    if not (rows["match"] == Match.BOTH.value).any():
        raise CompareError(
            f"{target.path} and {golden.path} have no row in common; they are not dumps of the same program"
        )
    mode = _mode_of(target, golden)
    rows = add_sketch_error(metrics.add_statistics(rows))
    if mode is Mode.TENSOR:
        rows = _add_tensor_metrics(rows, target, golden, progress)
    rows = judge(rows, by_checksum=mode is Mode.CHECKSUM)
    nodes = judge_nodes(rows, target=target)
    rows = rows.filter(~_is_empty_call())
    stacks = target.stacks if stack_path is None else read_stacks(Path(stack_path))
    fault, lone_call = (find(rows, nodes, target, golden, stacks) for find in (first_fault, first_lone_call))
    return UnitResult(
        label=label,
        target=target.path,
        golden=golden.path,
        mode=mode,
        rows=rows,
        nodes=nodes,
        counts=_count(rows),
        fault=fault,
        lone_call=lone_call,
        first_difference=cast("str | None", rows.filter(differs()).select(pl.first("name_target")).item()),
        notes=[*target.notes, *golden.notes, *_note_uncompared(rows)],
        stacks=stacks,
    )


def _mode_of(target: Dump, golden: Dump) -> Mode:
    if target.header.task == golden.header.task == Task.TENSOR.value:
        return Mode.TENSOR
    first, second = (dump.frame["checksum"].drop_nulls().head(1).to_list() for dump in (target, golden))
    if not first or not second:
        return Mode.STATISTICS
    if len(first[0]) != len(second[0]):
        raise CompareError(
            f"{target.path} and {golden.path} hold checksums of different kinds, {first[0]} and {second[0]}; "
            "record both with the same 'summary_mode'"
        )
    return Mode.CHECKSUM


def _add_tensor_metrics(rows: pl.DataFrame, target: Dump, golden: Dump, progress: Progress | None) -> pl.DataFrame:
    """Compare the files of every pair of rows that has two; a tensor's error replaces that of its statistics."""
    files = rows.select("file_name_target", "file_name_golden").rows()
    pairs = [(target.tensor_path(t), golden.tensor_path(g)) if t and g else None for t, g in files]
    results = pl.DataFrame(
        [
            (
                m.cosine,
                m.euclidean,
                m.largest_abs,
                m.largest_rel,
                m.within_1e3,
                m.within_5e3,
                m.error,
                m.status,
                m.problem,
            )
            for m in compare_files(pairs, progress)
        ],
        schema=_TENSOR_COLUMNS,
        orient="row",
    )
    return rows.hstack(results).with_columns(error=pl.coalesce("tensor_error", "error")).drop("tensor_error")


_TENSOR_COLUMNS = {
    "cosine": pl.Float64,
    "euclidean": pl.Float64,
    "largest_abs": pl.Float64,
    "largest_rel": pl.Float64,
    "within_1e3": pl.Float64,
    "within_5e3": pl.Float64,
    "tensor_error": pl.Float64,
    "status": pl.String,
    "problem": pl.String,
}


def _is_empty_call() -> pl.Expr:
    """Whether a row only says that both sides have a call without values."""
    is_saved = pl.col("phase") == Phase.DEBUG.value  # a saved value that is one tensor is named like its entry
    is_whole = (pl.col("match") == Match.BOTH.value) & (pl.col("name_target") == pl.col("entry"))
    return is_whole & ~is_saved & ~has_failed()


def _note_uncompared(rows: pl.DataFrame) -> list[str]:
    failed = rows.filter((pl.col("match") == Match.BOTH.value) & has_failed())
    notes = [
        f"values that could not be recorded, and were not compared: {failed.height:,}; the first is {name} ({reason})"
        for name, reason in failed.head(1).select("name_target", failures()).rows()
    ]
    if number := rows.filter(is_uncompared()).height:
        notes.append(
            f"tensors that could not be compared, because one side or both have no statistics of them: {number:,}"
        )
    return notes


def _count(rows: pl.DataFrame) -> dict[str, int]:
    counts = {verdict.value: 0 for verdict in Verdict} | {Match.TARGET.value: 0, Match.GOLDEN.value: 0}
    for column in ("verdict", "match"):
        counts |= {key: n for key, n in rows.group_by(column).len().rows() if key in counts}
    return counts | {UNRECORDED: rows.filter(has_failed()).height}
