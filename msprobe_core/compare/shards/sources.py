"""Tensors that are views of others, or assembled from several, read in pieces of bounded size.

A tensor in a file is narrowed and permuted by its strides, so that only the requested elements are read. Any other
source is read sequentially for each requested block, or copied, to a file if it is large.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from msprobe_core.compare.shards.assembly import Array, Assembly, Block
from msprobe_core.errors import DamagedDumpError, DumpError
from msprobe_core.protocols.storage import TensorSource
from msprobe_core.store.tensor_source import StoredTensor, c_strides, chunk_ranges

CHUNK = 1 << 20
"""Default number of elements that are read at a time."""

_MIN_READ = 1 << 14
"""Minimum number of elements that are read from one block at a time."""

_SPOOL_BYTES = 64 << 20
"""Largest copy of a tensor, in bytes, that is kept in memory; larger ones go to a temporary file."""


@dataclass(frozen=True)
class Assembled:
    """A tensor assembled from parts; see `msprobe_core.plugin.TensorSource`.

    Attributes:
        assembly: The assembly.
        open_part: Returns the source of a part, by its number.
        given_dtype: Stored dtype of all parts.
    """

    assembly: Assembly
    open_part: Callable[[int], TensorSource]
    given_dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole."""
        return self.assembly.shape

    @property
    def dtype(self) -> str:
        """Dtype of the parts."""
        return self.given_dtype

    def chunks(self, num_elements: int) -> Iterator[Array]:
        """Yield the elements in C order; sums are kept in float64.

        Raises:
            DumpError: a part cannot be read, or its shape does not match its record.
        """
        pieces = [piece for piece in self.assembly.pieces if piece.numel]
        if not pieces:
            yield np.empty(0, np.float32)
            return
        sources = {piece.part: self._checked(piece.part, piece.sizes) for piece in pieces}
        blocks = [(block, piece.term, sources[piece.part], piece.sizes) for piece in pieces for block in piece.blocks]
        size = max(_MIN_READ, num_elements // len(blocks))
        readers = [
            (block, term, Reader(_block_of(source, block, sizes), size)) for block, term, source, sizes in blocks
        ]
        dtype = np.result_type(*(reader.dtype for _, _, reader in readers))
        if self.assembly.reduction is not None:
            dtype = np.result_type(dtype, np.int64 if dtype.kind in "iub" else np.float64)
        for begin, sizes in chunk_ranges(self.shape, num_elements):
            yield self._slab(begin, sizes, readers, dtype)

    def _checked(self, part: int, sizes: tuple[int, ...]) -> TensorSource:
        source = self.open_part(part)
        if math.prod(source.shape) != math.prod(sizes):
            raise DumpError(f"a part of the shape {list(sizes)} is stored with the shape {list(source.shape)}")
        return source

    def _slab(
        self, begin: tuple[int, ...], sizes: tuple[int, ...], readers: Sequence[tuple[Block, int, Reader]], dtype: Any
    ) -> Array:
        terms: dict[int, Array] = {}
        for block, term, reader in readers:
            inside = overlap(begin, sizes, block)
            if inside is not None:
                slab = terms.setdefault(term, np.zeros(sizes, dtype))
                slab[inside] = reader.take(tuple(part.stop - part.start for part in inside))
        values = list(terms.values())
        with np.errstate(invalid="ignore", over="ignore"):
            return np.reshape(_REDUCE[self.assembly.reduction](values), -1)


def _mean(values: Sequence[Array]) -> Array:
    return sum(values[1:], values[0]) / len(values)


_REDUCE: Mapping[str | None, Callable[[Sequence[Array]], Array]] = {
    None: lambda values: values[0],
    "sum": lambda values: sum(values[1:], values[0]),
    "avg": _mean,
    "max": lambda values: np.max(values, axis=0),
    "min": lambda values: np.min(values, axis=0),
    "product": lambda values: np.prod(values, axis=0),
}


def overlap(begin: tuple[int, ...], sizes: tuple[int, ...], block: Block) -> tuple[slice, ...] | None:
    """Return the position of a block inside a slab; ``None`` if they are disjoint."""
    inside: list[slice] = []
    for start, size, first, length in zip(begin, sizes, block.whole, block.sizes, strict=True):
        low, high = max(start, first) - start, min(start + size, first + length) - start
        if low >= high:
            return None
        inside.append(slice(low, high))
    return tuple(inside)


class Reader:
    """Reads the elements of a source sequentially."""

    def __init__(self, source: TensorSource, num_elements: int) -> None:
        self._chunks: Iterator[Array] = source.chunks(num_elements)
        self._rest: Array = next(self._chunks, np.empty(0, np.float32))
        self._end: Array = np.empty(0, np.float32)
        self.dtype: Any = self._rest.dtype

    def take(self, sizes: tuple[int, ...]) -> Array:
        """Return the next elements as an array of this shape."""
        wanted = math.prod(sizes)
        taken: list[Array] = []
        while wanted:
            if not self._rest.size:
                self._rest = next(self._chunks, self._end)
                if self._rest is self._end:
                    raise DamagedDumpError("a part has fewer elements than its record says")
            taken.append(self._rest[:wanted])
            self._rest = self._rest[wanted:]
            wanted -= taken[-1].size
        return np.reshape(taken[0] if len(taken) == 1 else np.concatenate(taken), sizes)


# --- views ----------------------------------------------------------------------------------------------------------


def _block_of(source: TensorSource, block: Block, sizes: tuple[int, ...]) -> TensorSource:
    if block.sizes == sizes:
        return source
    return narrowed(reshaped(source, sizes), block.begin, block.sizes)


def narrowed(source: TensorSource, begin: tuple[int, ...], sizes: tuple[int, ...]) -> TensorSource:
    """Return a block of a tensor."""
    if sizes == source.shape:
        return source
    if isinstance(source, StoredTensor):
        offset = source.offset + sum(start * stride for start, stride in zip(begin, source.strides, strict=True))
        return replace(source, shape=sizes, offset=offset)
    return _Narrowed(source, begin, sizes)


def permuted(source: TensorSource, dims: tuple[int, ...]) -> TensorSource:
    """Return a tensor with its dimensions in another order: dimension ``i`` is the source's ``dims[i]``."""
    if dims == tuple(range(len(dims))):
        return source
    if isinstance(source, StoredTensor):
        shape, strides = (tuple(old[dim] for dim in dims) for old in (source.shape, source.strides))
        return replace(source, shape=shape, strides=strides)
    return _Permuted(source, dims)


def reshaped(source: TensorSource, shape: tuple[int, ...]) -> TensorSource:
    """Return the elements of a tensor, in the same order, with another shape."""
    if shape == source.shape:
        return source
    if isinstance(source, StoredTensor) and source.is_contiguous:
        return replace(source, shape=shape, strides=c_strides(shape))
    return _Reshaped(source, shape)


@dataclass(frozen=True)
class _Reshaped:
    source: TensorSource
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        return self.source.dtype

    def chunks(self, num_elements: int) -> Iterator[Array]:
        return self.source.chunks(num_elements)


@dataclass(frozen=True)
class _Narrowed:
    source: TensorSource
    begin: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        return self.source.dtype

    def chunks(self, num_elements: int) -> Iterator[Array]:
        reader = Reader(self.source, num_elements)
        block = Block((), self.begin, self.shape)
        if 0 in self.shape:
            yield np.empty(0, reader.dtype)
        for begin, sizes in chunk_ranges(self.source.shape, num_elements):
            values = reader.take(sizes)
            inside = overlap(begin, sizes, block)
            if inside is not None:
                yield np.reshape(values[inside], -1)


@dataclass(frozen=True)
class _Permuted:
    source: TensorSource
    dims: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.source.shape[dim] for dim in self.dims)

    @property
    def dtype(self) -> str:
        return self.source.dtype

    def chunks(self, num_elements: int) -> Iterator[Array]:
        reader = Reader(self.source, max(num_elements, _MIN_READ))
        num_bytes = math.prod(self.source.shape) * reader.dtype.itemsize
        if not num_bytes:
            yield np.empty(0, reader.dtype)
            return
        if num_bytes <= _SPOOL_BYTES:
            yield from self._from(reader, np.empty(self.source.shape, reader.dtype), num_elements)
            return
        try:
            with tempfile.TemporaryFile() as file:
                copy: Array = np.memmap(file, reader.dtype, "w+", shape=self.source.shape)
                yield from self._from(reader, copy, num_elements)
        except OSError as error:
            raise DumpError(
                f"a copy of {num_bytes} bytes, to read a tensor in another order, cannot be written to "
                f"{tempfile.gettempdir()} ({error.strerror or error}); set TMPDIR to a directory with room"
            ) from error

    def _from(self, reader: Reader, copy: Array, num_elements: int) -> Iterator[Array]:
        for begin, sizes in chunk_ranges(self.source.shape, max(num_elements, _MIN_READ)):
            copy[tuple(slice(b, b + s) for b, s in zip(begin, sizes, strict=True))] = reader.take(sizes)
        view = copy.transpose(self.dims)
        for begin, sizes in chunk_ranges(self.shape, num_elements):
            block = view[tuple(slice(b, b + s) for b, s in zip(begin, sizes, strict=True))]
            yield cast("Any", np.array(block)).reshape(-1)
