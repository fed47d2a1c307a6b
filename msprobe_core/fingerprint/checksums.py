"""Checksums of a tensor's bytes: CRC-32 as in ``zlib``, by Intel's library if installed, and exclusive or.

Intel's library is five times as fast: 29.6 GB/s instead of 5.4, measured on one core of a Xeon.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

try:
    from isal.isal_zlib import crc32 as _found  # pyright: ignore[reportUnknownVariableType]
except ImportError:  # not every platform has a wheel
    from zlib import crc32 as _found

crc32 = cast("Callable[..., int]", _found)
"""``crc32(content, start=0)`` of a contiguous buffer; ``start`` is the CRC-32 of the preceding bytes."""


def xor_words(content: NDArray[np.uint8]) -> int:
    """Return the exclusive or of the 64-bit little-endian words of a byte vector, padded with zeros."""
    num_whole = content.size // 8 * 8
    words = np.frombuffer(content[:num_whole], "<u8")
    return int(cast("Any", np.bitwise_xor).reduce(words)) ^ int.from_bytes(content[num_whole:].tobytes(), "little")


def word_text(word: int) -> str:
    """Format a 64-bit word, signed or not, as ``0x`` and 16 hex digits."""
    return f"0x{word & (1 << 64) - 1:016x}"


def crc32_text(content: Any) -> str:
    """Return the CRC-32 of a contiguous buffer (bytes, or an array of any dtype) as 8 hex digits."""
    return f"{crc32(content):08x}"


def xor_text(content: NDArray[np.uint8]) -> str:
    """Return the exclusive or of the 64-bit little-endian words of a byte vector, padded with zeros, as text."""
    return word_text(xor_words(content))
