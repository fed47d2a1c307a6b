"""Bound a zip archive's table of contents before a library reads it, which takes half a kilobyte for each member.

Source: PKWARE APPNOTE 6.3, 4.3.14 to 4.3.16.
"""

from __future__ import annotations

import struct
from typing import IO

from msprobe_core.untrusted.malformed import MalformedError

MAX_MEMBERS = 200_000
MAX_TABLE_BYTES = 32 << 20

_END = struct.Struct("<4s4H2LH")
_END_MARK = b"PK\x05\x06"
_WIDE_PLACE = struct.Struct("<4sLQL")
_WIDE_PLACE_MARK = b"PK\x06\x07"
_WIDE_END = struct.Struct("<4sQ2H2L4Q")
_WIDE_END_MARK = b"PK\x06\x06"
_MAX_COMMENT_BYTES = 0xFFFF


def check_table(file: IO[bytes], size: int) -> None:
    """Raise if a zip archive has too many members, or too large a table of contents.

    Args:
        file: The opened archive; its position changes.
        size: Its size in bytes.

    Raises:
        MalformedError: it has, or has no table of contents.
    """
    begin = max(0, size - _END.size - _MAX_COMMENT_BYTES)
    file.seek(begin)
    tail = file.read(size - begin)
    place = tail.rfind(_END_MARK, 0, len(tail) - _END.size + len(_END_MARK))
    if place < 0:
        raise MalformedError("has no table of contents at its end; it is cut off")
    _, _, _, _, num_members, num_bytes, _, _ = _END.unpack_from(tail, place)
    if place >= _WIDE_PLACE.size and tail.startswith(_WIDE_PLACE_MARK, place - _WIDE_PLACE.size):
        _, _, wide, _ = _WIDE_PLACE.unpack_from(tail, place - _WIDE_PLACE.size)
        if wide > size - _WIDE_END.size:
            raise MalformedError("has a table of contents beyond its end")
        file.seek(wide)
        record = file.read(_WIDE_END.size)
        if not record.startswith(_WIDE_END_MARK):
            raise MalformedError("has a damaged table of contents")
        *_, num_members, num_bytes, _ = _WIDE_END.unpack(record)
    if num_members > MAX_MEMBERS or num_bytes > min(MAX_TABLE_BYTES, size):
        raise MalformedError(
            f"lists {num_members:,} parts in {num_bytes:,} bytes, and no more than {MAX_MEMBERS:,} are read"
        )
