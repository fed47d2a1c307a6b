"""Checksums of bytes as text: CRC-32 and exclusive or."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from msprobe_core.fingerprint.crc import crc32 as _crc32


def crc32_text(content: Any) -> str:
    """Return the CRC-32 of a contiguous buffer (bytes, or an array of any dtype) as 8 hex digits."""
    return f"{_crc32(content):08x}"


def xor_text(content: NDArray[np.uint8]) -> str:
    """Return the exclusive or of the 64-bit little-endian words of a vector of bytes, filled up with zeros."""
    num_whole = content.size // 8 * 8
    words = np.frombuffer(content[:num_whole], "<u8")
    result = int(cast("Any", np.bitwise_xor).reduce(words))
    result ^= int.from_bytes(content[num_whole:].tobytes(), "little")
    return word_text(result)


def word_text(word: int) -> str:
    """Return a 64-bit word, signed or not, as ``0x`` and 16 hex digits."""
    return f"0x{word & (1 << 64) - 1:016x}"
