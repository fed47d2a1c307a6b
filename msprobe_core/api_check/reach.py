"""How far the result of a call flows: how many later calls of the dump use it, directly or through others.

A value is followed from the call that made it to the calls that get it, by equal checksums or statistics, as the page
of `msprobe view` follows it. Values that many calls may make, such as all zeros, are not followed: the count is what
the dump shows. Backward, two more edges follow from the forward:

* A call's backward uses what its forward has saved.
* Where one call's result goes into another, gradients go from the backward of the latter to that of the former. They
  need not be equal, because gradients of a value that several calls use are added up in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from msprobe_core import names
from msprobe_core.judge.data_flow import edges_of, identity_of
from msprobe_core.judge.origins import ancestors
from msprobe_core.model import Phase
from msprobe_core.protocols.storage import Dump

_BLOCK = 8192
"""Number of calls whose use is followed at once: a bit for each of them is kept for every call."""


def reach_of(dump: Dump) -> Mapping[str, int]:
    """Return the number of later calls that the result of each call flows into, by entry.

    Calls that enclose other recorded calls are neither counted nor in the result: their values are those of the calls
    inside.
    """
    rows = dump.frame.select("entry", "phase", "role", identity=identity_of())
    calls = rows.group_by("entry", maintain_order=True).agg(pl.col("phase").first())
    entries: list[str] = calls["entry"].to_list()
    above = _above(entries, dump.parents)
    numbers = calls.select("entry").with_row_index("call")
    values = rows.join(numbers, on="entry", how="left", maintain_order="left").sort("call", maintain_order=True)
    # From the last call to the first: nodes follow those around them.
    order = range(len(entries) - 1, -1, -1)
    parents = [-1 if above[call] == -1 else order[above[call]] for call in order]
    edges = [(order[maker], order[user]) for maker, user, _ in edges_of(parents, order, values)]
    edges += _backward(entries, calls["phase"].to_list(), edges)
    encloses = set(above)
    used_by: list[list[int]] = [[] for _ in entries]
    for maker, user in edges:
        # What a damaged dump has in another order is not followed: the count goes from the last call to the first.
        if maker < user and user not in encloses:
            used_by[maker].append(user)
    counts = dict(zip(entries, _counts(used_by), strict=True))
    return {entry: counts[entry] for call, entry in enumerate(entries) if call not in encloses}


def _above(entries: Sequence[str], parents: Mapping[str, str | None]) -> list[int]:
    """Return for each call the innermost recorded one around it; -1 if there is none."""
    places = {entry: call for call, entry in enumerate(entries)}
    found: list[int] = []
    for call, entry in enumerate(entries):
        place = next((places[parent] for parent in ancestors(entry, parents) if parent in places), -1)
        # An enclosing call follows those inside; a file may claim otherwise, and even that calls enclose each other.
        found.append(place if place > call else -1)
    return found


def _backward(entries: Sequence[str], phases: Sequence[str], edges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the edges from forward to backward, and those of the backward that mirror the forward's."""
    places = {entry: call for call, entry in enumerate(entries)}
    backward_of: dict[int, list[int]] = {}
    for call, (entry, phase) in enumerate(zip(entries, phases, strict=True)):
        forward = places.get(names.forward_of(entry) or "") if phase == Phase.BACKWARD.value else None
        if forward is not None:
            backward_of.setdefault(forward, []).append(call)
    saved = [(forward, call) for forward, own in backward_of.items() for call in own]
    # Of several passes, each goes through the backward of all calls between its ends, one after the other.
    mirrored = [
        (after, before)
        for maker, user in edges
        for after, before in zip(backward_of.get(user, ()), backward_of.get(maker, ()), strict=False)
    ]
    return saved + mirrored


def _counts(used_by: Sequence[Sequence[int]]) -> list[int]:
    """Return the number of calls that can be reached from each call; users follow makers.

    Sets are bits of integers, of one block of reachable calls at a time: a hundred thousand calls take 100 MB then,
    and not a gigabyte.
    """
    counts = [0] * len(used_by)
    for first in range(0, len(used_by), _BLOCK):
        last = min(first + _BLOCK, len(used_by))
        reached = [0] * len(used_by)
        # Calls after the block reach nothing in it.
        for call in range(last - 1, -1, -1):
            own = 0
            for user in used_by[call]:
                if user < last:
                    own |= reached[user]
                    if user >= first:
                        own |= 1 << (user - first)
            reached[call] = own
            counts[call] += own.bit_count()
    return counts
