"""Of the ranks that part, those that part first: nothing that went wrong on another can have come to bear on them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from msprobe_core.compare.reading import read_dump
from msprobe_core.compare.result import UnitSummary
from msprobe_core.errors import CompareError, DumpError
from msprobe_core.judge.fault import Fault
from msprobe_core.order import order_of
from msprobe_core.protocols.storage import Dump

_logger = logging.getLogger(__name__)

U = TypeVar("U", bound=UnitSummary)


def first_of_steps(units: Sequence[U]) -> Iterator[Sequence[U]]:
    """Yield, for each step in which any unit parts, the units that do so first, see `first_of_step`."""
    for step in sorted({unit.step or 0 for unit in units if unit.first_fault is not None}):
        yield first_of_step([unit for unit in units if (unit.step or 0) == step])


def first_of_step(units: Sequence[U]) -> Sequence[U]:
    """Return the units whose first fault is preceded by none of the others', the earliest first.

    What precedes what is told by the communication between the target's ranks, see `msprobe_core.order`; for it their
    dumps are read again, one after the other, if several part. Of ranks that cannot be ordered so, because they were
    merged for example, those with the fewest calls of communication before their faults are taken.

    Args:
        units: Of one step, also those that agree: what goes wrong on one rank may reach another through a third.
    """
    parted = [(unit, fault) for unit in units if (fault := unit.first_fault) is not None]
    if len(parted) < 2:
        return [unit for unit, _ in parted]
    found = _by_causality(units, parted)
    if found is not None:
        return found
    least = min(fault.num_communications for _, fault in parted)
    first = [(unit, fault) for unit, fault in parted if fault.num_communications == least]
    return [unit for unit, _ in sorted(first, key=lambda pair: pair[1].position)]


def _by_causality(units: Sequence[U], parted: Sequence[tuple[U, Fault]]) -> Sequence[U] | None:
    """Return them by what precedes what; ``None`` if that cannot be told."""
    ranks = {unit.rank: unit.target for unit in units if unit.rank is not None}
    if len(ranks) < len(units):
        return None
    try:
        order = order_of(_Dumps(ranks))
        nodes = {(unit.rank or 0, fault.place or fault.entry): unit for unit, fault in parted}
        return [nodes[node] for node in order.earliest(nodes)]
    except (CompareError, DumpError) as error:
        _logger.info("ranks were not ordered by their communication: %s", error)
        return None


class _Dumps(Mapping[int, Dump]):
    """Dumps by rank, each read when it is asked for."""

    def __init__(self, paths: Mapping[int, Path]) -> None:
        self._paths = paths

    def __getitem__(self, rank: int) -> Dump:
        return read_dump(self._paths[rank])

    def __iter__(self) -> Iterator[int]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)
