"""Read the wire format of Protocol Buffers from files, without a schema and without reading what is not asked for.

A message is a sequence of fields: a key, which is a number and a wire type, and a value. Fields with a length, such as
texts, bytes and other messages, are returned as a place in the file, so a checkpoint of many gigabytes is listed by
reading a few bytes of each tensor.

Source: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import NamedTuple

from msprobe_core.untrusted.malformed import MalformedError

MAX_TEXT_BYTES = 1 << 16
"""Maximum length of a text."""

_VARINT_BYTES = 10
_BUFFER_BYTES = 1 << 12
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


class Span(NamedTuple):
    """A range of bytes in a file.

    Attributes:
        begin: Its start.
        end: Its end, not part of it.
    """

    begin: int
    end: int

    @property
    def num_bytes(self) -> int:
        """Its length."""
        return self.end - self.begin


class WireField(NamedTuple):
    """One field of a message.

    Attributes:
        number: Its number in the schema.
        value: An unsigned integer, as stored, for variable and fixed lengths; a place in the file otherwise.
    """

    number: int
    value: int | Span


class WireFile:
    """A file of messages.

    Small reads next to each other are answered from a buffer.
    """

    def __init__(self, file: io.RawIOBase) -> None:
        """Use an opened file, which can be sought and stays open.

        Raises:
            OSError: it cannot be read.
        """
        self._file = file
        self.size = file.seek(0, io.SEEK_END)
        self._begin = 0
        self._buffer = b""

    def fields(self, span: Span | None = None) -> Iterator[WireField]:
        """Yield the fields of a message; of the whole file without a place.

        Raises:
            MalformedError: they are not fields, or reach beyond the message; the message says at which byte.
            OSError: the file cannot be read.
        """
        position, end = span if span is not None else (0, self.size)
        while position < end:
            start = position
            key, position = self._varint(position, end)
            number, wire_type = key >> 3, key & 7
            if not number:
                raise MalformedError(f"has no field at byte {start}", position=start)
            if wire_type == _VARINT:
                value, position = self._varint(position, end)
                yield WireField(number, value)
            elif wire_type in (_FIXED64, _FIXED32):
                place = self._place(position, 8 if wire_type == _FIXED64 else 4, end)
                yield WireField(number, int.from_bytes(self.content(place), "little"))
                position = place.end
            elif wire_type == _LENGTH:
                length, position = self._varint(position, end)
                place = self._place(position, length, end)
                yield WireField(number, place)
                position = place.end
            else:
                raise MalformedError(f"has a field of an unknown kind at byte {start}", position=start)

    def content(self, span: Span, most: int = MAX_TEXT_BYTES) -> bytes:
        """Return the bytes at a place.

        Raises:
            MalformedError: there are more than ``most``, or the file has become shorter.
            OSError: the file cannot be read.
        """
        if span.num_bytes > most:
            raise MalformedError(
                f"has {span.num_bytes:,} bytes at byte {span.begin} where at most {most:,} are expected",
                position=span.begin,
            )
        inside = self._begin <= span.begin and span.end <= self._begin + len(self._buffer)
        if not inside:
            self._file.seek(span.begin)
            self._begin = span.begin
            self._buffer = self._file.read(max(span.num_bytes, _BUFFER_BYTES)) or b""
        found = self._buffer[span.begin - self._begin : span.end - self._begin]
        if len(found) != span.num_bytes:
            raise MalformedError(f"ends before byte {span.end}", position=span.begin)
        return found

    def text(self, span: Span) -> str:
        """Return the text at a place.

        Raises:
            MalformedError: as `content`; or it is not UTF-8.
        """
        try:
            return self.content(span).decode()
        except UnicodeDecodeError as error:
            raise MalformedError(f"has no text at byte {span.begin}", position=span.begin) from error

    def integers(self, value: int | Span) -> list[int]:
        """Return the numbers of a field of repeated ``int64``: one, or several in a packed field.

        Raises:
            MalformedError: as `content`.
        """
        if isinstance(value, int):
            return [_signed(value)]
        found: list[int] = []
        position = value.begin
        self.content(value)  # which bounds their number
        while position < value.end:
            number, position = self._varint(position, value.end)
            found.append(_signed(number))
        return found

    def _place(self, position: int, length: int, end: int) -> Span:
        if position + length > end:
            raise MalformedError(
                f"is cut off or damaged: {length:,} bytes from byte {position} on are beyond its end", position=position
            )
        return Span(position, position + length)

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        """Return a number of variable length, and the position after it."""
        content = self.content(Span(position, min(position + _VARINT_BYTES, end)))
        value = 0
        for i, byte in enumerate(content):
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF, position + i + 1
        raise MalformedError(f"is cut off or damaged at byte {position}", position=position)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
