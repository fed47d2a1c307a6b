"""Among diverging ranks, find those that no other rank's error can have reached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from msprobe_core.compare.result import UnitSummary, decisive
from msprobe_core.judge.fault import Fault
from msprobe_core.judge.rank_order import RankOrder, SuspectedCall
from msprobe_core.order.communication_calls import is_communication

U = TypeVar("U", bound=UnitSummary)


def first_of_steps(units: Sequence[U]) -> Iterator[Sequence[U]]:
    """Yield, for each step with a diverging unit, the units that diverge first, see `first_of_step`."""
    for step in sorted({unit.step or 0 for unit in units if unit.first_fault is not None}):
        yield first_of_step([unit for unit in units if (unit.step or 0) == step])


def until_decisive(steps: Iterator[Sequence[U]], units: Sequence[U]) -> list[Sequence[U]]:
    """Return what `first_of_steps` yields for the steps up to the first one that is decisive for all units."""
    labels = {unit.label for unit, _ in decisive(units)}
    found: list[Sequence[U]] = []
    for first in steps:
        found.append(first)
        if any(unit.label in labels for unit in first):
            break
    return found


def first_of_step(units: Sequence[U]) -> Sequence[U]:
    """Return the units whose first fault is not preceded by that of another, the earliest first.

    The order is that by which `msprobe_core.locate` sorts its suspects, see `msprobe_core.judge.rank_order`.

    Args:
        units: All units of one step, including those that agree: an error may reach another rank through a third.
    """
    diverged = decisive(units)
    if len(diverged) < 2:
        return [unit for unit, _ in diverged]
    order = RankOrder([(unit.rank, unit.target) for unit in units])
    given_wrong = {unit.rank: frozenset(unit.given_wrong) for unit in units}
    return [call.found for call in order.first([_suspected(unit, fault) for unit, fault in diverged], given_wrong)]


def _suspected(unit: U, fault: Fault) -> SuspectedCall[U]:
    return SuspectedCall(
        found=unit,
        rank=unit.rank,
        entry=fault.place or fault.entry,
        position=fault.position,
        excess=fault.excess,
        communicates=fault.is_culprit and is_communication(fault.entry),
        num_communications=fault.num_communications,
    )
