"""Determine how much memory the messages of an Arrow stream need, from their metadata, before a library unpacks them.

Compressed buffers begin with their uncompressed length, and libraries allocate that much. The metadata are FlatBuffers,
of which only the few fields that lead to the buffers are read here.

Sources: Apache Arrow 24, *Arrow Columnar Format*, section Serialization and Interprocess Communication,
``Message.fbs``; *FlatBuffers internals*.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from msprobe_core.untrusted.malformed import MalformedError

_UINT16, _INT32, _UINT32, _INT64 = (struct.Struct(code) for code in ("<H", "<i", "<I", "<q"))
_BUFFER = np.dtype([("offset", "<i8"), ("length", "<i8")])
_PREFIX_BYTES = 8
_AS_IT_IS = -1
"""Marker instead of a length: the buffer is not compressed."""

_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3


class Unpacked(NamedTuple):
    """Size of an uncompressed message."""

    num_bytes: int
    num_rows: int


def unpacked(description: memoryview, body: memoryview) -> Unpacked:
    """Return the uncompressed size of a message's buffers in bytes, and its number of rows or distinct texts.

    Args:
        description: Metadata of the message, a FlatBuffer.
        body: The message's buffers.

    Raises:
        MalformedError: an offset in the metadata points outside of the metadata or the body.
    """
    try:
        return _unpacked(description, body)
    except (struct.error, ValueError, IndexError) as error:
        raise MalformedError("a message lacks valid offsets of its values") from error


def _unpacked(description: memoryview, body: memoryview) -> Unpacked:
    message = _Table(description, _UINT32.unpack_from(description)[0])
    kind = message.byte(1)
    if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return Unpacked(0, 0)
    batch = message.table(2)
    if batch is not None and kind == _DICTIONARY_BATCH:
        batch = batch.table(1)
    if batch is None:
        raise ValueError
    num_rows = batch.integer(0)
    buffers = batch.structs(2, _BUFFER)
    if num_rows < 0:
        raise ValueError
    if batch.table(3) is None:
        return Unpacked(sum(max(0, length) for length in buffers["length"].tolist()), num_rows)
    total = 0
    for offset, length in buffers.tolist():
        if length < _PREFIX_BYTES:
            continue
        if offset < 0 or offset + length > len(body):
            raise ValueError
        (own,) = _INT64.unpack_from(body, offset)
        if own < _AS_IT_IS:
            raise ValueError
        total += length if own == _AS_IT_IS else own
    return Unpacked(total, num_rows)


class _Table:
    """A table of a FlatBuffer; a second table before it has the offsets of its fields."""

    def __init__(self, content: memoryview, position: int) -> None:
        if position < 0:
            raise ValueError
        self._content = content
        self._position = position
        self._fields = position - _INT32.unpack_from(content, position)[0]
        if self._fields < 0:
            raise ValueError
        self._size: int = _UINT16.unpack_from(content, self._fields)[0]

    def byte(self, number: int) -> int:
        """Return a field of one byte; 0 if it is missing."""
        place = self._place(number)
        return 0 if place is None else self._content[place]

    def integer(self, number: int) -> int:
        """Return a field of eight bytes; 0 if it is missing."""
        place = self._place(number)
        return 0 if place is None else _INT64.unpack_from(self._content, place)[0]

    def table(self, number: int) -> _Table | None:
        """Return a field that is a table; ``None`` if it is missing."""
        place = self._place(number)
        return None if place is None else _Table(self._content, place + _UINT32.unpack_from(self._content, place)[0])

    def structs(self, number: int, dtype: np.dtype[np.void]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        """Return a field that is a list of structs of one size; empty if it is missing."""
        place = self._place(number)
        if place is None:
            return np.empty(0, dtype)
        begin = place + _UINT32.unpack_from(self._content, place)[0]
        (count,) = _UINT32.unpack_from(self._content, begin)
        return np.frombuffer(self._content, dtype, count, begin + _UINT32.size)

    def _place(self, number: int) -> int | None:
        entry = _UINT16.size * (2 + number)
        if entry >= self._size:
            return None
        offset = _UINT16.unpack_from(self._content, self._fields + entry)[0]
        return self._position + offset if offset else None
