"""Read large JSON dumps in pieces, so that reading takes little more memory than the result."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from msprobe_core.untrusted.files import open_plain

_HEAD_BYTES = 1 << 16
"""Upper bound for the length of the fields before the records."""

_DATA = re.compile(rb'"data"\s*:\s*\{')

_FIRST_PART = b'"input'
"""Beginning of a call's record, in dumps of every tool."""

_BEFORE_FIRST_PART = re.compile(rb',\s*("[^"\\]*"\s*:\s*\{\s*)\Z')
_MAX_NAME_BYTES = 1 << 12


class OddDocumentError(ValueError):
    """The file does not have the layout of dumps and must be read as a whole."""


def read_pieces(path: Path, piece_bytes: int) -> Iterator[bytes]:
    """Yield JSON documents, each with the fields before ``data`` of the file ``path`` and some of its records.

    If all of them are valid JSON, the file is too, and has these records in this order. The last one also has the
    fields after ``data``.

    Args:
        path: A ``dump.json``.
        piece_bytes: How many bytes are read at a time.

    Raises:
        OddDocumentError: there are no such fields.
        OSError: the file cannot be read.
    """
    with open_plain(path) as file:
        content = file.read(min(_HEAD_BYTES, piece_bytes))
        data = _DATA.search(content)
        if data is None:
            raise OddDocumentError(f"{path}: has no 'data' at its beginning")
        head, rest = content[: data.end()], content[data.end() :]
        while more := file.read(max(piece_bytes, len(rest))):
            rest += more
            if (end := _end_of_last_whole_record(rest)) > 0:
                yield b"".join((head, rest[:end], b"}}"))
                rest = rest[end + 1 :]
    yield head + rest


def _end_of_last_whole_record(content: bytes) -> int:
    """Return the position of the comma before the last record that begins in ``content``; 0 if none is found."""
    place = len(content)
    while (place := content.rfind(_FIRST_PART, 0, place)) > 0:
        start = max(0, place - _MAX_NAME_BYTES)
        if found := _BEFORE_FIRST_PART.search(content[start:place]):
            return start + found.start()
    return 0
