"""Search steps and ranks: read, propagate, order, and describe the first origins."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from msprobe_core.errors import DumpError, MissingDumpError, MsprobeError
from msprobe_core.findings import Finding, noted
from msprobe_core.model import Ending, EndState
from msprobe_core.order.causality import Order
from msprobe_core.order.communication_calls import RankCalls, calls_of
from msprobe_core.overflow.describe import Describer, Step
from msprobe_core.overflow.overflow_codes import OverflowCode
from msprobe_core.overflow.propagation import Impact, Origin, Spread
from msprobe_core.overflow.result import Harmless, OverflowOrigin, OverflowResult, RankNote, StepResult
from msprobe_core.overflow.values import MAX_BAD_ENTRIES, RankValues, values_of
from msprobe_core.store.ending import ending_of, sentence
from msprobe_core.store.layout import find_units
from msprobe_core.store.reading import check_exists, is_dump, read_dump
from msprobe_core.store.runs import steps_of_run, units_of_step

MAX_FURTHER = 20
MAX_HARMLESS = 10
_MAX_NEAR = 3


def search(path: str | os.PathLike[str]) -> OverflowResult:
    """Return the origins of NaN and Inf.

    Args:
        path: Directory of a run, a step or a rank, or a dump.

    Raises:
        CompareError: there is nothing at ``path``, or nothing that can be read.
        DumpError: no dump could be read, or none shows whether its values are finite.
    """
    path = Path(path)
    check_exists(path)
    if is_dump(path):
        return OverflowResult(path=path, steps=[_search_step(_step_of_rank(path))])
    steps, notes = steps_of_run(path)
    if not steps:
        return OverflowResult(path=path, steps=[_search_step(_step_of(None, path, None))])
    found: list[StepResult] = []
    unread: list[Finding] = []
    ranks: dict[int, int] = {}
    for number, directory in steps.items():
        try:
            step = _step_of(number, directory, path)
            step = replace(step, notes=[*notes, *step.notes])
            notes = []
            unread += [
                Finding(OverflowCode.RANK_LACKING, fields={"step": number, "rank": rank, "former": former})
                for rank, former in sorted(ranks.items())
                if step.is_job and rank not in step.ranks
            ]
            ranks |= dict.fromkeys(step.ranks if step.is_job else (), number)
            found.append(_search_step(step))
        except DumpError as error:  # noqa: PERF203  # a step costs far more than a try
            unread.append(noted(str(error)))
    if not found:
        raise DumpError("; ".join(each.text for each in unread))
    return OverflowResult(path=path, steps=found, unread=unread)


def _step_of_rank(path: Path) -> Step:
    """Return a step with one dump, whose rank is taken from its directory's name if possible."""
    directory = path if path.is_dir() else path.parent
    try:
        units = find_units(directory.parent)
    except DumpError:
        units = []
    rank = next((unit.rank for unit in units if unit.directory == directory), None)
    return Step(None, directory, {rank or 0: path}, is_job=rank is not None, run=None)


def _step_of(number: int | None, directory: Path, run: Path | None) -> Step:
    units, notes = units_of_step(directory)
    is_job = units[0].rank is not None
    ranks = {unit.rank if unit.rank is not None else i: unit.directory for i, unit in enumerate(units)}
    return Step(number, directory, ranks, is_job=is_job, run=run, notes=notes)


@dataclass
class _Read:
    """The parts of a step's dumps that the search needs."""

    values: dict[int, RankValues] = field(default_factory=dict[int, RankValues])
    calls: dict[int, RankCalls] = field(default_factory=dict[int, RankCalls])
    notes: list[Finding] = field(default_factory=list[Finding])
    endings: dict[int, tuple[Path, Ending]] = field(default_factory=dict[int, tuple[Path, Ending]])
    unread: list[Finding] = field(default_factory=list[Finding])

    def broken(self) -> dict[int, Finding]:
        """Return findings on ranks that ended early or are damaged; fewer windows than on others show a missing one."""
        most = max((ending.num_windows for _, ending in self.endings.values()), default=0)
        return {
            rank: sentence(path, ending)
            for rank, (path, ending) in self.endings.items()
            if not ending.is_whole or (ending.state is EndState.STOPPED and 0 < ending.num_windows < most)
        }


def _search_step(step: Step) -> StepResult:
    read = _read(step)
    spread, order = _follow(step, read)
    broken = read.broken()
    silent = {*step.ranks} - {*read.values}
    unheard = sorted({*broken, *silent, *(order.absent if order is not None else ())})
    describer = Describer(step, read.values, unheard if step.is_job else ())
    by_impact: dict[Impact, list[Origin]] = {impact: [] for impact in Impact}
    for origin in spread.origins:
        by_impact[origin.impact].append(origin)
    suspects = by_impact[Impact.SERIOUS] or by_impact[Impact.UNKNOWN]
    first = _earliest(suspects, order)
    # A call may be the first on many ranks; equal origins are described once.
    chosen = set(map(id, first))
    others = [*suspects, *(by_impact[Impact.UNKNOWN] if by_impact[Impact.SERIOUS] else ())]
    further = sorted((origin for origin in others if id(origin) not in chosen), key=lambda o: _place(o, order))
    harmless = by_impact[Impact.NONE]
    near = sorted(
        (RankNote(rank=step.shown(rank), value=value) for rank, own in read.values.items() for value in own.near_end),
        key=lambda note: -note.value.share,
    )
    return StepResult(
        step=step.number,
        directory=step.directory,
        num_ranks=len(read.values),
        num_entries=sum(own.num_entries for own in read.values.values()),
        num_bad=sum(own.num_bad for own in read.values.values()),
        first=_described(first, describer, order),
        further=_described(further[:MAX_FURTHER], describer, order),
        num_further=len(further),
        harmless=[_harmless(origin, describer) for origin in harmless[:MAX_HARMLESS]],
        num_harmless=len(harmless),
        near_end=near[:_MAX_NEAR],
        notes=[*read.notes, *(order.notes if order is not None else ())],
        incomplete=[*broken.values(), *read.unread],
        dumps=step.ranks,
    )


def _read(step: Step) -> _Read:
    """Read the dumps one after the other, and keep the parts that the search needs.

    Raises:
        DumpError: none could be read, or none shows whether its values are finite.
    """
    read = _Read(notes=list(step.notes))
    errors: list[Finding] = []
    for rank, directory in step.ranks.items():
        try:
            dump = read_dump(directory)
            values = values_of(dump)
        except MsprobeError as error:
            errors.append(noted(str(error)))
            continue
        read.notes.extend(map(noted, dump.notes))
        read.endings[rank] = dump.path, ending_of(dump)
        if not values.num_entries:
            fields = {"path": str(dump.path), "task": dump.header.task}
            errors.append(Finding(OverflowCode.NO_VALUES, fields=fields))
            continue
        if values.num_tensors and not values.num_judged:
            fields = {"path": str(dump.path), "summary_mode": dump.header.summary_mode}
            errors.append(Finding(OverflowCode.NO_STATISTICS, fields=fields))
            continue
        read.values[rank] = values
        if len(step.ranks) > 1:
            read.calls[rank] = calls_of(dump, rank)
        if values.num_bad > len(values.entries):
            fields = {"rank": rank, "count": values.num_bad, "followed": MAX_BAD_ENTRIES}
            read.notes.append(Finding(OverflowCode.NOT_ALL_FOLLOWED, fields=fields))
    if not read.values:
        why = [each.text for each in (*read.broken().values(), *errors)]
        raise MissingDumpError("; ".join(why) or f"{step.directory}: holds no dump")
    read.unread.extend(errors)
    return read


def _follow(step: Step, read: _Read) -> tuple[Spread, Order | None]:
    spread = Spread(read.values)
    has_bad = any(values.entries for values in read.values.values())
    order = Order(list(read.calls), read.calls.values()) if has_bad and step.is_job and len(read.calls) > 1 else None
    bad = [(rank, call) for rank, values in read.values.items() for call in values.entries]
    if order is None:
        for rank, call in bad:
            spread.follow(rank, call, [])
        return spread, None
    for rank, call in sorted(bad, key=lambda item: (order.depth(item[0], item[1].entry), item[0], item[1].position)):
        spread.follow(rank, call, order.senders(rank, call.entry))
    return spread, order


def _place(origin: Origin, order: Order | None) -> tuple[int, int, int, int]:
    """Return the sort key of an origin: exchanges before it, then depth."""
    if order is None:
        return 0, origin.position, origin.rank, 0
    return order.layer(*origin.node), order.depth(*origin.node), origin.rank, origin.position


def _earliest(origins: Sequence[Origin], order: Order | None) -> list[Origin]:
    """Return the first origins: at most one of each rank, and none that another can have caused."""
    firsts: dict[int, Origin] = {}
    for origin in origins:
        best = firsts.get(origin.rank)
        if best is None or origin.position < best.position:
            firsts[origin.rank] = origin
    if order is None:
        return sorted(firsts.values(), key=lambda origin: _place(origin, order))
    earliest = set(order.earliest(origin.node for origin in firsts.values()))
    return sorted((o for o in firsts.values() if o.node in earliest), key=lambda origin: _place(origin, order))


def _described(origins: Sequence[Origin], describer: Describer, order: Order | None) -> list[OverflowOrigin]:
    """Describe origins; those of several ranks with equal name, kind and number of exchanges share one description."""
    found: dict[tuple[object, ...], list[Origin]] = {}
    for origin in origins:
        layer = _place(origin, order)[0]
        found.setdefault((origin.entry, origin.kind, origin.value, layer), []).append(origin)
    return [
        describer.describe(same[0], int(str(key[3])), [origin.rank for origin in same[1:]])
        for key, same in found.items()
    ]


def _harmless(origin: Origin, describer: Describer) -> Harmless:
    return Harmless(
        rank=describer.step.shown(origin.rank),
        entry=origin.entry,
        kind=describer.kind_of(origin),
        reason=describer.harm_of(origin),
    )


def origins_by_rank(step: StepResult) -> Mapping[int, list[OverflowOrigin]]:
    """Return the first places by rank, those with the fewest exchanges before them."""
    layer = min((origin.layer for origin in step.first), default=0)
    found: dict[int, list[OverflowOrigin]] = {}
    for origin in step.first:
        if origin.layer == layer:
            for rank in (origin.rank or 0, *origin.same_on):
                found.setdefault(rank, []).append(origin)
    return dict(sorted(found.items()))
