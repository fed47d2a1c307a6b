"""Order the suspects of several ranks by the happens-before order that communication enforces, never by call counts.

A communication call returns data that other ranks have sent. If an input of one of them was wrong already, the call
only carries the error; if all inputs were right and the result is wrong, communication itself is at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from msprobe_core import names
from msprobe_core.judge.origins import MARGINAL_EXCESS
from msprobe_core.locate.result import FaultKind, Suspect

CallPlace = tuple[int, str]
"""Rank, and name of the entry."""


class CausalOrder(Protocol):
    """The part of `msprobe_core.order.Order` that is needed here."""

    def depth(self, rank: int, entry: str) -> int:
        """Return a number that is larger for all later calls."""
        ...

    def senders(self, rank: int, entry: str) -> Sequence[CallPlace]:
        """Return the calls whose data a call of communication receives."""
        ...


def ordered(
    by_rank: Mapping[int | None, Sequence[Suspect]],
    given_wrong: Mapping[int | None, frozenset[str]],
    order: Callable[[], CausalOrder],
) -> list[Suspect]:
    """Return the suspects of one step, the first divergence first; those that several ranks share are merged.

    Suspects barely beyond their limit come last: with very many calls, that happens by chance.

    Args:
        by_rank: Suspects in execution order.
        given_wrong: By rank, the communication calls with wrong inputs.
        order: Returns the order over the ranks; called if there are several.
    """
    found = [(rank, suspect) for rank, suspects in by_rank.items() for suspect in suspects]
    if not found:
        return []
    places: dict[CallPlace, int] = {}
    if len(by_rank) > 1 and None not in by_rank:
        causal = order()
        wrong = {(rank, entry) for rank, entries in given_wrong.items() if rank is not None for entry in entries}
        found = [
            (rank, suspect)
            for rank, suspect in found
            if rank is None
            or not (
                suspect.kind is FaultKind.COMMUNICATION and wrong.intersection(causal.senders(rank, _place(suspect)))
            )
        ]
        places = {
            (rank, suspect.entry): causal.depth(rank, _place(suspect)) for rank, suspect in found if rank is not None
        }

    def key(item: tuple[int | None, Suspect]) -> tuple[bool, int, int, int]:
        rank, suspect = item
        depth = places.get((rank, suspect.entry), 0) if rank is not None else 0
        return suspect.excess < MARGINAL_EXCESS, depth, suspect.position, rank or 0

    return _together(suspect for _, suspect in sorted(found, key=key))


def _place(suspect: Suspect) -> str:
    """Return the target's entry at the position of a suspect: the order is that of the target's dumps."""
    return suspect.beside or suspect.entry


def _together(suspects: Iterable[Suspect]) -> list[Suspect]:
    """Return each place once, with all ranks that show it; similar calls of an optimizer are merged.

    An optimizer treats all parameters alike, so a fault in one of its calls appears in many.
    """
    places: dict[tuple[str, FaultKind], Suspect] = {}
    for suspect in suspects:
        is_update = suspect.kind is FaultKind.OPTIMIZER and suspect.module is None
        stem = (names.stem_of(suspect.entry) if is_update else None) or suspect.entry
        key = (stem, suspect.kind)
        if key not in places:
            places[key] = suspect
            continue
        first = places[key]
        alike = first.num_alike + (first.entry != suspect.entry)
        places[key] = replace(first, ranks=sorted({*first.ranks, *suspect.ranks}), num_alike=alike)
    return list(places.values())
