"""Put the suspects of several ranks in order: by what caused what, as communication tells, never by counting calls.

A call of communication gives what others have sent. Where one of those was wrong already, the call is a carrier; where
all were right, and what came out is not, communication itself is at fault.
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
    """What is needed of `msprobe_core.order.Order`."""

    def depth(self, rank: int, entry: str) -> int:
        """Return a number that is larger for whatever comes later."""
        ...

    def senders(self, rank: int, entry: str) -> Sequence[CallPlace]:
        """Return the calls whose data a call of communication receives."""
        ...


def ordered(
    by_rank: Mapping[int | None, Sequence[Suspect]],
    given_wrong: Mapping[int | None, frozenset[str]],
    order: Callable[[], CausalOrder],
) -> list[Suspect]:
    """Return the suspects of one step, the first first; those that several ranks have are one.

    What is barely beyond its limit comes after all else: in one of very many calls that happens by chance.

    Args:
        by_rank: In execution order.
        given_wrong: By rank, the calls of communication that were given what is wrong.
        order: Gives the order over the ranks; called where there are several.
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
    """Return the entry of the target that stands where a suspect is: the order is that of its dumps."""
    return suspect.beside or suspect.entry


def _together(suspects: Iterable[Suspect]) -> list[Suspect]:
    """Return each place once, with all ranks that show it; of calls of an optimizer those that do the same once.

    An optimizer does the same to one parameter after the other: what is wrong with one call is with many.
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
