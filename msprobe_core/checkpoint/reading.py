"""Read logical tensors, in the order of the whole and in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msprobe_core.checkpoint.contents import LogicalTensor, Piece
from msprobe_core.compare.shards.assembly import Assembly, Block
from msprobe_core.compare.shards.assembly import Piece as Part
from msprobe_core.compare.shards.sources import Assembled
from msprobe_core.errors import DumpError
from msprobe_core.protocols.storage import TensorSource
from msprobe_core.store.tensor_source import read_whole

Array: TypeAlias = NDArray[Any]


def source_of(tensor: LogicalTensor) -> TensorSource:
    """Return a source of all elements of a logical tensor.

    Raises:
        DumpError: it is damaged.
    """
    if tensor.damage is not None:
        raise DumpError(f"{tensor.name}: {tensor.damage}")
    pieces = [piece for piece in tensor.pieces if 0 not in piece.source.shape]
    if len(pieces) == 1 and pieces[0].source.shape == tensor.shape:
        return pieces[0].source
    if all(piece.source.shape[1:] == tensor.shape[1:] for piece in pieces):
        return _InRows(sorted(pieces, key=lambda piece: piece.begin), tensor.shape, tensor.dtype)
    parts = tuple(_part(i, piece) for i, piece in enumerate(pieces))
    return Assembled(Assembly(tensor.shape, parts), lambda part: pieces[part].source, tensor.dtype)


def read_logical(tensor: LogicalTensor) -> Array:
    """Return all elements of a logical tensor in its shape; bfloat16 and float8 as float32.

    Raises:
        DumpError: it is damaged, or cannot be read.
    """
    return read_whole(source_of(tensor))


def _part(number: int, piece: Piece) -> Part:
    sizes = piece.source.shape
    return Part(number, (), (Block((0,) * len(sizes), piece.begin, sizes),), sizes)


class _InRows:
    """Pieces that follow one another in the first dimension, read one after the other: one file is open at a time."""

    def __init__(self, pieces: Sequence[Piece], shape: tuple[int, ...], dtype: str) -> None:
        self._pieces = pieces
        self.shape = shape
        self.dtype = dtype

    def chunks(self, num_elements: int) -> Iterator[Array]:
        """Yield the elements in C order as vectors of at most ``num_elements``."""
        for piece in self._pieces:
            yield from piece.source.chunks(num_elements)
        if not math.prod(self.shape):
            yield np.empty(0, np.float32)
