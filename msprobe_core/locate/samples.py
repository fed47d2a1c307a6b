"""Stages of trainers say which samples their calls hold: calls with other samples are no evidence of a fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from msprobe_core.compare.pairs import Pairing, UnitPair
from msprobe_core.errors import DumpError
from msprobe_core.findings import Finding, Level
from msprobe_core.locate.locate_codes import LocateCode
from msprobe_core.store.samples import SAMPLES_FILE, MicroBatch, load_samples


def with_same_samples(pairing: Pairing) -> tuple[Pairing, list[Finding]]:
    """Return the pairs whose calls hold the same samples in the same places, and why the others are left out.

    Dumps without ``samples.json`` stay: nothing says which samples they hold.
    """
    told = [(pair, _other_samples(pair)) for pair in pairing.pairs]
    kept = [pair for pair, finding in told if finding is None]
    return replace(pairing, pairs=kept), [finding for _, finding in told if finding is not None]


def _other_samples(pair: UnitPair) -> Finding | None:
    sides = [_calls_of(path) for path in (pair.target, pair.golden)]
    if sides[0] is None or sides[1] is None:
        return None
    own, other = (list(_places(calls)) for calls in (sides[0], sides[1]))
    if own == other:
        return None
    ids = [{place[1] for place in places} for places in (own, other)]
    fields: dict[str, str | int] = {
        "where": pair.label or pair.target.name, "common": len(ids[0] & ids[1]), "count": max(map(len, ids)),
    }  # fmt: skip
    code = LocateCode.SAMPLES_CUT if ids[0] == ids[1] else LocateCode.SAMPLES_OTHER
    return Finding(code, Level.WARNING, fields)


def _calls_of(path: Path) -> Sequence[MicroBatch] | None:
    directory = path if path.is_dir() else path.parent
    if not (directory / SAMPLES_FILE).exists():
        return None
    try:
        return load_samples(directory).micro_batches
    except DumpError:
        return None


def _places(calls: Sequence[MicroBatch]) -> Iterator[tuple[int, str, int, int, int, int]]:
    for call in calls:
        for row in call.rows:
            yield call.call, row.id, row.row, row.offset, row.length, row.start
