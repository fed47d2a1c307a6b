"""How much the messages of an Arrow stream unfold to, told from their descriptions before any library unpacks them.

Compressed buffers begin with their length once they are unpacked, and libraries allocate what stands there. The
descriptions are FlatBuffers, of which the few fields that lead to the buffers are looked up here.
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
"""In the place of a length: the buffer was not worth packing."""

_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3


class Unpacked(NamedTuple):
    """What a message is once it is unpacked."""

    num_bytes: int
    num_rows: int


def unpacked(description: memoryview, body: memoryview) -> Unpacked:
    """Return how many bytes the buffers of a message have once they are unpacked, and its rows or distinct texts.

    Args:
        description: Of the message, a FlatBuffer.
        body: The message's buffers.

    Raises:
        MalformedError: the description leads out of itself or of the body.
    """
    try:
        return _unpacked(description, body)
    except (struct.error, ValueError, IndexError) as error:
        raise MalformedError("a message does not say where its values lie") from error


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
    """A table of a FlatBuffer: where each of its fields lies stands in another table, before it."""

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
        """Return a field of one byte; 0 if it is not there."""
        place = self._place(number)
        return 0 if place is None else self._content[place]

    def integer(self, number: int) -> int:
        """Return a field of eight bytes; 0 if it is not there."""
        place = self._place(number)
        return 0 if place is None else _INT64.unpack_from(self._content, place)[0]

    def table(self, number: int) -> _Table | None:
        """Return a field that is a table; ``None`` if it is not there."""
        place = self._place(number)
        return None if place is None else _Table(self._content, place + _UINT32.unpack_from(self._content, place)[0])

    def structs(self, number: int, dtype: np.dtype[np.void]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        """Return a field that is a list of structs of one size; no structs if it is not there."""
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
