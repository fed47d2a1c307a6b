"""Among diverging ranks, find those that no other rank's error can have reached."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from msprobe_core.compare.result import UnitSummary
from msprobe_core.errors import CompareError, DumpError
from msprobe_core.judge.fault import Fault
from msprobe_core.order import order_of
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.reading import read_dump

_logger = logging.getLogger(__name__)

U = TypeVar("U", bound=UnitSummary)


def first_of_steps(units: Sequence[U]) -> Iterator[Sequence[U]]:
    """Yield, for each step with a diverging unit, the units that diverge first, see `first_of_step`."""
    for step in sorted({unit.step or 0 for unit in units if unit.first_fault is not None}):
        yield first_of_step([unit for unit in units if (unit.step or 0) == step])


def first_of_step(units: Sequence[U]) -> Sequence[U]:
    """Return the units whose first fault is not preceded by that of another, the earliest first.

    The order is given by the communication between the target's ranks, see `msprobe_core.order`; for it their dumps are
    read again, one after the other, if several diverge. Among ranks that cannot be ordered, for example because they
    were merged, those with the fewest communication calls before their faults are returned.

    Args:
        units: All units of one step, including those that agree: an error may reach another rank through a third.
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
    """Return the first units by the happens-before order; ``None`` if it cannot be determined."""
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
    """Dumps by rank, each read on access."""

    def __init__(self, paths: Mapping[int, Path]) -> None:
        self._paths = paths

    def __getitem__(self, rank: int) -> Dump:
        return read_dump(self._paths[rank])

    def __iter__(self) -> Iterator[int]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)
