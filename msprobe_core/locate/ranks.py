"""Order the suspects of several ranks, see `msprobe_core.judge.rank_order`, and merge those of one place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from msprobe_core import names
from msprobe_core.judge.rank_order import RankOrder, SuspectedCall
from msprobe_core.locate.exchanges import BY_ITSELF
from msprobe_core.locate.result import FaultKind, Suspect


def ordered(
    suspects: Sequence[tuple[int | None, Suspect]],
    given_wrong: Mapping[int | None, frozenset[str]],
    order: RankOrder,
) -> list[Suspect]:
    """Return the suspects of one step, the first divergence first; those that several ranks share are merged.

    Args:
        suspects: Each with its rank.
        given_wrong: By rank, the communication calls with wrong inputs.
        order: Over the ranks.
    """
    calls = [
        SuspectedCall(
            found=suspect,
            rank=rank,
            entry=suspect.beside or suspect.entry,  # the order is that of the target's dumps
            position=suspect.position,
            excess=suspect.excess,
            communicates=suspect.kind is FaultKind.COMMUNICATION and suspect.reason.code not in BY_ITSELF,
            num_communications=suspect.num_communications,
        )
        for rank, suspect in suspects
    ]
    return _together(call.found for call in order.sorted(calls, given_wrong))


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
