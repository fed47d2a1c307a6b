"""Choose the comparison mode of two dumps from their tasks and contents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from msprobe_core.compare.compare_codes import CompareCode
from msprobe_core.compare.result import Mode
from msprobe_core.errors import NoValuesError
from msprobe_core.findings import Finding
from msprobe_core.judge.statistics_columns import STATISTICS
from msprobe_core.model import Task
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import RowKind
from msprobe_core.store.stored_dump import rows_of


class ModeFound(NamedTuple):
    """The comparison mode, and notes on it."""

    mode: Mode
    notes: Sequence[Finding]


def mode_of(target: Dump, golden: Dump) -> ModeFound:
    """Return the comparison mode of two dumps.

    Raises:
        CompareError: the dumps contain no comparable values of tensors.
    """
    tasks = target.header.task, golden.header.task
    if Task.STRUCTURE.value in tasks:
        return ModeFound(Mode.STRUCTURE, _note_other_tasks(target, golden, CompareCode.OTHER_TASK_ORDER))
    if tasks == (Task.TENSOR.value, Task.TENSOR.value):
        return ModeFound(Mode.TENSOR, [])
    notes = _note_other_tasks(target, golden, CompareCode.OTHER_TASK_CONTENT) if Task.TENSOR.value in tasks else []
    contents = _contents(target), _contents(golden)
    checksums = [content.checksum for content in contents]
    shared = contents[0].others & contents[1].others
    if all(checksums) and _are_alike(contents[0], contents[1]):
        if target.header.framework == golden.header.framework or not shared:
            return ModeFound(Mode.CHECKSUM, notes)
        return ModeFound(Mode.STATISTICS, [*notes, Finding(CompareCode.STATISTICS_FOR_CHECKSUMS)])
    if not shared and all(content.others or content.checksum for content in contents):
        raise NoValuesError(
            f"{target.path} keeps {contents[0].text} of each tensor and {golden.path} {contents[1].text}, which cannot "
            "be compared; record both with the same 'summary_mode'"
        )
    if all(checksums):
        kinds = {"target": _kind_of(contents[0]), "golden": _kind_of(contents[1])}
        notes = [*notes, Finding(CompareCode.OTHER_CHECKSUMS, fields=kinds)]
    return ModeFound(Mode.STATISTICS, notes)


class _Contents(NamedTuple):
    """The kinds of tensor values in a dump.

    ``summary_mode`` is empty if the dump does not state it; ``checksum`` is the first one, empty if there is none.
    """

    summary_mode: str
    checksum: str
    others: frozenset[str]

    @property
    def text(self) -> str:
        """The kinds of values as text."""
        kept = sorted(self.others)
        if self.checksum:
            kept.append(f"checksums{_of_mode(self)}")
        return " and ".join(kept)


def _contents(dump: Dump) -> _Contents:
    is_tensor = pl.col("kind") == RowKind.TENSOR.value
    found = (
        rows_of(dump)
        .select(
            checksum=pl.col("checksum").drop_nulls().first(),
            statistics=(is_tensor & pl.any_horizontal(pl.col(name).is_not_null() for name in STATISTICS)).any(),
            sketches=pl.col("sketch").is_not_null().any(),
        )
        .row(0, named=True)
    )
    others = frozenset(name for name in ("statistics", "sketches") if found[name])
    return _Contents(dump.header.summary_mode, found["checksum"] or "", others)


def _are_alike(first: _Contents, second: _Contents) -> bool:
    if first.summary_mode and second.summary_mode:
        return first.summary_mode == second.summary_mode
    return len(first.checksum) == len(second.checksum)


def _kind_of(content: _Contents) -> Finding:
    code = CompareCode.CHECKSUM_OF_MODE if content.summary_mode else CompareCode.CHECKSUM_SUCH_AS
    return Finding(code, fields={"checksum": content.checksum, "mode": content.summary_mode})


def _of_mode(content: _Contents) -> str:
    return f" of summary_mode {content.summary_mode}" if content.summary_mode else f" such as {content.checksum}"


def _note_other_tasks(target: Dump, golden: Dump, code: CompareCode) -> list[Finding]:
    if target.header.task == golden.header.task:
        return []
    return [Finding(code, fields={"target": target.header.task, "golden": golden.header.task})]
