"""Event files for TensorBoard: the statistics of layers over steps, one run per side and rank.

The files are written directly, so that TensorBoard need not be installed. Source: TensorFlow, ``record_writer.h``
(record framing), ``event.proto`` and ``summary.proto``; CRC-32C as in RFC 3720, appendix B.4.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from msprobe_core.errors import CompareError
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.layout import make_directory
from msprobe_core.view.data import Number, Trend, ViewData

_VERSION = "brain.Event:2"
_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8

_DOUBLE, _VARINT, _BYTES, _FLOAT = 1, 0, 2, 5
"""Wire types of protocol buffers. Source: *Encoding*, protobuf.dev."""


def write_tensorboard(data: ViewData, directory: Path) -> list[Path]:
    """Write an event file for each side and rank, and return the paths.

    Raises:
        CompareError: there is only one step of one rank, so there are no series to show.
        StoreError: a file cannot be written.
    """
    if not data.trends:
        raise CompareError(
            "TensorBoard shows statistics over steps, and there is one step here; give a run with several"
        )
    paths: list[Path] = []
    for side in ("target", "golden"):
        for rank in dict.fromkeys(rank for trend in data.trends for rank in _series(trend, side)):
            place = directory / (side if rank == "-" else f"{side}_rank{rank}")
            make_directory(place, below=directory.parent)
            paths.append(place / f"events.out.tfevents.{int(time.time())}.msprobe")
            with whole_file(paths[-1]) as file:
                for record in _records(data.trends, side, rank):
                    file.write(record)
    return paths


def _series(trend: Trend, side: str) -> dict[str, Sequence[Number]]:
    return trend.target if side == "target" else trend.golden or {}


def _records(trends: Sequence[Trend], side: str, rank: str) -> Iterator[bytes]:
    now = time.time()
    yield _framed(_fixed(1, _DOUBLE, now) + _text(3, _VERSION))
    by_step: dict[int, list[bytes]] = {}
    for trend in trends:
        micro_step = "" if trend.micro_step is None else f".micro{trend.micro_step}"
        tag = f"{trend.statistic}/{trend.name}.{trend.slot}{micro_step}"
        for step, value in zip(trend.steps, _series(trend, side).get(rank, ()), strict=False):
            if value is not None:
                by_step.setdefault(step, []).append(_message(1, _text(1, tag) + _fixed(2, _FLOAT, float(value))))
    for step, values in sorted(by_step.items()):
        yield _framed(_fixed(1, _DOUBLE, now) + _number(2, step) + _message(5, b"".join(values)))


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
