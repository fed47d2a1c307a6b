"""Build a page's data from one run or two.

Units, each one rank in one step, are read, compared and judged by an executor, see `msprobe_core.execute.units`, and
then added one by one. Of each unit only its graph, compressed in a file, and its share of the overview are kept, so
that memory is bounded by the largest unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeAlias

import msgspec
import polars as pl

from msprobe_core._version import __version__
from msprobe_core.compare.layouts.rules import Ranks
from msprobe_core.compare.pairs import Chosen, UnitPair, find_pairs
from msprobe_core.errors import CompareError, ConfigError, DumpError, MsprobeError
from msprobe_core.execute.units import run_units
from msprobe_core.findings import Finding, noted
from msprobe_core.interrupts import raise_if_interrupted
from msprobe_core.locate import FaultKind, LocateOptions, locate
from msprobe_core.locate.engine import Extraction, extract_all
from msprobe_core.model import TaskLost
from msprobe_core.overflow import search
from msprobe_core.overflow.result import OverflowResult
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.kernel_files import find_kernel_units
from msprobe_core.store.reading import check_exists, is_dump, read_dump
from msprobe_core.store.runs import steps_of_run, units_of_step
from msprobe_core.untrusted.paths import shown
from msprobe_core.view.calls import GOLDEN_MARK, Calls
from msprobe_core.view.checks import CheckFile, check_files_of, checks_alone, shown_checks, verdict_with
from msprobe_core.view.communication import Communication
from msprobe_core.view.configuration import facts_beside
from msprobe_core.view.data import (
    CheckedDump,
    Configured,
    Counts,
    Culprit,
    Fact,
    Graph,
    Kind,
    Made,
    Said,
    Side,
    Sides,
    TensorMap,
    Unit,
    Verdict,
    ViewData,
    said_of,
)
from msprobe_core.view.graph import UnitGraph, graph_of
from msprobe_core.view.graph_cache import GraphCache
from msprobe_core.view.heatmaps import axes_of, map_of
from msprobe_core.view.overview import Overview
from msprobe_core.view.packed_calls import DumpTask, packed_dump, packed_pair, unpacked
from msprobe_core.view.sensitivity import sensitivity_data
from msprobe_core.view.suspects import (
    Location,
    configured_of,
    culprits_of,
    location_of,
    overflow_culprits,
    overflow_verdict,
    verdict_of,
)
from msprobe_core.view.trends import MonitorFindings, findings_of, holds_monitored_alone, monitored_data
from msprobe_core.view.view_codes import ViewCode

ViewProgress: TypeAlias = Callable[[int, int, str], None]
"""Called with the number of finished units, their total number, and the label of the last one."""

MAX_MAPS = 24
_MAX_MAPS_OF_CULPRITS, _MAX_MAPS_OF_OTHERS = 8, 2
_MAX_NOTES = 50

_CONFIRM = "msprobe confirm {target} {golden} {node}"


@dataclass(frozen=True, kw_only=True)
class ViewOptions:
    """What to show.

    Attributes:
        locate: How two runs are compared and searched, and which steps and ranks are selected.
        ranks: Arrangement of the target's ranks; ``None`` if it was not given.
        has_maps: Whether tensors are read to draw maps.
    """

    locate: LocateOptions = field(default_factory=LocateOptions)
    ranks: Ranks | None = None
    has_maps: bool = True


@dataclass(frozen=True)
class _Task:
    """One unit to be shown."""

    label: str
    step: int | None
    rank: int | None
    target: Path
    pair: UnitPair | None = None


def build(
    target: Path,
    golden: Path | None,
    cache: GraphCache,
    options: ViewOptions | None = None,
    location: Location | None = None,
    progress: ViewProgress | None = None,
    checks: Path | None = None,
) -> ViewData:
    """Build the data of a page; graphs go to ``cache``, and are null in the result.

    Args:
        target: A run, a step, a rank's directory or a dump; or files of a monitor.
        golden: The trusted run, of the same kind; ``None`` to view one run.
        cache: Receives the graphs, by index of the unit.
        options: What to show.
        location: Result of an earlier search; if ``None``, the search runs here.
        progress: Called after each unit.
        checks: An ``acc_check.json`` of one of the dumps, besides those that are stored next to dumps; the target
            itself if its dump is missing.

    Raises:
        CompareError: the target is empty, or the two have nothing in common.
        DumpError: a single dump cannot be read.
        ConfigError: the executor is unknown.
        StoreError: the graphs cannot be stored.
    """
    options = options or ViewOptions()
    check_exists(target)
    if checks is not None and target == checks:
        return checks_alone(checks)
    if golden is None and (found := sensitivity_data(target)) is not None:
        return found
    if any(holds_monitored_alone(path) for path in (target, golden) if path is not None):
        return monitored_data(target, golden, options.locate.chosen)
    builder = _Builder(cache, options, progress or _tell_nobody, checks)
    if golden is None:
        return builder.of_run(target)
    return builder.of_pair(target, golden, location)


def _tell_nobody(done: int, total: int, label: str) -> None:
    del done, total, label


class _Builder:
    def __init__(
        self, cache: GraphCache, options: ViewOptions, progress: ViewProgress, checks: Path | None = None
    ) -> None:
        self._cache = cache
        self._given_checks = checks
        self._checks: list[CheckFile] = []
        self._options = options
        self._progress = progress
        self._overview = Overview()
        self._units: list[Unit] = []
        self._places: dict[tuple[int | None, int | None], int] = {}
        self._notes: list[Finding] = []
        self._said: set[str] = set()
        self._failed: dict[int, str] = {}
        self._incomplete: list[Finding] = []
        self._maps: list[TensorMap] = []
        self._counts = Counts()
        self._culprits: list[Culprit] = []
        self._configured: Configured | None = None
        self._manifest: list[Fact] = []
        self._keeps_tensors = False
        self._has_values = False

    # --- one run ------------------------------------------------------------------------------------------------------

    def of_run(self, target: Path) -> ViewData:
        tasks, notes = _tasks_of_run(target, self._options.locate.chosen)
        self._notes += map(noted, notes)
        self._read_all([DumpTask(task.label or str(task.target), task.target) for task in tasks])
        self._add_all(tasks)
        found = self._overflow(target) if self._counts.flagged else None
        self._culprits = [] if found is None else overflow_culprits(found, self._places)
        incomplete = self._incomplete if found is None else found.incomplete
        verdict = overflow_verdict(found, self._counts, incomplete, has_values=self._has_values)
        self._read_checks(target, [task.target for task in tasks])
        self._read_manifest(tasks[0].target)
        verdict = verdict_with(verdict, self._checks)
        return self._data(Kind.DUMP, target, None, verdict, {})

    def _read_all(self, tasks: Sequence[DumpTask]) -> None:
        """Put the calls of all dumps into the cache; the error of a dump is raised if it is the only one."""
        if len(tasks) == 1:
            self._cache.put_calls(0, packed_dump(tasks[0]))
            self._progress(1, 1, tasks[0].label)
            return
        options = self._options.locate
        self._failed |= run_units(
            tasks,
            packed_dump,
            self._cache.put_calls,
            executor=options.executor,
            workers=options.workers,
            progress=lambda number, label: self._progress(number, len(tasks), label),
        )

    def _overflow(self, target: Path) -> OverflowResult | None:
        try:
            return search(target)
        except MsprobeError as error:
            self._notes.append(Finding(ViewCode.NO_OVERFLOW_SEARCH, fields={"why": str(error)}))
            return None

    # --- two runs -----------------------------------------------------------------------------------------------------

    def of_pair(self, target: Path, golden: Path, location: Location | None) -> ViewData:
        options = self._options.locate
        pairing = find_pairs(target, golden, options.chosen, options.compare.layouts)
        numbers = {pair: i for i, pair in enumerate(pairing.pairs)}
        extraction = Extraction(packed_pair, lambda pair, outcome: self._take(numbers[pair], outcome))
        if location is None:
            location = location_of(locate(target, golden, options, self._progress, extraction))
        else:
            extract_all(pairing, options, extraction, self._progress)
        if len(numbers) == len(self._failed) == 1:
            raise CompareError(self._failed[0])
        tasks = [_Task(pair.label, pair.step, pair.rank, pair.target, pair) for pair in pairing.pairs]
        self._places = {(task.step, task.rank): i for i, task in enumerate(tasks)}
        self._culprits = culprits_of(location, self._places)
        self._configured = configured_of(location)
        # Set before any unit is added: the overview follows the values of culprits in all units.
        self._overview.culprits = frozenset(each.node for each in self._culprits if each.node is not None)
        # Notes of the search are listed once, below, and not again with a unit.
        self._said.update(note.text for note in location.noted())
        self._add_all(tasks)
        self._notes = [*map(noted, pairing.missing), *location.noted(), *self._notes]
        self._read_checks(target, [task.target for task in tasks])
        commands = {"confirm": _CONFIRM} if self._keeps_tensors else {}
        return self._data(Kind.COMPARISON, target, golden, verdict_of(location, self._counts), commands)

    def _take(self, number: int, outcome: bytes | TaskLost) -> None:
        if isinstance(outcome, TaskLost):
            self._failed[number] = outcome.reason
        else:
            self._cache.put_calls(number, outcome)

    # --- all of them --------------------------------------------------------------------------------------------------

    def _add_all(self, tasks: Sequence[_Task]) -> None:
        failed = {
            number: Finding(ViewCode.UNREADABLE, fields={"unit": tasks[number].label, "why": reason})
            for number, reason in self._failed.items()
        }
        if len(failed) == len(tasks):
            raise CompareError(f"nothing of it can be shown; {failed[0].text}")
        # By step, because communication is matched among the ranks of one step.
        for step in dict.fromkeys(task.step for task in tasks):
            own = [task for task in tasks if task.step == step]
            peers = self._communication(own, len(self._units))
            for task in own:
                raise_if_interrupted()
                number = len(self._units)
                self._incomplete += [failed[number]] if number in failed else []
                self._add(task, self._calls_of(task, number), peers)
        self._notes += failed.values()

    def _calls_of(self, task: _Task, number: int) -> Calls | None:
        content = self._cache.take_calls(number)
        if content is None:
            return None
        unit = unpacked(content)
        self._note(task, unit.notes)
        self._incomplete += unit.incomplete
        return unit.calls

    def _communication(self, tasks: Sequence[_Task], offset: int) -> Communication | None:
        """Return who communicates with whom in a step; ``None`` if there is one rank, or if ranks were merged."""
        units = {task.rank: offset + i for i, task in enumerate(tasks) if task.rank is not None}
        paths = {task.rank: task.target for task in tasks if task.rank is not None}
        if len(units) < 2 or any(task.pair is not None and task.pair.target_parts for task in tasks):
            return None
        found = Communication(units, lambda rank: read_dump(paths[rank]))
        step = tasks[0].step
        self._notes += [note if step is None else _of(f"step{step}", note) for note in found.notes]
        return found

    def _add(self, task: _Task, calls: Calls | None, peers: Communication | None) -> None:
        number = len(self._units)
        self._places[task.step, task.rank] = number
        if calls is None:
            self._units.append(self._unit(task, None))
            return
        made = graph_of(calls, None if peers is None else peers.peers(task.rank))
        self._cache.put(number, made.graph)
        self._culprits = [_placed(each, made.graph) if each.unit == number else each for each in self._culprits]
        self._overview.add(calls, made, task.step, task.rank)
        self._units.append(self._unit(task, made))
        own = self._counts
        self._counts = Counts(
            own.nodes + made.num_calls, own.flagged + made.num_flagged, own.unmatched + made.num_unmatched
        )
        self._has_values = self._has_values or "max" in calls.statistics
        self._keeps_tensors = self._keeps_tensors or _has_files(calls)
        if self._options.has_maps and task.pair is not None and _has_files(calls):
            self._add_maps(number, task.pair, calls)

    def _unit(self, task: _Task, made: UnitGraph | None) -> Unit:
        return Unit(
            label=task.label,
            step=task.step,
            micro_steps=1 + max(made.tree.micro_steps, default=0) if made is not None else 0,
            rank=task.rank,
            groups=self._groups_of(task.rank),
            paths=(shown(str(task.target)), None if task.pair is None else shown(str(task.pair.golden))),
            nodes=0 if made is None else len(made.tree.names),
            flagged=0 if made is None else made.num_flagged,
            severity=None if made is None else made.worst,
        )

    def _groups_of(self, rank: int | None) -> dict[str, int]:
        ranks = self._options.ranks
        if ranks is None or rank is None:
            return {}
        try:
            return dict(ranks.place_of(rank).places)
        except ConfigError:
            return {}

    def _note(self, task: _Task, notes: Iterable[Finding]) -> None:
        """Keep each finding once, with the first unit that reported it."""
        new = {note.text: note for note in notes if note.text not in self._said}
        self._said.update(new)
        self._notes += [_of(task.label, note) if task.label else note for note in new.values()]

    # --- maps ---------------------------------------------------------------------------------------------------------

    def _add_maps(self, number: int, pair: UnitPair, calls: Calls) -> None:
        culprits = [each.node for each in self._culprits if each.unit == number]
        room = min(_MAX_MAPS_OF_CULPRITS if culprits else _MAX_MAPS_OF_OTHERS, MAX_MAPS - len(self._maps))
        wanted = _worth_a_map(calls, culprits, room)
        if not wanted or pair.target_parts or pair.golden_parts:
            return
        target, golden = read_dump(pair.target), read_dump(pair.golden)
        for node, slot, target_file, golden_file in wanted:
            try:
                self._maps += _maps(number, node, slot, (target, target_file), (golden, golden_file))
            except DumpError as error:  # noqa: PERF203  # reading a tensor costs more than the try
                self._notes.append(Finding(ViewCode.NO_MAP, fields={"entry": node, "slot": slot, "why": str(error)}))

    # --- checked calls ------------------------------------------------------------------------------------------------

    def _read_checks(self, target: Path, units: Sequence[Path]) -> None:
        """Read the checks of the units; problems with files that were not asked for become notes."""
        given = [] if self._given_checks is None else [self._given_checks]
        for path in dict.fromkeys([*given, *check_files_of(target, units)]):
            try:
                self._checks.append(CheckFile.read(path))
            except CompareError as error:  # noqa: PERF203  # there are a few files at most
                if path in given:
                    raise
                self._notes.append(Finding(ViewCode.NO_CHECKS, fields={"why": str(error)}))

    def _checked(self) -> list[CheckedDump]:
        places = [Path(unit.paths[0]) for unit in self._units]
        units = {
            (place if place.is_dir() else place.parent).resolve(): number
            for number, place in reversed(list(enumerate(places)))
        }
        return [shown_checks(file, units) for file in self._checks]

    # --- the configuration of a single run ---------------------------------------------------------------------------

    def _read_manifest(self, unit: Path) -> None:
        found = facts_beside(unit)
        if isinstance(found, Finding):
            self._notes.append(found)
        else:
            self._manifest = found

    # --- the document -------------------------------------------------------------------------------------------------

    def _data(
        self, kind: Kind, target: Path, golden: Path | None, verdict: Verdict, commands: Mapping[str, str]
    ) -> ViewData:
        title = target.name if golden is None else f"{target.name} and {golden.name}"
        monitored = self._monitored(target, golden)
        trends = [*self._overview.trends(), *([] if monitored is None else monitored.trends)]
        notes = list({note.text: said_of(note) for note in self._notes}.values())
        if len(notes) > _MAX_NOTES:
            more = Finding(ViewCode.MORE_NOTES, fields={"count": len(notes) - _MAX_NOTES})
            notes = [*notes[:_MAX_NOTES], said_of(more)]
        first = self._units[0].paths
        return ViewData(
            made=Made(__version__, datetime.now(timezone.utc).isoformat(timespec="seconds")),
            kind=kind,
            title=title,
            sides=Sides(
                self._side(target, Path(first[0])), None if golden is None else self._side(golden, Path(first[1] or ""))
            ),
            verdict=verdict,
            culprits=self._culprits,
            units=self._units,
            layers=self._overview.layers(),
            heat=self._overview.heat(),
            trends=trends,
            tensors=self._maps,
            monitor=None if monitored is None else monitored.dashboard,
            checked=self._checked(),
            configured=self._configured,
            manifest=self._manifest,
            commands=dict(commands),
            notes=notes,
        )

    def _monitored(self, target: Path, golden: Path | None) -> MonitorFindings | None:
        """Return the findings from monitor files next to the dumps; problems with reading them become notes."""
        try:
            found = findings_of(target, golden, self._options.locate.chosen, self._places)
        except MsprobeError as error:
            self._notes.append(Finding(ViewCode.NO_MONITOR, fields={"why": str(error)}))
            return None
        if found is None:
            return None
        sentence = found.verdict.sentence
        own = sentence.finding if isinstance(sentence, Said) else noted(sentence)
        self._notes += [Finding(ViewCode.MONITOR, fields={"sentence": own}), *found.notes]
        return found

    def _side(self, path: Path, first: Path) -> Side:
        try:
            header = read_dump(first).header
        except (CompareError, DumpError):  # several ranks in one, or an unreadable rank, which is reported elsewhere
            return Side(shown(str(path)), "", "", "")
        ranks = self._options.ranks
        return Side(
            shown(str(path)), header.framework, header.task, header.level, None if ranks is None else dict(ranks.sizes)
        )


def _tasks_of_run(target: Path, chosen: Chosen) -> tuple[list[_Task], Sequence[str]]:
    """Return the units of a run, and messages about parts of the run that were skipped.

    Raises:
        CompareError: the run is empty, or has none of the selected steps and ranks.
        DumpError: it cannot be read, or holds no dump.
    """
    check_exists(target)
    if is_dump(target):
        return [_Task("", None, None, target)], []
    notes: list[str] = []
    if kernels := find_kernel_units(target):
        tasks = [
            _Task(f"step{unit.iteration}/rank{unit.rank}", unit.iteration, unit.rank, unit.directory)
            for unit in kernels
        ]
    else:
        found, said = steps_of_run(target)
        steps: dict[int | None, Path] = {**found} or {None: target}
        looked_at = {
            step: units_of_step(directory)
            for step, directory in steps.items()
            if step is None or not chosen.steps or step in chosen.steps
        }
        notes = [*said, *(note for step in looked_at.values() for note in step.notes)]
        tasks = [
            _Task(unit.label if step is None else f"step{step}/{unit.label}", step, unit.rank, unit.directory)
            for step, own in looked_at.items()
            for unit in own.units
        ]
    wanted = [
        task
        for task in tasks
        if (not chosen.steps or task.step is None or task.step in chosen.steps)
        and (not chosen.ranks or task.rank in chosen.ranks)
    ]
    if not wanted:
        raise CompareError(f"{target}: has none of the steps and ranks that were asked for")
    return wanted, notes


def _placed(culprit: Culprit, graph: Graph) -> Culprit:
    """Return a culprit with its node's name in the graph; ``None`` as name if there is no such node."""
    known = set(graph.name)
    own = None if culprit.node is None else culprit.node + GOLDEN_MARK
    if culprit.kind == FaultKind.MISSING_CALL.value and own in known:
        return msgspec.structs.replace(culprit, node=own)
    return culprit if culprit.node in known else msgspec.structs.replace(culprit, node=None)


def _of(unit: str, note: Finding) -> Finding:
    return Finding(ViewCode.UNIT_NOTE, note.level, {"unit": unit, "note": note})


def _has_files(calls: Calls) -> bool:
    column = calls.values["file_target"]
    return column.null_count() < column.len()


def _worth_a_map(calls: Calls, culprits: Sequence[str | None], room: int) -> list[tuple[str, str, str, str]]:
    """Return node, slot and files of the values most worth a map: those of culprits, then those with largest error."""
    if room <= 0:
        return []
    names = calls.calls.select("name", "excess").with_row_index("call")
    has_files = pl.all_horizontal(*[pl.col(f"file_{side}").is_not_null() for side in ("target", "golden")])
    own = calls.values.filter(has_files & (pl.col("verdict") == "error")).join(names, on="call", how="left")
    is_culprit = pl.col("name").is_in([name for name in culprits if name is not None])
    is_made = pl.col("role").cast(pl.String) != "input"
    ordered = own.sort(is_culprit & is_made, is_culprit, is_made, "error", descending=True, nulls_last=True)
    return ordered.head(room).select("name", "slot", "file_target", "file_golden").rows()


def _maps(unit: int, node: str, slot: str, target: tuple[Dump, str], golden: tuple[Dump, str]) -> list[TensorMap]:
    sources = [dump.open_tensor(file) for dump, file in (target, golden)]
    made = [map_of(unit, node, slot, sources[0], sources[1], axes) for axes in axes_of(sources[0].shape)]
    return [each for each in made if each is not None]
