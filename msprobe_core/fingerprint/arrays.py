"""The operations in which array libraries differ, so that fingerprints are written once for all of them.

Everything else in this package uses what NumPy arrays and tensors share: operators, slices, ``reshape``, ``sum``.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


def signed(number: int) -> int:
    """Return the int64 that is equal to ``number`` modulo 2**64."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


GAMMA = signed(0x9E3779B97F4A7C15)
"""The increment of SplitMix64: the odd integer nearest to 2**64 divided by the golden ratio."""


class Arrays(Protocol):
    """A library of arrays. ``Any`` stands for its arrays; integers are int64 and wrap around.

    No method waits for a device.
    """

    @property
    def chunk(self) -> int:
        """Number of elements processed at a time; temporaries need a few times 8 bytes per element."""
        ...

    def reals(self, values: Any) -> Any:
        """Return ``values``; complex elements are split along a new last dimension of size 2."""
        ...

    def words(self, values: Any) -> Any:
        """Return the raw bits of each element as a signed integer of the element's width; same shape, no copy."""
        ...

    def floats(self, values: Any) -> Any:
        """Return the elements, if possible without loss, in a dtype that can be multiplied by ``zeros``."""
        ...

    def single(self, values: Any) -> Any:
        """Return float64 or float32 as float32; values that are too large become infinite."""
        ...

    def zeros(self, *shape: int) -> Any:
        """Return zeros in the dtype for sums: float64, or float32 if the device has nothing wider."""
        ...

    def ramp(self, size: int, step: int = 1) -> Any:
        """Return ``step * [0, 1, 2, …]`` as read-only int64; ``step`` is in the range of int64."""
        ...

    def shift(self, words: Any, num_bits: int) -> Any:
        """Return a copy of int64 words shifted to the right, with zeros shifted in."""
        ...

    def windows(self, table: Any, first: int, num_windows: int, size: int) -> Any:
        """Return ``[num_windows, size]``, whose element ``(i, j)`` is ``table[first + i + j]``; no copy."""
        ...


class NumpyArrays:
    """NumPy arrays on the host. Chunks fit into a core's cache."""

    chunk = 1 << 15

    def reals(self, values: Any) -> Any:
        """See `Arrays`."""
        if not np.iscomplexobj(values):
            return values
        return np.stack((values.real, values.imag), axis=-1)

    def words(self, values: Any) -> Any:
        """See `Arrays`."""
        return values.view(f"i{values.dtype.itemsize}")

    def floats(self, values: Any) -> Any:
        """See `Arrays`."""
        return values

    def single(self, values: Any) -> Any:
        """See `Arrays`."""
        return values.astype(np.float32)

    def zeros(self, *shape: int) -> Any:
        """See `Arrays`."""
        return np.zeros(shape)

    def ramp(self, size: int, step: int = 1) -> Any:
        """See `Arrays`."""
        if step == GAMMA and size <= self.chunk:
            return _gamma_ramp()[:size]
        return np.arange(size, dtype=np.int64) * np.array([step], np.int64)

    def shift(self, words: Any, num_bits: int) -> Any:
        """See `Arrays`."""
        return (words.view(np.uint64) >> np.uint64(num_bits)).view(np.int64)

    def windows(self, table: Any, first: int, num_windows: int, size: int) -> Any:
        """See `Arrays`."""
        return np.lib.stride_tricks.sliding_window_view(table, size)[first : first + num_windows]


@cache
def _gamma_ramp() -> NDArray[np.int64]:
    return np.arange(NumpyArrays.chunk, dtype=np.int64) * np.array([GAMMA], np.int64)


def mix(words: Any, arrays: Arrays) -> Any:
    """Mix int64 words in place and return them: a bijection in which each input bit affects every output bit.

    Source: the finaliser of SplitMix64; Steele, Lea, Flood, *Fast Splittable Pseudorandom Number Generators*, OOPSLA
    2014, fig. 16, where it is mix64variant13 of Stafford, *Better Bit Mixing*, 2011.
    """
    words ^= arrays.shift(words, 30)
    words *= _MULTIPLIERS[0]
    words ^= arrays.shift(words, 27)
    words *= _MULTIPLIERS[1]
    words ^= arrays.shift(words, 31)
    return words


_MULTIPLIERS = signed(0xBF58476D1CE4E5B9), signed(0x94D049BB133111EB)
