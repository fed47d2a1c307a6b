"""Make logical tensors of pieces, and check that the pieces cover them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from msprobe_core.checkpoint.contents import Kind, LogicalTensor, Piece
from msprobe_core.checkpoint.opening_codes import OpeningCode
from msprobe_core.errors import clip
from msprobe_core.findings import Finding, Level
from msprobe_core.protocols.storage import TensorSource

_MOST_COMPARED = 2048
"""Number of pieces up to which every two are compared; more are only counted, unless they divide one dimension."""


def error(code: OpeningCode, **fields: Any) -> Finding:
    """Return a finding about damage."""
    return Finding(code, Level.ERROR, fields)


def note(code: OpeningCode, **fields: Any) -> Finding:
    """Return a finding about what was assumed or left out."""
    return Finding(code, Level.NOTE, fields)


def unreadable(why: str) -> Finding:
    """Return a finding about a file or tensor that cannot be read."""
    return error(OpeningCode.UNREADABLE, why=clip(why, 500))


def whole(name: str, source: TensorSource, file: Path, *, kind: Kind = Kind.WEIGHT, rank: str = "") -> LogicalTensor:
    """Return a tensor that is stored in one piece."""
    piece = Piece(source=source, begin=(0,) * len(source.shape), file=file, rank=rank)
    return LogicalTensor(name=name, dtype=source.dtype, shape=source.shape, pieces=(piece,), kind=kind)


def damaged(
    name: str, damage: Finding, *, dtype: str = "", shape: tuple[int, ...] = (), kind: Kind = Kind.WEIGHT
) -> LogicalTensor:
    """Return a tensor of which nothing can be read."""
    return LogicalTensor(name=name, dtype=dtype, shape=shape, pieces=(), kind=kind, damage=damage)


def joined(
    name: str,
    pieces: Sequence[Piece],
    *,
    shape: tuple[int, ...] | None = None,
    kind: Kind = Kind.WEIGHT,
    rule: str = "",
    replicas: Sequence[Piece] = (),
    damage: Finding | None = None,
) -> LogicalTensor:
    """Return a tensor in several pieces, with damage if they do not cover it, or differ in dtype.

    Args:
        name: Its name.
        pieces: Its pieces, at least one.
        shape: Of the whole; the smallest that has room for the pieces if not given.
        kind: What it is.
        rule: How the pieces were put together.
        replicas: Copies of pieces.
        damage: What is known to be wrong already.
    """
    if shape is None:
        ends = [[b + n for b, n in zip(piece.begin, piece.source.shape, strict=True)] for piece in pieces]
        shape = tuple(max(sizes) for sizes in zip(*ends, strict=True)) if ends[0] else ()
    dtypes = sorted({piece.source.dtype for piece in pieces})
    if damage is None and len(dtypes) > 1:
        damage = error(OpeningCode.UNLIKE, what=", ".join(dtypes))
    return LogicalTensor(
        name=name,
        dtype=pieces[0].source.dtype,
        shape=shape,
        pieces=tuple(pieces),
        kind=kind,
        rule=rule,
        damage=damage or cover_damage(shape, pieces),
        replicas=tuple(replicas),
    )


def cover_damage(shape: tuple[int, ...], pieces: Sequence[Piece]) -> Finding | None:
    """Return why pieces do not cover a tensor exactly; ``None`` if they do."""
    for piece in pieces:
        sizes = piece.source.shape
        if len(sizes) != len(shape) or len(piece.begin) != len(shape):
            return error(OpeningCode.UNLIKE, what=f"{list(sizes)}, {list(shape)}")
        if any(b < 0 or b + n > most for b, n, most in zip(piece.begin, sizes, shape, strict=True)):
            return error(OpeningCode.BEYOND, file=str(piece.file), begin=str(list(piece.begin)), shape=str(list(shape)))
    if len(pieces) == 1 and pieces[0].source.shape == shape:
        return None
    found = sum(math.prod(piece.source.shape) for piece in pieces)
    filled = [piece for piece in pieces if 0 not in piece.source.shape]
    if (pair := _overlapping(filled)) is not None:
        return error(OpeningCode.OVERLAP, first=_place(pair[0]), second=_place(pair[1]))
    if found != math.prod(shape):
        return error(OpeningCode.GAP, found=found, total=math.prod(shape))
    return None


def _overlapping(pieces: Sequence[Piece]) -> tuple[Piece, Piece] | None:
    if len(pieces) < 2 or not pieces[0].begin:
        return (pieces[0], pieces[1]) if len(pieces) > 1 else None
    begin = np.array([piece.begin for piece in pieces], np.int64)
    end = begin + np.array([piece.source.shape for piece in pieces], np.int64)
    cut = [
        dim for dim in range(begin.shape[1]) if len({*begin[:, dim].tolist()}) > 1 or len({*end[:, dim].tolist()}) > 1
    ]
    if len(cut) == 1:
        order = np.argsort(begin[:, cut[0]], kind="stable")
        wrong = np.nonzero(begin[order[1:], cut[0]] < end[order[:-1], cut[0]])[0]
        return (pieces[int(order[wrong[0]])], pieces[int(order[wrong[0] + 1])]) if wrong.size else None
    if len(pieces) <= _MOST_COMPARED:
        for i in range(len(pieces) - 1):
            both = np.all((begin[i + 1 :] < end[i]) & (end[i + 1 :] > begin[i]), axis=1)
            if both.any():
                return pieces[i], pieces[i + 1 + int(np.argmax(both))]
    return None


def _place(piece: Piece) -> str:
    return f"{list(piece.begin)} + {list(piece.source.shape)} ({piece.rank or piece.file.name})"
