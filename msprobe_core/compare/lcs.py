"""Align two sequences of calls: which call of one is which call of the other.

The algorithms work on identities, integers that are equal if two calls may be the same. Sources: Myers, *An O(ND)
difference algorithm and its variations*, Algorithmica 1986, for sequences with few differences; Hyyrö, *Bit-parallel
LCS-length computation revisited*, AWOCA 2004, for all others: one row of the table of lengths is one integer with a bit
per element of the other sequence, so that Python adds and masks 64 elements at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise

Pair = tuple[int, int]
"""Position in the target's sequence and in the golden one."""

_FEW = 64
"""Maximum number of differences for the first algorithm, whose time grows with their square."""

_MAX_TABLE_BYTES = 32 << 20
"""Maximum size of the part of the table that is stored; other rows are recomputed, block by block."""


def common_subsequence(target: Sequence[int], golden: Sequence[int]) -> Iterator[Pair]:
    """Yield the positions of a longest common subsequence, ascending on both sides.

    Among several, the earliest matches are preferred, so that of equal neighbours the last stays unmatched.

    Cost: linear for sequences with few differences; otherwise ``len(target) * len(golden) / 64`` machine operations,
        and memory bounded by ``_MAX_TABLE_BYTES`` and a few more rows.
    """
    shared = set(target) & set(golden)
    # Arrays, since a list of other integers takes five times the memory.
    rows = array("q", (i for i, identity in enumerate(target) if identity in shared))
    columns = array("q", (j for j, identity in enumerate(golden) if identity in shared))
    own, other = array("q", (target[i] for i in rows)), array("q", (golden[j] for j in columns))
    length = min(len(own), len(other))
    head = next((k for k in range(length) if own[k] != other[k]), length)
    rest = length - head
    tail = next((k for k in range(rest) if own[-1 - k] != other[-1 - k]), rest)
    middle = own[head : len(own) - tail], other[head : len(other) - tail]
    few = _by_few_differences(*middle)
    for i, j in chain(
        ((k, k) for k in range(head)),
        ((head + i, head + j) for i, j in (_by_table(*middle) if few is None else few)),
        ((len(own) - k, len(other) - k) for k in range(tail, 0, -1)),
    ):
        yield rows[i], columns[j]


def _by_few_differences(target: Sequence[int], golden: Sequence[int]) -> list[Pair] | None:
    """Return the pairs if at most `_FEW` elements are unmatched, else ``None``."""
    num_rows, num_columns = len(target), len(golden)
    furthest = {1: 0}  # by diagonal, row - column: the row reached so far
    trail: list[dict[int, int]] = []
    for differences in range(_FEW + 1):
        trail.append(dict(furthest))
        for diagonal in range(-differences, differences + 1, 2):
            i = _step(furthest, diagonal, differences)
            j = i - diagonal
            while i < num_rows and j < num_columns and target[i] == golden[j]:
                i, j = i + 1, j + 1
            furthest[diagonal] = i
            if i >= num_rows and j >= num_columns:
                return _retrace(trail, num_rows, num_columns)
    return None


def _step(furthest: dict[int, int], diagonal: int, differences: int) -> int:
    """Return the row at which a diagonal is entered from its better neighbour."""
    if _skips_column(furthest, diagonal, differences):
        return furthest[diagonal + 1]
    return furthest[diagonal - 1] + 1


def _skips_column(furthest: dict[int, int], diagonal: int, differences: int) -> bool:
    if diagonal == -differences:
        return True
    return diagonal != differences and furthest[diagonal - 1] < furthest[diagonal + 1]


def _retrace(trail: list[dict[int, int]], i: int, j: int) -> list[Pair]:
    pairs: list[Pair] = []
    for differences in range(len(trail) - 1, -1, -1):
        furthest, diagonal = trail[differences], i - j
        entered = _step(furthest, diagonal, differences)
        while i > entered:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        i, j = (i, j - 1) if _skips_column(furthest, diagonal, differences) else (i - 1, j)
    return pairs[::-1]


def _by_table(target: Sequence[int], golden: Sequence[int]) -> list[Pair]:
    if not target or not golden:
        return []
    places: dict[int, int] = {}
    for j, identity in enumerate(golden):
        places[identity] = places.get(identity, 0) | 1 << j
    masks = [places.get(identity, 0) for identity in target]
    all_ones = (1 << len(golden)) - 1
    row_bytes = len(golden) // 8 + 1
    size = max(1, _MAX_TABLE_BYTES // row_bytes)
    # The first row of each block; with a single block, nothing is computed twice.
    starts = [all_ones]
    for begin in range(0, len(target) - size, size):
        starts.append(_rows(masks[begin : begin + size], starts[-1], all_ones)[-1])
    pairs: list[Pair] = []
    j = len(golden)
    for number in range(len(starts) - 1, -1, -1):
        begin = number * size
        block = _rows(masks[begin : begin + size], starts[number], all_ones)
        j = _walk_back(block, begin, j, pairs)
    return pairs[::-1]


def _rows(masks: Sequence[int], start: int, all_ones: int) -> list[int]:
    """Return ``start`` and the row after each mask: bit j is 0 if the length grows from column j to j + 1."""
    rows = [start]
    row = start
    for mask in masks:
        hits = row & mask
        row = ((row + hits) | (row - hits)) & all_ones
        rows.append(row)
    return rows


def _walk_back(block: Sequence[int], begin: int, j: int, pairs: list[Pair]) -> int:
    """Append the pairs of a block of rows in reverse order, from column ``j`` on; return the column at its start."""
    i = len(block) - 1
    while i and j:
        if block[i] >> (j - 1) & 1:  # column j does not add to the length
            j -= 1
        else:
            i -= 1
            if block[i] >> (j - 1) & 1:  # this row adds to the length
                j -= 1
                pairs.append((begin + i, j))
    return j


def align_sequences(target: Sequence[Sequence[int]], golden: Sequence[Sequence[int]]) -> list[Pair]:
    """Return the pairs of two sequences whose elements have several identities, ascending on both sides.

    Args:
        target: One sequence of identities per degree of strictness, the strictest first, all of one length.
        golden: The same for the golden side, with as many sequences.

    Pairs of stricter identities are kept; looser ones pair elements between them.
    """
    num_rows, num_columns = len(target[0]), len(golden[0])
    pairs: list[Pair] = []
    for own, other in zip(target, golden, strict=True):
        found: list[Pair] = []
        for rows, columns in _gaps(pairs, num_rows, num_columns):
            if rows and columns:
                between = common_subsequence(own[rows.start : rows.stop], other[columns.start : columns.stop])
                found += ((rows.start + i, columns.start + j) for i, j in between)
        pairs = sorted(pairs + found) if pairs and found else pairs or found
    return pairs


def _gaps(pairs: Sequence[Pair], num_rows: int, num_columns: int) -> Iterator[tuple[range, range]]:
    """Yield the gaps before, between and after the pairs."""
    for (i, j), (next_i, next_j) in pairwise([(-1, -1), *pairs, (num_rows, num_columns)]):
        if next_i - i > 1 or next_j - j > 1:
            yield range(i + 1, next_i), range(j + 1, next_j)


def settle(
    pairs: Sequence[Pair], target: Sequence[int], golden: Sequence[int], distance: Callable[[int, int], float]
) -> list[Pair]:
    """Return ``pairs``, with those next to unmatched calls chosen again so that values agree best.

    For several equal calls in a row the sequence does not show which one is additional; the values do.

    Args:
        pairs: Ascending on both sides.
        target: Identities; equal calls may be exchanged.
        golden: Identities of the golden side.
        distance: Difference between the values of a pair, >= 0 and below 1000.
    """
    regions: list[tuple[int, int]] = []
    # Calls that can pass their partner to the unmatched call, calls that can pass theirs to those, and so on.
    turned = [(j, i) for i, j in pairs]
    found = [*_open_regions(pairs, target), *_open_regions(turned, golden)]
    for begin, end in sorted(found):
        if regions and begin <= regions[-1][1]:
            regions[-1] = regions[-1][0], max(end, regions[-1][1])
        else:
            regions.append((begin, end))
    settled: list[Pair] = []
    done = 0
    for begin, end in regions:
        first = pairs[begin - 1] if begin else (-1, -1)
        last = pairs[end] if end < len(pairs) else (len(target), len(golden))
        rows, columns = range(first[0] + 1, last[0]), range(first[1] + 1, last[1])
        settled += pairs[done:begin]
        settled += _best_pairs(rows, columns, pairs[begin:end], target, golden, distance)
        done = end
    return [*settled, *pairs[done:]]


def _open_regions(pairs: Sequence[Pair], rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges of pairs, by number, in which a run of unmatched rows could be exchanged with matched ones."""
    edges = [-1, *(i for i, _ in pairs), len(rows)]
    for number, (before, after) in enumerate(pairwise(edges)):
        if after - before < 2:
            continue
        # Extend the range while neighbouring matched rows are equal to some unmatched row.
        kinds = set(rows[before + 1 : after])
        begin, end = number, number
        while begin and rows[edges[begin]] in kinds:
            begin -= 1
            kinds.update(rows[edges[begin] + 1 : edges[begin + 1]])
        while end < len(pairs) and rows[edges[end + 1]] in kinds:
            end += 1
            kinds.update(rows[edges[end] + 1 : edges[end + 1]])
        if begin < end:
            yield begin, end


_MAX_CELLS = 300_000
"""Largest table for the choice among equal calls; beyond it, they are paired in order."""

_PAIR = 1e6
"""Value of a pair: larger than any distance, so that no pair is given up for a distance."""


def _best_pairs(
    rows: range,
    columns: range,
    pairs: Sequence[Pair],
    target: Sequence[int],
    golden: Sequence[int],
    distance: Callable[[int, int], float],
) -> list[Pair]:
    """Return as many pairs as before, with the least total distance."""
    num_lone_rows, num_lone_columns = len(rows) - len(pairs), len(columns) - len(pairs)
    width = num_lone_rows + num_lone_columns + 1
    if len(rows) * width > _MAX_CELLS:
        return list(pairs)
    worth: list[dict[int, float]] = [dict.fromkeys(range(num_lone_columns + 1), 0.0)]
    for i, row in enumerate(rows, start=1):
        above, own = worth[-1], dict[int, float]()
        for j in range(max(0, i - num_lone_rows), min(len(columns), i + num_lone_columns) + 1):
            best = max(above.get(j, -1.0), own.get(j - 1, -1.0))
            if j and target[row] == golden[columns[j - 1]]:
                best = max(best, above.get(j - 1, -_PAIR) + _PAIR - distance(row, columns[j - 1]))
            own[j] = best
        worth.append(own)
    chosen: list[Pair] = []
    i, j = len(rows), len(columns)
    while i and j:
        best = worth[i].get(j, -1.0)
        if worth[i - 1].get(j, -1.0) == best:
            i -= 1
        elif worth[i].get(j - 1, -1.0) == best:
            j -= 1
        else:
            i, j = i - 1, j - 1
            chosen.append((rows[i], columns[j]))
    # Pairs by looser identities cannot occur here; keep the old pairs if some would be lost.
    return chosen[::-1] if len(chosen) >= len(pairs) else list(pairs)
