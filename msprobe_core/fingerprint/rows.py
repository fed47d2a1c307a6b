"""Hashes of the rows of a tensor, which identify the samples of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe_core.fingerprint.arrays import GAMMA, Arrays, NumpyArrays, mix, signed
from msprobe_core.fingerprint.hashing import hash_of


def hash_rows(values: Any, arrays: Arrays | None = None) -> Any:
    """Return the hash of each slice along the first dimension: `hash_of` of its elements as a tensor of their own.

    Args:
        values: A contiguous array of any dtype with at least one dimension.
        arrays: Its library; NumPy if not given.

    Returns: int64 ``[len(values)]`` in the same library and on the same device.
    """
    arrays = arrays or NumpyArrays()
    num_rows = int(values.shape[0])
    totals = arrays.ramp(num_rows) * 0
    numel = math.prod(int(size) for size in values.shape)
    if not numel:
        return totals
    words = arrays.words(arrays.reals(values)).reshape(num_rows, -1)
    width = int(words.shape[1])
    num_columns = min(width, arrays.chunk)
    ramp = arrays.ramp(num_columns, GAMMA)
    height = max(arrays.chunk // num_columns, 1)
    for top in range(0, num_rows, height):
        for left in range(0, width, num_columns):
            block = words[top : top + height, left : left + num_columns]
            terms = ramp[: block.shape[1]] + block
            terms += signed(GAMMA * (left + 1))
            totals[top : top + height] += mix(terms, arrays).sum(1)
    return totals


def ordered_hash(hashes: Sequence[int]) -> str:
    """Return a hash of the hashes of rows that depends on their order, as 16 hexadecimal digits."""
    return _digits(hash_of(_words(hashes)))


def unordered_hash(hashes: Sequence[int]) -> str:
    """Return a hash of the hashes of rows that does not depend on their order, as 16 hexadecimal digits.

    Each is mixed once more before they are added: `hash_of` is a sum over columns, so the sum over rows would not
    change if two rows exchanged the elements of one column.
    """
    return _digits(mix(_words(hashes), NumpyArrays()).sum(keepdims=True))


def _words(hashes: Sequence[int]) -> NDArray[np.int64]:
    return np.array([signed(int(each)) for each in hashes], np.int64)


def _digits(total: NDArray[np.int64]) -> str:
    return f"{int(total[0]) % (1 << 64):016x}"
