"""Determine how much a Parquet file expands to, from its headers, before a library reads its values.

A page header has the uncompressed length and the number of values; equal values take no space at all. So a file of a
few kilobytes can claim any size, and libraries allocate it. The sums over all page headers are compared with the length
of the file. Headers use Thrift's compact protocol; the few types that they need are decoded here.

Sources: Apache Parquet format 2.10, ``parquet.thrift``; Apache Thrift, *Thrift Compact protocol encoding*.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable, Iterator
from io import FileIO
from typing import Any, NamedTuple, TypeAlias

from msprobe_core.untrusted.files import most_unfolded
from msprobe_core.untrusted.malformed import MalformedError

_MAGIC = b"PAR1"
_FOOTER = struct.Struct("<I4s")
_MAX_DEPTH = 32
_MAX_HEADER_BYTES = 1 << 16
"""Maximum length of a page header, which may contain the smallest and the largest value."""

_BYTES_PER_VALUE = 16
"""Maximum memory of a value, without its text."""

_ENCODINGS = frozenset({0, 2, 3, 8})
"""Plain, dictionary, and run-length encodings. Others reuse parts of earlier values and can expand without limit."""

_Fields: TypeAlias = dict[int, Any]


def check_parquet(file: FileIO) -> None:
    """Raise if a Parquet file expands to more than its length justifies.

    Args:
        file: Open file; little of it is read.

    Raises:
        MalformedError: it does, or it is not a Parquet file.
        OSError: it cannot be read.
    """
    size = file.seek(0, os.SEEK_END)
    try:
        num_bytes, num_values = _sums(file, size)
    except MalformedError:
        raise
    except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedError("it is no Parquet file, or cut off") from error
    most = most_unfolded(size)
    if num_bytes > most or num_values * _BYTES_PER_VALUE > most:
        raise MalformedError(
            f"its {size:,} bytes stand for {num_values:,} values in {num_bytes:,} bytes, more than a file of its "
            "length should"
        )


def _sums(file: FileIO, size: int) -> tuple[int, int]:
    """Return the uncompressed length of all pages, and the number of their values."""
    length, magic = _FOOTER.unpack(_read(file, max(0, size - _FOOTER.size), _FOOTER.size).rjust(_FOOTER.size))
    begin = size - _FOOTER.size - length
    if magic != _MAGIC or begin < len(_MAGIC):
        raise MalformedError("its end is missing")
    metadata = _Compact(_read(file, begin, length)).struct()
    columns: list[_Fields] = [chunk[3] for group in metadata[4] for chunk in group[1]]
    # Columns may refer to the same pages, each of which is read every time.
    pages = list(itertools.islice((page for column in columns for page in _pages(file, column)), _most_pages(size)))
    if len(pages) == _most_pages(size):
        raise MalformedError("it has more pages than a file of its length should")
    claimed = sum(max(column[5], metadata[3], 0) for column in columns)
    return length + sum(page.num_bytes for page in pages), max(claimed, sum(page.num_values for page in pages))


def _most_pages(size: int) -> int:
    return 10_000 + size // 128


class _Page(NamedTuple):
    num_bytes: int
    num_values: int


def _pages(file: FileIO, column: _Fields) -> Iterator[_Page]:
    """Yield the sizes in the page headers of a column."""
    position: int = column.get(11, column[9])
    end: int = position + column[7]
    while position < end:
        reader = _Compact(_read(file, position, _MAX_HEADER_BYTES))
        header = reader.struct()
        own: _Fields = header.get(5) or header.get(7) or header[8]
        if own[4 if 8 in header else 2] not in _ENCODINGS:
            raise MalformedError("it has values in an encoding that msprobe does not write")
        page, packed = _Page(header[2], own[1]), header[3]
        if min(*page, packed, position) < 0:
            raise MalformedError("it has a page of a negative length")
        yield page
        position += reader.position + packed


def _read(file: FileIO, position: int, num_bytes: int) -> bytes:
    file.seek(position)
    return file.read(num_bytes)


class _Compact:
    """Decodes structs of Thrift's compact protocol."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.position = 0

    def struct(self, depth: int = 0) -> _Fields:
        """Return the fields of a struct by number."""
        fields: _Fields = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._number()
            fields[number] = self._value(head & 15, depth)
        return fields

    def _byte(self) -> int:
        self.position += 1
        return self._content[self.position - 1]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise MalformedError("a number in its headers is too long")

    def _number(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, num_bytes: int) -> None:
        """Skip bytes; lengths are never negative, so that nothing is read twice."""
        self.position += num_bytes
        if self.position > len(self._content):
            raise MalformedError("its headers end within a value")

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise MalformedError("its headers are nested too deeply")
        if kind in (1, 2):  # booleans are in the type
            return kind == 1
        if kind in (9, 10):
            return self._list(depth)
        if kind == 12:
            return self.struct(depth + 1)
        return _READ[kind](self)

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        size = head >> 4 if head >> 4 < 15 else self._varint()
        if size > len(self._content) - self.position:
            raise MalformedError("its headers end within a list")
        kind = head & 15
        if kind in (1, 2):
            return [self._byte() for _ in range(size)]
        return [self._value(kind, depth + 1) for _ in range(size)]


_READ: dict[int, Callable[[Any], Any]] = {
    3: lambda reader: reader._byte(),
    **dict.fromkeys((4, 5, 6), lambda reader: reader._number()),
    7: lambda reader: reader._skip(8),
    8: lambda reader: reader._skip(reader._varint()),
}
"""Readers of each type except booleans, lists and structs; maps do not occur. Text is skipped."""
