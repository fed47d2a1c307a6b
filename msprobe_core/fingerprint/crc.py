"""CRC-32 as ``zlib`` has it, by Intel's library where that is installed.

The library is five times as fast: 29.6 GB/s instead of 5.4, measured on one core of a Xeon.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

try:
    from isal.isal_zlib import crc32 as _found  # pyright: ignore[reportUnknownVariableType]
except ImportError:  # no wheel for every platform
    from zlib import crc32 as _found

crc32 = cast("Callable[..., int]", _found)
"""``crc32(content, start=0)`` of a contiguous buffer; ``start`` is that of the bytes before it."""
