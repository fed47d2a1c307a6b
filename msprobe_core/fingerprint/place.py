"""The position of a block's elements in the whole tensor, and iteration over them in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from msprobe_core.fingerprint.arrays import Arrays


@dataclass(frozen=True)
class Place:
    """The position of a block, for example of a shard, in a tensor.

    Indices count the tensor's elements in row-major order; the memory layouts of block and tensor do not matter.

    Attributes:
        offset: Index of the block's first element.
        strides: Increment of the index along each dimension of the block.
    """

    offset: int
    strides: tuple[int, ...]

    @classmethod
    def of_whole(cls, shape: Sequence[int], offset: int = 0) -> Place:
        """Return the place of a block with consecutive elements: a whole tensor, or a part of a flat one.

        Args:
            shape: Sizes of the block.
            offset: Index of its first element.
        """
        strides = [1] * len(shape)
        for dim in reversed(range(len(shape) - 1)):
            strides[dim] = strides[dim + 1] * shape[dim + 1]
        return cls(offset, tuple(strides))

    @classmethod
    def of_shard(cls, whole: Sequence[int], begin: Sequence[int]) -> Place:
        """Return the place of a block cut out of a tensor along any number of dimensions.

        Args:
            whole: Sizes of the tensor.
            begin: Coordinates of the block's first element.
        """
        strides = cls.of_whole(whole).strides
        return cls(sum(start * stride for start, stride in zip(begin, strides, strict=True)), strides)

    def of_parts(self, num_parts: int) -> Place:
        """Return the place after splitting each element into ``num_parts`` along a new last dimension."""
        return Place(self.offset * num_parts, (*(stride * num_parts for stride in self.strides), 1))

    def moved(self, steps: int) -> Place:
        """Return the place of the part of the block that starts at index ``steps`` of its first dimension."""
        return Place(self.offset + steps * self.strides[0], self.strides)

    def inner(self) -> Place:
        """Return the place of the block's first slice along its first dimension."""
        return Place(self.offset, self.strides[1:])

    def without_single(self, shape: Sequence[int]) -> Place:
        """Return the place after removing the dimensions of size 1 from a block of ``shape``."""
        return Place(self.offset, tuple(s for s, size in zip(self.strides, shape, strict=True) if size != 1))


def squeezed(values: Any, place: Place) -> tuple[Any, Place]:
    """Return block and place without dimensions of size 1.

    Raises:
        ValueError: block and place have different numbers of dimensions.
    """
    if len(place.strides) != values.ndim:
        raise ValueError(f"a block of {values.ndim} dimensions cannot have a place of {len(place.strides)}")
    shape = tuple(values.shape)
    return values.reshape([size for size in shape if size != 1]), place.without_single(shape)


def is_run(values: Any, place: Place) -> bool:
    """Whether the elements of a squeezed block are consecutive in the whole tensor."""
    return place.strides == Place.of_whole(values.shape).strides


def runs_of(values: Any, offset: int, limit: int) -> Iterator[tuple[Any, int]]:
    """Yield a block of consecutive elements as vectors, each with the index of its first element.

    Vectors end where the index is a multiple of ``limit``, so they are the same for any memory layout.
    """
    size, begin = math.prod(values.shape), 0
    while begin < size:
        end = min(size, begin + limit - (offset + begin) % limit)
        yield _between(values, begin, end), offset + begin
        begin = end


def _between(values: Any, begin: int, end: int) -> Any:
    """Return a range of elements as a vector; of a non-contiguous tensor only the enclosing slices are copied."""
    while values.ndim > 1:
        inner = math.prod(values.shape[1:])
        first, last = begin // inner, -(-end // inner)
        begin, end = begin - first * inner, end - first * inner
        if last - first > 1:
            values = values[first:last]
            break
        values = values[first]
    return values.reshape(-1)[begin:end]


def pieces_of(values: Any, place: Place, limit: int) -> Iterator[tuple[Any, Place]]:
    """Yield a squeezed block in parts of at most ``limit`` elements, each with its place."""
    size = math.prod(values.shape)
    if size <= limit:
        if size:
            yield values, place
        return
    inner = size // values.shape[0]
    step = max(1, limit // inner)
    for i in range(0, values.shape[0], step):
        if inner > limit:
            yield from pieces_of(values[i], place.moved(i).inner(), limit)
        else:
            yield values[i : i + step], place.moved(i)


def spread_of(values: Any, place: Place, limit: int, arrays: Arrays) -> Iterator[tuple[Any, int]]:
    """Yield a squeezed block as vectors, zeros in place of other blocks' elements, with their first indices.

    Raises:
        ValueError: the block's slices along a dimension overlap, or are not in the order of their indices.
    """
    if values.ndim < 2 or is_run(values, place):
        stride = place.strides[0] if values.ndim == 1 else 1
        if stride == 1:
            yield from runs_of(values, place.offset, limit)
            return
    step = limit // place.strides[0]
    for i in range(0, values.shape[0], max(1, step)):
        if step:
            part = arrays.floats(values[i : i + step])
            yield _with_zeros(part, place.strides, arrays), place.offset + i * place.strides[0]
        else:
            yield from spread_of(values[i], place.moved(i).inner(), limit, arrays)


def _with_zeros(values: Any, strides: Sequence[int], arrays: Arrays) -> Any:
    vector = values.reshape(*values.shape, 1)
    for stride in reversed(strides):
        *outer, width = vector.shape
        if width > stride:
            raise ValueError(f"the strides {tuple(strides)} of the block's place do not hold its shape {values.shape}")
        if width < stride:
            padded = arrays.zeros(*outer, stride)
            padded[..., :width] = vector
            vector = padded
        vector = vector.reshape(*outer[:-1], outer[-1] * stride)
    return vector
