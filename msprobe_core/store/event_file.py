"""Event files of TensorBoard, written directly, so that it need not be installed.

Source: TensorFlow, ``record_writer.h`` (record framing), ``event.proto`` and ``summary.proto``; CRC-32C as in RFC 3720,
appendix B.4.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable

_VERSION = "brain.Event:2"
_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8

_DOUBLE, _VARINT, _BYTES, _FLOAT = 1, 0, 2, 5
"""Wire types of protocol buffers. Source: *Encoding*, protobuf.dev."""


def event_file_name() -> str:
    """Return the name for a file that begins now; TensorBoard reads files whose names have ``tfevents``."""
    return f"events.out.tfevents.{int(time.time())}.msprobe"


def first_record(now: float) -> bytes:
    """Return the record with which a file begins.

    Args:
        now: Seconds since 1970.
    """
    return _framed(_fixed(1, _DOUBLE, now) + _text(3, _VERSION))


def scalars(step: int, values: Iterable[tuple[str, float]], now: float) -> bytes:
    """Return the record of one step.

    Args:
        step: Its number, at least 0.
        values: Tags and numbers, which are stored as float32.
        now: Seconds since 1970.
    """
    found = b"".join(_message(1, _text(1, tag) + _fixed(2, _FLOAT, value)) for tag, value in values)
    return _framed(_fixed(1, _DOUBLE, now) + _number(2, step) + _message(5, found))


# --- protocol buffers ---------------------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:  # seven bits per byte
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _number(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _varint(value)


def _message(field: int, content: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode("utf-8", "replace"))


def _fixed(field: int, kind: int, value: float) -> bytes:
    try:
        return _key(field, kind) + struct.pack("<d" if kind == _DOUBLE else "<f", value)
    except OverflowError:  # outside the range of float32
        return _key(field, kind) + struct.pack("<f", float("inf") if value > 0 else float("-inf"))


# --- records ------------------------------------------------------------------------------------------------------


def _framed(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return b"".join((length, _checked(length), content, _checked(content)))


def _checked(content: bytes) -> bytes:
    """Return the masked checksum of the preceding bytes."""
    crc = crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)


def _table() -> tuple[int, ...]:
    found: list[int] = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        found.append(crc)
    return tuple(found)


_TABLE = _table()


def crc32c(content: bytes) -> int:
    """Return the CRC-32C of ``content``."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
