"""Parts of logical tensors: read in bounded memory from any place, and put together to other logical tensors.

A box is a contiguous range of indices along each dimension. Whatever pieces a tensor is stored in, a box of it is read
from the pieces that it overlaps, so that layouts which cut, join or reorder rows are nothing but other lists of pieces.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msprobe_core.checkpoint.contents import LogicalTensor, Piece
from msprobe_core.errors import DumpError
from msprobe_core.protocols.storage import TensorSource
from msprobe_core.store.joined_tensor import JoinedTensor
from msprobe_core.store.tensor_source import HeldTensor, StoredTensor, chunk_ranges, read_whole
from msprobe_core.store.tensor_values import widen

Array: TypeAlias = NDArray[Any]

CHUNK_BYTES = 4 << 20
"""Stored bytes that are read at a time."""

Corner: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """A contiguous range of indices along each dimension.

    Attributes:
        begin: First index along each dimension.
        sizes: Number of indices along each.
    """

    begin: Corner
    sizes: Corner


def boxes_of(shape: Sequence[int], max_elements: int) -> Iterator[tuple[Box, int]]:
    """Yield a tensor's boxes of at most ``max_elements`` in C order, each with the flat index of its first element.

    The elements of each box are consecutive in C order, so the boxes are too.
    """
    flat = 0
    for begin, sizes in chunk_ranges(shape, max_elements):
        yield Box(begin, sizes), flat
        flat += math.prod(sizes)


def read_box(tensor: LogicalTensor, box: Box) -> Array:
    """Return the elements of a box as they are stored, in its sizes; bfloat16 and float8 as their codes.

    Raises:
        DumpError: they cannot be read.
    """
    found: Array | None = None
    for piece in tensor.pieces:
        overlap = _overlap(piece, box)
        if overlap is None:
            continue
        own = Box(tuple(a - b for a, b in zip(overlap.begin, piece.begin, strict=True)), overlap.sizes)
        values = _codes(part_of(piece.source, own))
        if overlap == box:
            return np.reshape(values, box.sizes)
        if found is None:
            found = np.zeros(box.sizes, values.dtype)
        place = tuple(
            slice(begin - start, begin - start + size)
            for begin, start, size in zip(overlap.begin, box.begin, overlap.sizes, strict=True)
        )
        found[place] = np.reshape(values, overlap.sizes)
    return np.zeros(box.sizes) if found is None else found


def read_values(tensor: LogicalTensor, box: Box) -> Array:
    """Return the elements of a box; bfloat16 and float8 as float32.

    Raises:
        DumpError: they cannot be read.
    """
    return values_of(read_box(tensor, box), tensor.dtype)


def read_tensor(tensor: LogicalTensor) -> Array:
    """Return all elements of a tensor in its shape; for tensors that fit into memory.

    Raises:
        DumpError: it is damaged, or cannot be read.
    """
    if tensor.damage is not None:
        raise DumpError(f"{tensor.name}: {tensor.damage}")
    return read_values(tensor, whole_box(tensor.shape))


def values_of(codes: Array, dtype: str) -> Array:
    """Return what `read_box` returned as numbers."""
    return codes if codes.dtype.kind == "f" else widen(codes, dtype)


def whole_box(shape: Sequence[int]) -> Box:
    """Return the box that is the whole tensor."""
    return Box((0,) * len(shape), tuple(shape))


def part_of(source: TensorSource, box: Box) -> TensorSource:
    """Return a box of a source as a source; nothing is read of a file."""
    if box.sizes == tuple(source.shape):
        return source
    if isinstance(source, StoredTensor):
        offset = source.offset + sum(i * stride for i, stride in zip(box.begin, source.strides, strict=True))
        # A checksum is that of the whole storage, which would be read for each box.
        storage = replace(source.storage, crc=None)
        return replace(source, shape=box.sizes, offset=offset, storage=storage)
    if isinstance(source, _Part):
        begin = tuple(a + b for a, b in zip(source.box.begin, box.begin, strict=True))
        return _Part(source.source, Box(begin, box.sizes))
    return _Part(source, box)


@dataclass(frozen=True)
class _Part:
    """A box of a source that is not one range of bytes; it is read when its elements are needed."""

    source: TensorSource
    box: Box

    @property
    def shape(self) -> Corner:
        """Its sizes."""
        return self.box.sizes

    @property
    def dtype(self) -> str:
        """Dtype of the source."""
        return self.source.dtype

    def chunks(self, num_elements: int) -> Iterator[Array]:
        """Yield the elements in C order as vectors of at most ``num_elements``."""
        yield from HeldTensor(self._values(), self.dtype).chunks(num_elements)

    def _values(self) -> Array:
        if isinstance(self.source, JoinedTensor) and (begin := self._first_of_run()) is not None:
            found = list(_run_of(self.source, begin, math.prod(self.box.sizes)))
            return np.concatenate(found) if found else np.empty(0, np.float32)
        place = tuple(slice(begin, begin + size) for begin, size in zip(self.box.begin, self.box.sizes, strict=True))
        return read_whole(self.source)[place]

    def _first_of_run(self) -> int | None:
        """Return the flat index of the first element if all follow one another in the source, else ``None``."""
        whole = tuple(self.source.shape)
        cut = next((dim for dim, size in enumerate(self.box.sizes) if size > 1), len(whole))
        if self.box.sizes[cut + 1 :] != whole[cut + 1 :]:
            return None
        strides = [math.prod(whole[dim + 1 :]) for dim in range(len(whole))]
        return sum(i * stride for i, stride in zip(self.box.begin, strides, strict=True))


def _run_of(joined: JoinedTensor, begin: int, count: int) -> Iterator[Array]:
    """Yield consecutive elements from the parts that have them."""
    first = 0
    for part in joined.parts:
        low, high = max(begin, first), min(begin + count, first + part.numel)
        if low < high:
            flat = replace(part, shape=(part.numel,), strides=(1,)) if len(part.shape) != 1 else part
            yield np.ravel(read_whole(part_of(flat, Box((low - first,), (high - low,)))))
        first += part.numel


def rows_of(
    tensor: LogicalTensor, ranges: Sequence[tuple[int, int]], name: str, rule: str, dim: int = 0
) -> LogicalTensor:
    """Return some rows of a tensor, one range after the other, as a tensor; nothing is read.

    Args:
        tensor: The tensor.
        ranges: First and last but one row of each range, along ``dim``.
        name: Name of the result.
        rule: How it is made, for people.
        dim: The dimension that is cut.
    """
    pieces: list[Piece] = []
    begin = 0
    for first, last in ranges:
        for piece in tensor.pieces:
            start, size = piece.begin[dim], piece.source.shape[dim]
            low, high = max(first, start), min(last, start + size)
            if low >= high:
                continue
            own = Box(
                tuple(low - start if d == dim else 0 for d in range(len(tensor.shape))),
                tuple(high - low if d == dim else n for d, n in enumerate(piece.source.shape)),
            )
            place = tuple(begin + low - first if d == dim else n for d, n in enumerate(piece.begin))
            pieces.append(replace(piece, source=part_of(piece.source, own), begin=place))
        begin += last - first
    shape = tuple(begin if d == dim else n for d, n in enumerate(tensor.shape))
    return replace(tensor, name=name, shape=shape, pieces=pieces, rule=rule or tensor.rule, replicas=())


def stacked(tensors: Sequence[LogicalTensor], name: str, rule: str) -> LogicalTensor:
    """Return tensors that are equal but for their number of rows, one below the other, as one tensor."""
    pieces: list[Piece] = []
    begin = 0
    for tensor in tensors:
        pieces += [replace(p, begin=(p.begin[0] + begin, *p.begin[1:])) for p in tensor.pieces]
        begin += tensor.shape[0]
    first = tensors[0]
    return replace(first, name=name, shape=(begin, *first.shape[1:]), pieces=pieces, rule=rule, replicas=())


def _overlap(piece: Piece, box: Box) -> Box | None:
    begin = tuple(map(max, piece.begin, box.begin))
    ends = [
        min(p + n, b + m)
        for p, n, b, m in zip(piece.begin, piece.source.shape, box.begin, box.sizes, strict=True)
    ]  # fmt: skip
    sizes = tuple(end - first for first, end in zip(begin, ends, strict=True))
    return None if any(size <= 0 for size in sizes) else Box(begin, sizes)


def _codes(source: TensorSource) -> Array:
    if isinstance(source, StoredTensor) and not (source.is_negated or source.is_conjugated):
        content: Any = source.content()
        codes: Array = np.frombuffer(content.data, source.stored)
        return codes if source.stored.isnative else codes.astype(source.stored.newbyteorder("="))
    values = np.ravel(read_whole(source))
    if source.dtype == "bfloat16" and values.dtype == np.float32:
        stored: Any = values
        bits = stored.view(np.uint32) >> np.uint32(16)  # widened, so that the rest is zero
        return bits.astype(np.uint16)
    return values
