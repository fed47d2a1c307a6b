"""Tensors in files, read on demand in blocks of bounded size.

Files are read, not mapped into memory: a file that is truncated meanwhile is an error that can be reported, instead of
a crash.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msprobe_core.errors import DamagedDumpError, DumpError, LargeDumpError
from msprobe_core.fingerprint.checksums import crc32
from msprobe_core.model import TensorContent
from msprobe_core.protocols.storage import TensorSource
from msprobe_core.store.tensor_values import widen
from msprobe_core.untrusted.files import most_unfolded, open_plain, reading

Array: TypeAlias = NDArray[Any]

MAX_TENSOR_BYTES = 64 << 30
"""Largest tensor that is expanded from its file.

A tensor with strides of 0 may describe any size, so `most_unfolded` of its storage limits it too.
"""

_READ_BYTES = 1 << 20
_GATHER_BYTES = 16 << 20
"""Views that are not stored in C order are collected in blocks of this size; up to twice as much is read for one."""

_MIN_DENSITY = 1 / 8
"""Minimum share of useful bytes among those read for a block; below it, smaller blocks are read."""

_PAGE_BYTES = 4096
MAX_DIMS = 32
"""The maximum of NumPy 1."""

_MAX_ITEM_BYTES = 16
"""Maximum size of a number. Texts are longer, so fewer are read at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """A range of bytes in a file.

    Attributes:
        file: The file to open.
        begin: Start of the range.
        num_bytes: Its length; it ends within the file, by the file's size when it was opened.
        crc: CRC-32 of the range; ``None`` if it was not recorded.
    """

    file: Path
    begin: int
    num_bytes: int
    crc: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor in a file; see `msprobe_core.plugin.TensorSource`. A view beyond its storage is rejected at creation.

    Attributes:
        name: Name in messages: the file's path and, in a shard, the key.
        storage: The bytes that the tensor is a view of.
        stored: NumPy's dtype for the stored bytes.
        dtype: The actual dtype.
        shape: Shape of the tensor.
        strides: In elements, none negative.
        offset: Index of the first element, in elements.
        is_negated: Whether the values are those stored with the opposite sign.
        is_conjugated: Whether the imaginary parts are those stored with the opposite sign.
    """

    name: Path | str
    storage: Storage
    stored: Any  # np.dtype, most of whose members have no types
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    is_negated: bool = False
    is_conjugated: bool = False

    def __post_init__(self) -> None:
        shape, strides = self.shape, self.strides
        if len(shape) != len(strides) or len(shape) > MAX_DIMS or min((*shape, *strides, self.offset)) < 0:
            raise DumpError(f"{self.name}: describes a tensor with impossible sizes or strides")
        num_bytes, item_bytes, is_empty = self.storage.num_bytes, self.stored.itemsize, 0 in shape
        if not is_empty and (self.offset + _extent_of(shape, strides)) * item_bytes > num_bytes:
            raise DamagedDumpError(
                f"{self.name}: describes a tensor larger than its {num_bytes} bytes; the file is damaged"
            )
        # Other sizes count even if one is 0: NumPy cannot create an array of such a shape either.
        unfolded = item_bytes
        for size in shape:
            unfolded *= size or 1
        if unfolded > MAX_TENSOR_BYTES or (not is_empty and unfolded > most_unfolded(num_bytes)):
            raise LargeDumpError(f"{self.name}: describes a tensor of the shape {shape}, which is too large to unfold")

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements, before they are widened."""
        return self.numel * self.stored.itemsize

    def chunks(self, num_elements: int) -> Iterator[Array]:
        """Yield the elements in C order as vectors of at most ``num_elements``; at least one vector, maybe empty.

        The caller owns each vector. At most 8 bytes for each of ``num_elements`` are in memory at a time or, for a view
        that is not stored in C order, about 48 MiB more.

        Raises:
            DumpError: the file cannot be read, has become shorter, or its bytes do not match their checksum.
        """
        with reading(self.name), open_plain(self.storage.file) as file:
            for values in self._stored_chunks(file, num_elements):
                yield self._values_of(values)

    def read(self) -> Array:
        """Return the whole tensor.

        Raises:
            DumpError: as `chunks`, or it does not fit into memory.
        """
        try:
            whole: Array | None = None
            begin = 0
            for values in self.chunks(_READ_BYTES):
                if whole is None:
                    whole = np.empty(self.numel, values.dtype)
                whole[begin : begin + values.size] = values
                begin += values.size
        except MemoryError as error:
            raise LargeDumpError(f"{self.name}: does not fit into memory") from error
        assert whole is not None
        return np.reshape(whole, self.shape)

    def content(self) -> TensorContent:
        """Return the elements as stored, in C order; for a framework, which has dtypes that NumPy lacks.

        Raises:
            DumpError: as `read`; or the sign is a flag next to the bytes, and NumPy lacks the dtype.
        """
        has_sign = self.is_negated or self.is_conjugated
        if has_sign and self.stored.kind not in "fc":
            raise DumpError(f"{self.name}: says the sign of its {self.dtype} beside their bytes; save a copy of it")
        try:
            content: Any = np.empty(self.size_bytes, np.uint8)
            begin = 0
            with open_plain(self.storage.file) as file:
                if self.is_contiguous and not has_sign:
                    self._read_whole(file, content)
                    return TensorContent(self.dtype, self.shape, memoryview(content))
                for stored in self._stored_chunks(file, _READ_BYTES):
                    values = self._signed(stored) if has_sign else stored
                    content[begin : begin + values.nbytes] = _bytes_of(values)
                    begin += values.nbytes
        except OSError as error:
            raise DumpError(f"{self.name}: cannot be read ({error.strerror or error})") from error
        except MemoryError as error:
            raise LargeDumpError(f"{self.name}: does not fit into memory") from error
        return TensorContent(self.dtype, self.shape, memoryview(content))

    @property
    def is_contiguous(self) -> bool:
        """Whether its elements are contiguous in its storage."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def _stored_chunks(self, file: FileIO, num_elements: int) -> Iterator[Array]:
        num_elements = max(1, min(num_elements, num_elements * _MAX_ITEM_BYTES // self.stored.itemsize))
        if self.numel == 0:
            yield np.empty(0, self.stored)
        elif not self.is_contiguous:
            self._check_content(file)
            for block in self._gathered(file, max(num_elements, _GATHER_BYTES // self.stored.itemsize)):
                for begin in range(0, block.size, num_elements):
                    yield block[begin : begin + num_elements]
        elif self.size_bytes != self.storage.num_bytes:
            self._check_content(file)
            yield from self._runs(file, num_elements)
        else:
            crc = 0
            for values in self._runs(file, num_elements):
                crc = crc32(_bytes_of(values), crc)
                yield values
            self._check_crc(crc)

    def _read_whole(self, file: FileIO, content: Any) -> None:
        """Fill a vector of bytes with the elements of a contiguous tensor, and check them."""
        if not content.size:
            return
        is_whole = content.size == self.storage.num_bytes
        if not is_whole:
            self._check_content(file)
        self._read_into(file, self.offset, content)
        if is_whole and self.storage.crc is not None:
            self._check_crc(crc32(content))

    def _runs(self, file: FileIO, num_elements: int) -> Iterator[Array]:
        for begin in range(0, self.numel, num_elements):
            values = np.empty(min(num_elements, self.numel - begin), self.stored)
            self._read_into(file, self.offset + begin, values)
            yield values

    def _gathered(self, file: FileIO, num_elements: int) -> Iterator[Array]:
        """Yield the elements of a view in C order, in blocks that span part of one dimension and all later ones.

        Blocks have about ``num_elements``, or more if the last dimension alone has more.
        """
        for begin, sizes in chunk_ranges(self.shape, num_elements):
            start = self.offset + sum(i * stride for i, stride in zip(begin, self.strides, strict=True))
            block = np.empty(sizes, self.stored)
            self._collect(file, start, self.strides, block)
            yield np.reshape(block, -1)

    def _collect(self, file: FileIO, start: int, strides: tuple[int, ...], block: Array) -> None:
        """Fill ``block`` with the view of its shape that begins at the element ``start``."""
        extent = _extent_of(block.shape, strides)
        num_bytes = extent * self.stored.itemsize
        is_dense = num_bytes <= 2 * _GATHER_BYTES and block.size >= extent * _MIN_DENSITY
        if is_dense or num_bytes <= _PAGE_BYTES:
            values = np.empty(extent, self.stored)
            self._read_into(file, start, values)
            view_strides = [stride * self.stored.itemsize for stride in strides]
            block[...] = np.lib.stride_tricks.as_strided(values, block.shape, view_strides, writeable=False)
            return
        # The elements are sparse: halve the view along the axis where they are furthest apart.
        axis = max((i for i, size in enumerate(block.shape) if size > 1), key=lambda i: strides[i])
        half = block.shape[axis] // 2
        before: tuple[slice, ...] = (slice(None),) * axis
        self._collect(file, start, strides, block[(*before, slice(half))])
        self._collect(file, start + half * strides[axis], strides, block[(*before, slice(half, None))])

    def _read_into(self, file: FileIO, start: int, values: Array) -> None:
        file.seek(self.storage.begin + start * self.stored.itemsize)
        _read_fully(file, _bytes_of(values), self.name)

    def _check_content(self, file: FileIO) -> None:
        """Read the whole storage for its checksum; a view of a part of it would not show damage."""
        if self.storage.crc is None:
            return
        crc = 0
        file.seek(self.storage.begin)
        for begin in range(0, self.storage.num_bytes, _READ_BYTES):
            content = np.empty(min(_READ_BYTES, self.storage.num_bytes - begin), np.uint8)
            _read_fully(file, content, self.name)
            crc = crc32(content, crc)
        self._check_crc(crc)

    def _check_crc(self, crc: int) -> None:
        if self.storage.crc is not None and crc != self.storage.crc:
            raise DamagedDumpError(f"{self.name}: its bytes do not match the checksum beside them; the file is damaged")

    def _values_of(self, values: Array) -> Array:
        if not self.stored.isnative:
            values = values.astype(self.stored.newbyteorder("="))
        return self._signed(widen(values, self.dtype))

    def _signed(self, values: Array) -> Array:
        """Return values with the sign flags applied."""
        if self.is_negated:
            values = np.negative(values)
        return np.conjugate(values) if self.is_conjugated else values


class HeldTensor:
    """A tensor in memory; see `msprobe_core.plugin.TensorSource`."""

    def __init__(self, values: Any, dtype: str | None = None) -> None:
        """Use an array of numbers or text; ``dtype`` is its stored dtype, if it differs from the array's."""
        self._values: Array = values
        self.shape: tuple[int, ...] = values.shape
        self.dtype: str = dtype or ("text" if values.dtype.kind in "SU" else values.dtype.name)

    def chunks(self, num_elements: int) -> Iterator[Array]:
        """Yield the elements in C order as vectors of at most ``num_elements``."""
        flat = np.ravel(self._values)
        for begin in range(0, flat.size, num_elements):
            yield flat[begin : begin + num_elements]


def read_whole(source: TensorSource) -> Array:
    """Return all elements of a tensor, in its shape.

    Raises:
        DumpError: they cannot be read, or their number is not that of the shape.
    """
    parts = list(source.chunks(_READ_BYTES))
    found = sum(part.size for part in parts)
    if found != math.prod(source.shape):
        raise DumpError(f"a tensor of the shape {source.shape} has {found} elements")
    return np.reshape(np.concatenate(parts), source.shape) if parts else np.empty(source.shape)


def _bytes_of(values: Any) -> Any:
    return values.view(np.uint8)


def _extent_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return the number of elements from the first to the last of a non-empty view."""
    extent = 1
    for size, stride in zip(shape, strides, strict=True):
        extent += (size - 1) * stride
    return extent


def chunk_ranges(shape: Sequence[int], num_elements: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield begin and sizes of consecutive blocks in C order, each of at most ``num_elements`` elements."""
    if not shape:
        yield (), ()
        return
    if 0 in shape:
        return
    axis = next((i for i in range(len(shape)) if math.prod(shape[i + 1 :]) <= num_elements), len(shape) - 1)
    inner = tuple(shape[axis + 1 :])
    step = max(1, num_elements // math.prod(inner))
    for index in itertools.product(*map(range, shape[:axis])):
        for begin in range(0, shape[axis], step):
            size = min(step, shape[axis] - begin)
            yield (*index, begin, *[0] * len(inner)), (*[1] * axis, size, *inner)


def c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a tensor in C order, in elements."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _read_fully(file: FileIO, content: Any, name: Path | str) -> None:
    """Fill a vector of bytes from the current position of ``file``, a raw file.

    Raises:
        DumpError: the file ends before.
    """
    room = memoryview(content)
    while room:
        # A raw file returns at most 2 GiB at a time, and may return less.
        num_read = file.readinto(room)
        if not num_read:
            raise DamagedDumpError(f"{name}: is cut off: the file ends before the tensor")
        room = room[num_read:]
