"""Stages of trainers say which samples their calls hold: calls with other samples are no evidence of a fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from msprobe_core.compare.layouts.mini_batches import have_same_mini_batches, samples_of
from msprobe_core.compare.pairs import Pairing, UnitPair
from msprobe_core.findings import Finding, Level
from msprobe_core.locate.locate_codes import LocateCode
from msprobe_core.store.samples import MicroBatch


class BySamples(NamedTuple):
    """Pairs whose calls hold the same samples.

    Attributes:
        pairing: The pairs, of which some join the calls of each mini-batch.
        left_out: Why others are left out.
        joined: Notes on those that join calls.
    """

    pairing: Pairing
    left_out: list[Finding]
    joined: list[Finding]


def with_same_samples(pairing: Pairing) -> BySamples:
    """Return the pairs whose calls, or mini-batches, hold the same samples, and why the others are left out.

    Dumps without ``samples.json`` stay: nothing says which samples they hold.
    """
    on_all_ranks = _samples_by_step(pairing.pairs)
    told = [(pair, _other_samples(pair, *on_all_ranks[pair.step])) for pair in pairing.pairs]
    is_joined = [finding is not None and finding.code is LocateCode.SAMPLES_JOINED for _, finding in told]
    kept = [
        replace(pair, joins_calls=joins)
        for (pair, finding), joins in zip(told, is_joined, strict=True)
        if finding is None or joins
    ]
    said = [(finding, joins) for (_, finding), joins in zip(told, is_joined, strict=True) if finding is not None]
    return BySamples(
        replace(pairing, pairs=kept),
        [finding for finding, joins in said if not joins],
        [finding for finding, joins in said if joins],
    )


def _samples_by_step(pairs: Sequence[UnitPair]) -> Mapping[int | None, tuple[set[str], set[str]]]:
    """Return the samples of all ranks of target and golden, by step."""
    found: dict[int | None, tuple[set[str], set[str]]] = {}
    for pair in pairs:
        sides = found.setdefault(pair.step, (set(), set()))
        for ids, path in zip(sides, (pair.target, pair.golden), strict=True):
            ids |= {place[1] for place in _places(samples_of(path) or ())}
    return found


def _other_samples(pair: UnitPair, all_own: set[str], all_other: set[str]) -> Finding | None:
    target, golden = samples_of(pair.target), samples_of(pair.golden)
    if target is None or golden is None:
        return None
    own, other = list(_places(target)), list(_places(golden))
    if own == other:
        return None
    ids = [{place[1] for place in places} for places in (own, other)]
    fields: dict[str, str | int] = {
        "where": pair.label or pair.target.name, "common": len(ids[0] & ids[1]), "count": max(map(len, ids)),
    }  # fmt: skip
    if not pair.target_parts and have_same_mini_batches(target, golden):
        return Finding(LocateCode.SAMPLES_JOINED, Level.NOTE, fields)
    code = LocateCode.SAMPLES_CUT if all_own == all_other else LocateCode.SAMPLES_OTHER
    return Finding(code, Level.WARNING, fields)


def _places(calls: Sequence[MicroBatch]) -> Iterator[tuple[int, str, int, int, int, int]]:
    for call in calls:
        for row in call.rows:
            yield call.call, row.id, row.row, row.offset, row.length, row.start
