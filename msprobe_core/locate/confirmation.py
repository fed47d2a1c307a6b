"""Confirmation of the first suspects: replay their recorded calls to decide which side is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msprobe_core.compare.pairs import UnitPair
from msprobe_core.confirm import Verdict, confirm
from msprobe_core.errors import MsprobeError
from msprobe_core.findings import Finding
from msprobe_core.locate.locate_codes import LocateCode
from msprobe_core.locate.result import FaultKind, Suspect
from msprobe_core.store.reading import read_dump

MAX_CONFIRMED = 5
"""Maximum number of suspects whose calls are replayed; each replay may take seven times as long as the call."""

_BY_REPLAY = (
    FaultKind.COMPUTATION, FaultKind.SCALE, FaultKind.PRECISION, FaultKind.GRADIENT, FaultKind.NON_FINITE,
    FaultKind.DECISION,
)  # fmt: skip
"""Kinds that a replay can confirm: a call with a wrong parameter or argument still computes correctly."""

_RIGHT = (Verdict.NEITHER, Verdict.ILL_CONDITIONED)


def with_confirmations(
    suspects: Sequence[Suspect], pairs: Mapping[int | None, UnitPair], model: object | None
) -> tuple[list[Suspect], list[Finding]]:
    """Return the suspects with the results of replaying their calls; those whose call computes correctly come last.

    Args:
        suspects: Suspects of one step, in order.
        pairs: The dumps of the step by rank.
        model: Model for the replay of modules; ``None`` if there is none.

    Returns: the suspects in their new order, and notes on those that could not be confirmed.
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
    """Return the sort key of a suspect: calls that are known to compute correctly come last."""
    return suspect.confirmation is not None and suspect.confirmation.verdict in _RIGHT
