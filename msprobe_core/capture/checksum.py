"""Checksums of bytes as text: CRC-32 and exclusive or."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe_core.fingerprint.checksums import crc32 as _crc32
from msprobe_core.fingerprint.checksums import word_text, xor_words


def crc32_text(content: Any) -> str:
    """Return the CRC-32 of a contiguous buffer (bytes, or an array of any dtype) as 8 hex digits."""
    return f"{_crc32(content):08x}"


def xor_text(content: NDArray[np.uint8]) -> str:
    """Return the exclusive or of the 64-bit little-endian words of a vector of bytes, filled up with zeros."""
    return word_text(xor_words(content))
