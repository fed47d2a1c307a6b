"""The statistics of a recorded run over steps, as the database of trends has them: ``dump_data.trend.db``.

A target is a value without the number of its call: ``Functional.linear.input.0``,
``Module.fc.Linear.parameters.weight`` and, of a parameter's gradient, ``Module.fc.Linear.weight``. Of several calls in
one micro-batch, the first has this name; the others keep their number, ``Functional.linear.1.input.0``. The micro-batch
is that of the outermost module; in a dump without modules it is the number of the call.

Its metrics are the phases of training. Source: the databases that mindstudio-probe 26.2.0 makes of its dumps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from msprobe_core import names
from msprobe_core.errors import MissingDumpError
from msprobe_core.execute.units import files_of, run_units
from msprobe_core.findings import Finding, noted
from msprobe_core.model import ExecutorOptions, Phase, Site, SiteKind
from msprobe_core.monitoring.history import SCHEMA, Monitored
from msprobe_core.store.frame import RowKind
from msprobe_core.store.layout import holds_units, is_unit, place_of
from msprobe_core.store.reading import is_dump, read_dump
from msprobe_core.store.runs import steps_of_run, units_of_step
from msprobe_core.store.stored_dump import StoredDump
from msprobe_core.view.tree import tree_of

FILE = "dump_data.trend.db"
METRICS = ("forward", "backward", "recompute", "parameters_grad")
STATISTICS = ("norm", "max", "min", "mean")

_RECOMPUTE = "recompute"
_ROLES = frozenset({"input", "output", "parameters"})


@dataclass(frozen=True)
class DumpUnit:
    """One rank of one step; a unit of work for `msprobe_core.execute.run_units`."""

    path: Path
    step: int
    rank: int

    @property
    def label(self) -> str:
        """Name of the unit in reports."""
        return place_of(self.path)

    @property
    def files(self) -> Sequence[Path]:
        """Its files."""
        return files_of([self.path])


def is_recorded_run(directory: Path) -> bool:
    """Whether a directory is a recorded run, a step of one, or the dump of a rank."""
    return directory.is_dir() and (is_dump(directory) or holds_units(directory))


def trends_of_dumps(
    directory: Path, num_processes: int = 1, progress: Callable[[int, int, str], object] | None = None
) -> Monitored:
    """Return the statistics of a run, a step or a rank over its steps.

    Args:
        directory: Their directory. Processes outside of a job are ranks in the order of their names.
        num_processes: How many dumps are read at a time.
        progress: Called with the number of read dumps, their number, and the last one.

    Raises:
        DumpError: there is no dump, or none that can be read.
    """
    units, notes = _units_in(directory)
    frames: dict[int, pl.DataFrame] = {}
    failed = run_units(
        units,
        _trends_of_unit,
        frames.__setitem__,
        executor="processes" if num_processes > 1 and len(units) > 1 else "inline",
        workers=ExecutorOptions(workers=num_processes),
        progress=None if progress is None else lambda done, label: progress(done, len(units), label),
    )
    notes += [noted(f"{units[number].path}: was left out: {why}") for number, why in failed.items()]
    if not frames:
        raise MissingDumpError(notes[-1].text if notes else f"{directory}: holds no dump")
    frame = pl.concat([frames[number] for number in sorted(frames)])
    return Monitored(frame=frame, statistics=STATISTICS, notes=notes)


def _units_in(directory: Path) -> tuple[list[DumpUnit], list[Finding]]:
    if is_dump(directory):
        step = directory.parent.name.removeprefix("step")
        rank = directory.name.removeprefix("rank")
        return [DumpUnit(directory, int(step) if step.isdecimal() else 0, int(rank) if rank.isdecimal() else 0)], []
    steps, notes = steps_of_run(directory)
    if not steps:
        number = directory.name.removeprefix("step")
        steps = {int(number) if number.isdecimal() else 0: directory}
    units: list[DumpUnit] = []
    for step, path in steps.items():
        found = units_of_step(path)
        notes = [*notes, *found.notes]
        units += [
            DumpUnit(unit.directory, step, position if unit.rank is None else unit.rank)
            for position, unit in enumerate(found.units)
            if is_unit(unit.directory.name)
        ]
    return units, list(notes)


def _trends_of_unit(unit: DumpUnit) -> pl.DataFrame:
    """Return the rows of one dump, in the form of `Monitored.frame`."""
    dump = read_dump(unit.path)
    rows = dump.frame.filter(pl.col("kind") == RowKind.TENSOR.value)
    calls = dump.frame.select("entry", "phase").unique("entry", keep="first", maintain_order=True)
    recomputed = dump.recomputed if isinstance(dump, StoredDump) else frozenset[str]()
    entries = list(_placed(calls["entry"].to_list(), calls["phase"].to_list(), dump.parents, recomputed))
    schema = {"entry": pl.String, "stem": pl.String, "quantity": pl.String, "micro_step": pl.Int64}
    places = pl.DataFrame(entries, schema, orient="row")
    values = rows.join(places, on="entry", maintain_order="left")
    suffix = pl.col("key").str.slice(pl.col("entry").str.len_chars())
    values = values.with_columns(
        name=pl.col("stem") + suffix,
        rank=pl.lit(unit.rank, pl.Int64),
        stage=pl.lit(None, pl.Int64),
        step=pl.lit(unit.step, pl.Int64),
        place=pl.int_range(pl.len(), dtype=pl.Int64),
    )
    return values.select(*SCHEMA, *STATISTICS)


def _placed(
    entries: Sequence[str], phases: Sequence[str], parents: Any, recomputed: frozenset[str]
) -> Iterator[tuple[str, str, str, int]]:
    """Yield each entry with the beginning of its targets' names, its metric and its micro-batch."""
    micro_steps = [0] * len(entries)
    tree = tree_of(entries, phases, parents)
    for call, micro_step in zip(tree.calls, tree.micro_steps, strict=True):
        if call >= 0:
            micro_steps[call] = micro_step
    sites = [_site_of(entry) for entry in entries]
    has_modules = any(site is not None and site.kind is SiteKind.MODULE for site in sites)
    seen: set[tuple[str, str, int]] = set()
    for entry, phase, site, micro_step in zip(entries, phases, sites, micro_steps, strict=True):
        metric = phase if phase in METRICS else Phase.FORWARD.value
        if metric == Phase.FORWARD.value and entry in recomputed:
            metric = _RECOMPUTE
        stem = entry
        if site is not None:
            stem = names.call_stem(site)
            micro_step = micro_step if has_modules else site.index  # noqa: PLW2901
            if (stem, metric, micro_step) in seen:
                stem = f"{stem}.{site.index}"
            seen.add((stem, metric, micro_step))
        yield entry, stem, metric, micro_step


def _site_of(entry: str) -> Site | None:
    try:
        return names.parse_entry(names.numbered_gradients(entry))
    except ValueError:  # a saved value
        return None


def tags_of(name: str, metric: str) -> Iterator[tuple[str, str]]:
    """Yield category and name of the tags of a target: its last two parts, its layer, and its module or function."""
    parts = name.split(".")
    size = 1 if metric == "parameters_grad" else 2
    role = next((i for i in range(len(parts) - 1, 0, -1) if parts[i] in _ROLES), len(parts) - size)
    yield "index", ".".join(parts[max(role - (size == 1), 0) :])
    stem = parts[: max(role - (size == 1), 1)]
    if stem[0] not in names.MODULE_PREFIXES:
        yield "function", ".".join(stem)
        return
    yield "default", stem[0]
    if parts[role] == "parameters":
        yield "default", "parameters"
    module = stem[1:]
    for i in range(1, len(module)):
        if module[i].isdecimal():
            yield "layer", f"{module[i - 1]}.{module[i]}"
            module = module[i + 1 :]
            break
    if module:
        yield "module", ".".join(module)
