"""CRC-32, as ``zlib`` computes it; by Intel's library, five times as fast, where that is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

try:
    from isal.isal_zlib import crc32 as _found  # pyright: ignore[reportUnknownVariableType]
except ImportError:  # no wheel for every platform
    from zlib import crc32 as _found

_crc32 = cast("Callable[[Any], int]", _found)


def crc32_text(content: Any) -> str:
    """Return the CRC-32 of a contiguous buffer (bytes, or an array of any dtype) as 8 hex digits."""
    return f"{_crc32(content):08x}"
