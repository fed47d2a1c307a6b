"""Build a page's data from one run or two.

Units, each one rank in one step, are read, compared and judged by an executor, see `msprobe_core.execute.units`, and
then added one by one. Of each unit only its graph, compressed in a file, and its share of the overview are kept, so
that memory is bounded by the largest unit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import msgspec

from msprobe_core.compare.layouts.rules import Ranks
from msprobe_core.compare.pairs import find_pairs
from msprobe_core.errors import CompareError, ConfigError, DumpError, MsprobeError
from msprobe_core.execute.units import run_units
from msprobe_core.findings import Finding, noted
from msprobe_core.interrupts import raise_if_interrupted
from msprobe_core.locate import FaultKind, LocateOptions, locate
from msprobe_core.locate.engine import Extraction, extract_all
from msprobe_core.model import TaskLost
from msprobe_core.overflow import search
from msprobe_core.overflow.result import OverflowResult
from msprobe_core.store.reading import check_exists, read_dump
from msprobe_core.untrusted.paths import shown
from msprobe_core.view.api_checks import checks_alone, verdict_with
from msprobe_core.view.calls import GOLDEN_MARK, Calls
from msprobe_core.view.communication import Communication
from msprobe_core.view.configuration import facts_beside
from msprobe_core.view.data import (
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
    Unit,
    Verdict,
    ViewData,
    said_of,
)
from msprobe_core.view.graph import UnitGraph, graph_of
from msprobe_core.view.overview import Overview
from msprobe_core.view.packed_calls import packed_dump, packed_pair, unpacked
from msprobe_core.view.sensitivity import sensitivity_data
from msprobe_core.view.stored_graphs import StoredGraphs
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
from msprobe_core.view.unit_checks import UnitChecks
from msprobe_core.view.unit_maps import TensorMaps, has_files
from msprobe_core.view.unit_tasks import UnitTask, tasks_of_run
from msprobe_core.view.view_codes import ViewCode

ViewProgress: TypeAlias = Callable[[int, int, str], None]
"""Called with the number of finished units, their total number, and the label of the last one."""

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


def build(
    target: str | os.PathLike[str],
    golden: str | os.PathLike[str] | None,
    graphs: StoredGraphs,
    options: ViewOptions | None = None,
    location: Location | None = None,
    progress: ViewProgress | None = None,
    checks: str | os.PathLike[str] | None = None,
) -> ViewData:
    """Build the data of a page; its graphs are stored in ``graphs``, and are null in the result.

    Args:
        target: A run, a step, a rank's directory or a dump; or files of a monitor.
        golden: The trusted run, of the same kind; ``None`` to view one run.
        graphs: Receives the graphs, by index of the unit.
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
    target = Path(target)
    golden, checks = (None if path is None else Path(path) for path in (golden, checks))
    options = options or ViewOptions()
    check_exists(target)
    if checks is not None and target == checks:
        return checks_alone(checks)
    if golden is None and (found := sensitivity_data(target)) is not None:
        return found
    if any(holds_monitored_alone(path) for path in (target, golden) if path is not None):
        return monitored_data(target, golden, options.locate.chosen)
    builder = _Builder(graphs, options, progress or _tell_nobody, checks)
    if golden is None:
        return builder.of_run(target)
    return builder.of_pair(target, golden, location)


def _tell_nobody(done: int, total: int, label: str) -> None:
    del done, total, label


class _Builder:
    def __init__(
        self, graphs: StoredGraphs, options: ViewOptions, progress: ViewProgress, checks: Path | None = None
    ) -> None:
        self._graphs = graphs
        self._checks = UnitChecks(checks)
        self._options = options
        self._progress = progress
        self._overview = Overview()
        self._units: list[Unit] = []
        self._places: dict[tuple[int | None, int | None], int] = {}
        self._notes: list[Finding] = []
        self._said: set[str] = set()
        self._failed: dict[int, str] = {}
        self._incomplete: list[Finding] = []
        self._maps = TensorMaps()
        self._counts = Counts()
        self._culprits: list[Culprit] = []
        self._configured: Configured | None = None
        self._manifest: list[Fact] = []
        self._keeps_tensors = False
        self._has_values = False

    # --- one run ------------------------------------------------------------------------------------------------------

    def of_run(self, target: Path) -> ViewData:
        tasks, notes = tasks_of_run(target, self._options.locate.chosen)
        self._notes += notes
        self._read_all([replace(task, label=task.label or str(task.target)) for task in tasks])
        self._add_all(tasks)
        found = self._overflow(target) if self._counts.flagged else None
        self._culprits = [] if found is None else overflow_culprits(found, self._places)
        incomplete = self._incomplete if found is None else found.incomplete
        verdict = overflow_verdict(found, self._counts, incomplete, has_values=self._has_values)
        self._notes += self._checks.read(target, [task.target for task in tasks])
        manifest = facts_beside(tasks[0].target)
        if isinstance(manifest, Finding):
            self._notes.append(manifest)
        else:
            self._manifest = manifest
        verdict = verdict_with(verdict, self._checks.files)
        return self._data(Kind.DUMP, target, None, verdict, {})

    def _read_all(self, tasks: Sequence[UnitTask]) -> None:
        """Store the calls of all dumps; the error of a dump is raised if it is the only one."""
        if len(tasks) == 1:
            self._graphs.put_calls(0, packed_dump(tasks[0]))
            self._progress(1, 1, tasks[0].label)
            return
        options = self._options.locate
        self._failed |= run_units(
            tasks,
            packed_dump,
            self._graphs.put_calls,
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
        tasks = [UnitTask(pair.label, pair.step, pair.rank, pair.target, pair) for pair in pairing.pairs]
        self._places = {(task.step, task.rank): i for i, task in enumerate(tasks)}
        self._culprits = culprits_of(location, self._places)
        self._configured = configured_of(location)
        # Set before any unit is added: the overview follows the values of culprits in all units.
        self._overview.culprits = frozenset(each.node for each in self._culprits if each.node is not None)
        # Notes of the search are listed once, below, and not again with a unit.
        self._said.update(note.text for note in location.noted())
        self._add_all(tasks)
        self._notes = [*pairing.missing, *location.noted(), *self._notes]
        self._notes += self._checks.read(target, [task.target for task in tasks])
        commands = {"confirm": _CONFIRM} if self._keeps_tensors else {}
        return self._data(Kind.COMPARISON, target, golden, verdict_of(location, self._counts), commands)

    def _take(self, number: int, outcome: bytes | TaskLost) -> None:
        if isinstance(outcome, TaskLost):
            self._failed[number] = outcome.reason
        else:
            self._graphs.put_calls(number, outcome)

    # --- all of them --------------------------------------------------------------------------------------------------

    def _add_all(self, tasks: Sequence[UnitTask]) -> None:
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

    def _calls_of(self, task: UnitTask, number: int) -> Calls | None:
        content = self._graphs.take_calls(number)
        if content is None:
            return None
        unit = unpacked(content)
        self._note(task, unit.notes)
        self._incomplete += unit.incomplete
        return unit.calls

    def _communication(self, tasks: Sequence[UnitTask], offset: int) -> Communication | None:
        """Return who communicates with whom in a step; ``None`` if there is one rank, or if ranks were merged."""
        units = {task.rank: offset + i for i, task in enumerate(tasks) if task.rank is not None}
        paths = {task.rank: task.target for task in tasks if task.rank is not None}
        if len(units) < 2 or any(task.pair is not None and task.pair.target_parts for task in tasks):
            return None
        found = Communication(units, lambda rank: read_dump(paths[rank]))
        step = tasks[0].step
        self._notes += [note if step is None else _of(f"step{step}", note) for note in found.notes]
        return found

    def _add(self, task: UnitTask, calls: Calls | None, peers: Communication | None) -> None:
        number = len(self._units)
        self._places[task.step, task.rank] = number
        if calls is None:
            self._units.append(_unit_of(task, None, self._options.ranks))
            return
        made = graph_of(calls, None if peers is None else peers.peers(task.rank))
        self._graphs.put(number, made.graph)
        self._culprits = [_placed(each, made.graph) if each.unit == number else each for each in self._culprits]
        self._overview.add(calls, made, task.step, task.rank)
        self._units.append(_unit_of(task, made, self._options.ranks))
        own = self._counts
        self._counts = Counts(
            own.nodes + made.num_calls, own.flagged + made.num_flagged, own.unmatched + made.num_unmatched
        )
        self._has_values = self._has_values or "max" in calls.statistics
        self._keeps_tensors = self._keeps_tensors or has_files(calls)
        if self._options.has_maps and task.pair is not None and has_files(calls):
            culprits = [each.node for each in self._culprits if each.unit == number]
            self._notes += self._maps.add(number, task.pair, calls, culprits)

    def _note(self, task: UnitTask, notes: Iterable[Finding]) -> None:
        """Keep each finding once, with the first unit that reported it."""
        new = {note.text: note for note in notes if note.text not in self._said}
        self._said.update(new)
        self._notes += [_of(task.label, note) if task.label else note for note in new.values()]

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
        first, ranks = self._units[0].paths, self._options.ranks
        return ViewData(
            made=Made.now(),
            kind=kind,
            title=title,
            sides=Sides(
                _side_of(target, Path(first[0]), ranks),
                None if golden is None else _side_of(golden, Path(first[1] or ""), ranks),
            ),
            verdict=verdict,
            culprits=self._culprits,
            units=self._units,
            layers=self._overview.layers(),
            heat=self._overview.heat(),
            trends=trends,
            tensors=self._maps.made,
            monitor=None if monitored is None else monitored.dashboard,
            checked=self._checks.shown([Path(unit.paths[0]) for unit in self._units]),
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


def _unit_of(task: UnitTask, made: UnitGraph | None, ranks: Ranks | None) -> Unit:
    return Unit(
        label=task.label,
        step=task.step,
        micro_steps=1 + max(made.tree.micro_steps, default=0) if made is not None else 0,
        rank=task.rank,
        groups={} if ranks is None or task.rank is None else _groups_of(task.rank, ranks),
        paths=(shown(str(task.target)), None if task.pair is None else shown(str(task.pair.golden))),
        nodes=0 if made is None else len(made.tree.names),
        flagged=0 if made is None else made.num_flagged,
        severity=None if made is None else made.worst,
    )


def _groups_of(rank: int, ranks: Ranks) -> dict[str, int]:
    try:
        return dict(ranks.place_of(rank).places)
    except ConfigError:
        return {}


def _side_of(path: Path, first: Path, ranks: Ranks | None) -> Side:
    try:
        header = read_dump(first).header
    except (CompareError, DumpError):  # several ranks in one, or an unreadable rank, which is reported elsewhere
        return Side(shown(str(path)), "", "", "")
    sizes = None if ranks is None else dict(ranks.sizes)
    return Side(shown(str(path)), header.framework, header.task, header.level, sizes)


def _placed(culprit: Culprit, graph: Graph) -> Culprit:
    """Return a culprit with its node's name in the graph; ``None`` as name if there is no such node."""
    known = set(graph.name)
    own = None if culprit.node is None else culprit.node + GOLDEN_MARK
    if culprit.kind == FaultKind.MISSING_CALL.value and own in known:
        return msgspec.structs.replace(culprit, node=own)
    return culprit if culprit.node in known else msgspec.structs.replace(culprit, node=None)


def _of(unit: str, note: Finding) -> Finding:
    return Finding(ViewCode.UNIT_NOTE, note.level, {"unit": unit, "note": note})
