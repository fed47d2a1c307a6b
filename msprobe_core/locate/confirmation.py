"""Ask of the first suspects who is wrong, by making their calls again with what was recorded of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msprobe_core.compare.pairs import UnitPair
from msprobe_core.compare.reading import read_dump
from msprobe_core.confirm import Verdict, confirm
from msprobe_core.errors import MsprobeError
from msprobe_core.findings import Finding
from msprobe_core.locate.locate_codes import LocateCode
from msprobe_core.locate.result import FaultKind, Suspect

MAX_CONFIRMED = 5
"""Suspects whose calls are made again; each may take as long as the call takes, seven times."""

_BY_REPLAY = (
    FaultKind.COMPUTATION, FaultKind.SCALE, FaultKind.PRECISION, FaultKind.GRADIENT, FaultKind.NON_FINITE,
    FaultKind.DECISION,
)  # fmt: skip
"""Kinds that a replay can tell something of: a call that was given another parameter or argument does right by it."""

_RIGHT = (Verdict.NEITHER, Verdict.ILL_CONDITIONED)


def with_confirmations(
    suspects: Sequence[Suspect], pairs: Mapping[int | None, UnitPair], model: object | None
) -> tuple[list[Suspect], list[Finding]]:
    """Return the suspects with what replaying their calls says, those whose call computes right behind the others.

    Args:
        suspects: Of one step, in order.
        pairs: The dumps of the step by rank.
        model: To replay modules with; ``None`` if there is none.

    Returns: the suspects in their new order, and what could not be confirmed.
    """
    told: list[Suspect] = []
    notes: list[Finding] = []
    for number, suspect in enumerate(suspects):
        pair = pairs.get(min(suspect.ranks, default=None))
        if number >= MAX_CONFIRMED or pair is None or suspect.kind not in _BY_REPLAY or suspect.only_on is not None:
            told.append(suspect)
            continue
        try:
            found = confirm(
                read_dump(pair.target),
                read_dump(pair.golden),
                suspect.entry,
                golden_entry=suspect.golden_entry,
                model=model,
            )
        except MsprobeError as error:
            notes.append(Finding(LocateCode.NOT_CONFIRMED, fields={"entry": suspect.entry, "why": str(error)}))
            told.append(suspect)
        else:
            told.append(replace(suspect, confirmation=found))
    return sorted(told, key=_rank), notes


def _rank(suspect: Suspect) -> int:
    """Return where a suspect stands: calls that are known to compute right come last."""
    return suspect.confirmation is not None and suspect.confirmation.verdict in _RIGHT
