"""Compare which calls two programs make and how they are nested, for dumps without values."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import polars as pl

from msprobe_core import names
from msprobe_core.compare.derived import DerivedDump
from msprobe_core.errors import EntryNameError, NoValuesError
from msprobe_core.judge.origins import ancestors
from msprobe_core.model import Phase, Role, Task
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import COLUMNS, VALUE_COLUMNS, RowKind


def structure_dumps(target: Dump, golden: Dump) -> tuple[Dump, Dump]:
    """Return the dumps to align: their rows without values if both have rows, else one row per call.

    Raises:
        CompareError: a dump has neither.
    """
    if target.frame.height and golden.frame.height:
        return DerivedDump(target, _without_values(target.frame)), DerivedDump(golden, _without_values(golden.frame))
    calls = _calls_of(target), _calls_of(golden)
    frames = _frame_of(target, calls[0], calls[1]), _frame_of(golden, calls[1], calls[0])
    return DerivedDump(target, frames[0]), DerivedDump(golden, frames[1])


def _without_values(frame: pl.DataFrame) -> pl.DataFrame:
    is_tensor = pl.col("kind") == RowKind.TENSOR.value
    return frame.with_columns(pl.when(~is_tensor).then(pl.col(name)).alias(name) for name in VALUE_COLUMNS)


def _calls_of(dump: Dump) -> dict[str, Phase]:
    """Return the calls of a dump, in order."""
    calls: dict[str, Phase] = {}
    for entry in dump.parents or dump.frame["entry"].unique(maintain_order=True):
        try:
            phase = names.parse_entry(entry).phase
        except EntryNameError:
            continue  # a parent that is not a call, such as an optimizer's step
        if phase is not Phase.PARAMETERS_GRAD:
            calls[entry] = phase
    if not calls:
        raise NoValuesError(
            f"{dump.path}: holds neither values nor calls (task '{dump.header.task}'); of a run with task "
            f"'{Task.STRUCTURE.value}', keep the files beside it, and record it at level L0 or mix"
        )
    return calls


def _frame_of(dump: Dump, calls: Mapping[str, Phase], others: Iterable[str]) -> pl.DataFrame:
    """Return one row for each call, without a value; ``text`` is the nearest enclosing call on both sides.

    Some tools do not record the root of the model.
    """
    sites = {_site(entry) for entry in others}
    cells = {
        "name": list(calls),
        "phase": [phase.value for phase in calls.values()],
        "text": [_enclosing_site(entry, dump.parents, sites) for entry in calls],
    }
    rows = pl.DataFrame(cells, schema={name: COLUMNS[name] for name in cells}).with_columns(
        key=pl.col("name"),
        entry=pl.col("name"),
        role=pl.lit(Role.INPUT.value, COLUMNS["role"]),
        kind=pl.lit(RowKind.NONE.value, COLUMNS["kind"]),
    )
    missing = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in COLUMNS.items() if name not in rows.columns]
    return rows.with_columns(missing).select(COLUMNS.keys())


def _enclosing_site(entry: str, parents: Mapping[str, str | None], sites: Container[str]) -> str | None:
    return next((site for parent in ancestors(entry, parents) if (site := _site(parent)) in sites), None)


def _site(entry: str) -> str:
    """Return a module call's name without its number: earlier rows already report different numbers."""
    head, _, number = entry.rpartition(".")
    return head if number.isdecimal() else entry
