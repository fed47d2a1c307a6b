"""How the parts that several ranks hold form one tensor, and which of its properties follow.

For disjoint parts, maximum, minimum and the numbers of NaN and Inf follow; the mean is the mean of the means, weighted
by elements, and the squared norm is the sum of the squared norms. For terms of a sum, only the mean follows, and
whether there is any NaN or Inf. Sketches are linear maps, so that of the whole follows in both cases.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from msprobe_core.fingerprint.distance import SIZE_BYTES, decoded
from msprobe_core.fingerprint.place import Place
from msprobe_core.fingerprint.shard_ranges import Ranges, sizes_of

Array: TypeAlias = Any
"""A NumPy array, whose functions the type checker knows only in part."""

REDUCTIONS = ("sum", "avg", "max", "min", "product")
"""Reductions that combine the terms of a partial result."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a part, with its position in the whole.

    Attributes:
        begin: Coordinates of its first element in the part.
        whole: Coordinates of its first element in the whole.
        sizes: Its shape.
    """

    begin: tuple[int, ...]
    whole: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)


@dataclass(frozen=True, slots=True)
class Piece:
    """Contribution of one part to the whole.

    Attributes:
        part: Number of the part.
        copies: Parts that should be equal to it.
        blocks: Positions of its elements; empty if it has none.
        sizes: Its shape.
        term: Number of its term, for a partial result.
    """

    part: int
    copies: tuple[int, ...]
    blocks: tuple[Block, ...]
    sizes: tuple[int, ...]
    term: int = 0

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)


@dataclass(frozen=True, slots=True)
class Assembly:
    """How pieces form a whole.

    Attributes:
        shape: Shape of the whole.
        pieces: For each term, disjoint pieces that cover all elements.
        reduction: Reduction of the terms, one of `REDUCTIONS`; ``None`` for a single term.
    """

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    reduction: str | None = None

    @property
    def num_terms(self) -> int:
        """Number of terms."""
        return len({piece.term for piece in self.pieces})

    @property
    def is_one_part(self) -> bool:
        """Whether one part is the whole."""
        return len(self.pieces) == 1 and self.pieces[0].sizes == self.shape


@dataclass(frozen=True, slots=True)
class CannotMerge:
    """Why parts cannot be merged, as a clause for messages."""

    reason: str


@dataclass(frozen=True, slots=True)
class Held:
    """The part of the whole that one rank holds.

    Attributes:
        part: Number of the part.
        ranges: Index ranges along each dimension.
        term: Term of a partial result.
    """

    part: int
    ranges: tuple[Ranges, ...]
    term: tuple[int, ...] = ()


def assemble(shape: Sequence[int], held: Sequence[Held], reduction: str | None = None) -> Assembly | CannotMerge:
    """Return how parts form a tensor; parts with the same elements of one term count as copies."""
    if reduction is not None and reduction not in REDUCTIONS:
        return CannotMerge(f"parts of a result that is pending '{reduction}' cannot be put together")
    shape = tuple(shape)
    found: dict[tuple[tuple[int, ...], tuple[Ranges, ...]], list[int]] = {}
    for one in held:
        found.setdefault((one.term, one.ranges), []).append(one.part)
    terms = {term: i for i, term in enumerate(dict.fromkeys(one.term for one in held))}
    pieces = tuple(
        Piece(parts[0], tuple(parts[1:]), _blocks_of(ranges), sizes_of(ranges), terms[term])
        for (term, ranges), parts in found.items()
    )
    for number in terms.values():
        size = sum(piece.numel for piece in pieces if piece.term == number)
        if size != math.prod(shape):
            what = "overlap" if size > math.prod(shape) else "are not all there"
            return CannotMerge(f"its parts {what}: they have {size} elements, the whole {math.prod(shape)}")
    return Assembly(shape, pieces, reduction if len(terms) > 1 else None)


def _blocks_of(ranges: tuple[Ranges, ...]) -> tuple[Block, ...]:
    along = [_runs_of(one) for one in ranges]
    return tuple(
        Block(tuple(run[0] for run in runs), tuple(run[1] for run in runs), tuple(run[2] for run in runs))
        for runs in itertools.product(*along)
    )


def _runs_of(ranges: Ranges) -> list[tuple[int, int, int]]:
    """Return for each run its begin in the part and in the whole, and its size."""
    runs: list[tuple[int, int, int]] = []
    begin = 0
    for first, last in ranges:
        runs.append((begin, first, last - first))
        begin += last - first
    return runs


# --- properties of many tensors with the same assembly --------------------------------------------------------------

STATISTICS = ("max", "min", "mean", "norm", "num_nan", "num_inf")


@dataclass(frozen=True, slots=True)
class Numbers:
    """A column of numbers, some of which are unknown.

    Attributes:
        values: float64 ``[n]``; NaN is a value like others.
        is_known: bool ``[n]``.
    """

    values: Array
    is_known: Array

    @classmethod
    def unknown(cls, size: int) -> Numbers:
        """Return a column without known values."""
        return cls(np.full(size, np.nan), np.zeros(size, np.bool_))

    def at(self, indices: Array) -> Numbers:
        """Return the values at ``indices``, in this order."""
        return Numbers(self.values[indices], self.is_known[indices])


def merge_statistics(
    assembly: Assembly, parts: Sequence[Mapping[str, Numbers]], *, is_complex: bool = False
) -> dict[str, Numbers]:
    """Return the statistics of tensors with the same assembly.

    Args:
        assembly: The assembly.
        parts: For each of its pieces the columns `STATISTICS`, ``[n]``.
        is_complex: Whether they are complex, so that their statistics are those of magnitudes.
    """
    filled = [(piece, part) for piece, part in zip(assembly.pieces, parts, strict=True) if piece.numel]
    if len(filled) == 1 and assembly.reduction is None:
        return {name: filled[0][1][name] for name in STATISTICS}
    size = len(parts[0]["max"].values)
    if not filled:
        return {name: Numbers.unknown(size) for name in STATISTICS}
    weights = np.array([[piece.numel] for piece, _ in filled], np.float64)
    stacked = {name: np.stack([part[name].values for _, part in filled]) for name in STATISTICS}  # each [pieces, n]
    known = {name: np.all([part[name].is_known for _, part in filled], axis=0) for name in STATISTICS}
    with np.errstate(invalid="ignore", over="ignore"):
        if assembly.reduction is None:
            merged = {
                "max": stacked["max"].max(axis=0),
                "min": stacked["min"].min(axis=0),
                "mean": (stacked["mean"] * (weights / weights.sum())).sum(axis=0),
                "norm": _norm(stacked["norm"]),
                "num_nan": stacked["num_nan"].sum(axis=0),
                "num_inf": stacked["num_inf"].sum(axis=0),
            }
            return {name: Numbers(merged[name], known[name]) for name in STATISTICS}
        return _merge_terms(assembly, stacked, known, weights, is_complex=is_complex)


def _merge_terms(
    assembly: Assembly,
    stacked: Mapping[str, Array],
    known: Mapping[str, Array],
    weights: Array,
    *,
    is_complex: bool,
) -> dict[str, Numbers]:
    merged = {name: Numbers.unknown(stacked[name].shape[1]) for name in STATISTICS}
    if assembly.reduction in ("sum", "avg") and not is_complex:
        divisor = math.prod(assembly.shape) * (assembly.num_terms if assembly.reduction == "avg" else 1)
        merged["mean"] = Numbers((stacked["mean"] * (weights / divisor)).sum(axis=0), known["mean"])
    if assembly.reduction == "max":
        merged["max"] = Numbers(stacked["max"].max(axis=0), known["max"])
    if assembly.reduction == "min":
        merged["min"] = Numbers(stacked["min"].min(axis=0), known["min"])
    for name in ("num_nan", "num_inf"):
        # If no term has any, neither has the sum, unless it overflows.
        has_none = known[name] & (stacked[name] == 0).all(axis=0)
        merged[name] = Numbers(np.where(has_none, 0.0, np.nan), has_none)
    return merged


def _norm(norms: Array) -> Array:
    """Return the norms of ``[pieces, n]``; scaled, so that no square exceeds the range of float64."""
    largest = np.max(np.abs(norms), axis=0)
    scale = np.where((largest > 0) & np.isfinite(largest), largest, 1.0)
    return scale * np.sqrt(((norms / scale) ** 2).sum(axis=0))


def counts_as_whole(piece: Piece, shape: Sequence[int]) -> bool:
    """Whether the elements of a part have the same row-major numbers as in the whole.

    Then hash and sketch are the same as if computed with the part's position.
    """
    if not piece.numel:
        return True
    if len(piece.blocks) != 1:
        return False
    block = piece.blocks[0]
    own = Place.of_whole(piece.sizes).without_single(piece.sizes)
    return Place.of_shard(shape, block.whole).without_single(piece.sizes) == own


def merge_sketches(assembly: Assembly, parts: Sequence[Sequence[bytes | None]]) -> list[bytes | None]:
    """Return the sketches of tensors with the same assembly.

    Args:
        assembly: The assembly; several terms are summed or averaged.
        parts: Sketches of each piece, computed with the element numbers of the whole.
    """
    filled = [part for piece, part in zip(assembly.pieces, parts, strict=True) if piece.numel]
    if not filled or assembly.reduction not in (None, "sum", "avg"):
        return [None] * len(parts[0])
    is_known = np.all([[sketch is not None for sketch in part] for part in filled], axis=0)
    blank = bytes(SIZE_BYTES)
    with np.errstate(invalid="ignore", over="ignore"):
        total = sum(decoded([sketch or blank for sketch in part]).astype(np.float64) for part in filled)
        if assembly.reduction == "avg":
            total = total / assembly.num_terms
        rows = np.asarray(total).astype("<f4")
    return [row.tobytes() if known else None for row, known in zip(rows, is_known, strict=True)]


def merge_hashes(assembly: Assembly, parts: Sequence[Sequence[str | None]]) -> list[str | None]:
    """Return the hashes of tensors with the same assembly; ``None`` for sums.

    Args:
        assembly: The assembly.
        parts: Hashes of each piece, ``0x`` and 16 hex digits, computed with the element numbers of the whole.
    """
    if assembly.reduction is not None:
        return [None] * len(parts[0])
    merged: list[str | None] = []
    for words in zip(*parts, strict=True):
        known = [word for word in words if word is not None]
        total = sum(int(word, 16) for word in known) % (1 << 64)
        merged.append(f"0x{total:016x}" if len(known) == len(words) else None)
    return merged
