"""The reducer of tensors on the host, whose elements are NumPy arrays: one for all frameworks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from msprobe_core.fingerprint import fp8
from msprobe_core.fingerprint.arrays import NumpyArrays
from msprobe_core.fingerprint.checksums import crc32_text, word_text, xor_text
from msprobe_core.fingerprint.hashing import hash_of
from msprobe_core.fingerprint.sketch import Sketcher
from msprobe_core.model import Digest, Stats, TensorContent
from msprobe_core.native.reductions import FLOAT_KINDS, Kernels, kernels
from msprobe_core.protocols.capabilities import ElementMeasure
from msprobe_core.store.layout import create_file

Array: TypeAlias = Any
"""A NumPy array of any dtype, which NumPy's own type annotations hardly describe."""

BFLOAT16 = "bfloat16"
"""Name of the dtype that NumPy lacks; its elements are stored as uint16."""

_WIDTHS = (1, 2, 4, 8)
"""Sizes, in bytes, of the numbers that the hash accepts; frameworks have no others."""

_PIECE = 1 << 16
"""Number of elements that all reductions process before the next ones, so that they are loaded from memory once."""

_SAFE_SQUARES = 1e-30, 1e30
"""Sums of squares within these bounds have the full precision of float32."""


class HostValues:
    """The elements of a tensor, as an array with the name of their dtype.

    Attributes:
        array: Any shape and strides; uint16 for bfloat16.
        dtype: NumPy's name, or ``bfloat16``.
    """

    __slots__ = ("array", "dtype")

    def __init__(self, array: Array, dtype: str | None = None) -> None:
        self.array = array
        self.dtype = dtype or _name_of(array.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the numbers, for NumPy."""
        return np.array(self.numbers, dtype=dtype, copy=bool(copy))

    @property
    def nbytes(self) -> int:
        """Size of the elements in bytes."""
        return self.array.nbytes

    @property
    def numbers(self) -> Array:
        """The elements in a dtype that NumPy can compute with: bfloat16 is widened to float32, without loss."""
        if self.dtype != BFLOAT16:
            return self.array
        widened: Array = self.array.astype(np.uint32) << np.uint32(16)
        return widened.view(np.float32)

    def copy(self) -> HostValues:
        """Return a contiguous copy."""
        return HostValues(np.array(self.array, order="C", copy=True), self.dtype)

    def content(self) -> TensorContent:
        """Return the bytes of contiguous values."""
        return TensorContent(self.dtype, self.array.shape, memoryview(_bytes_of(self)))

    def save(self, path: Path) -> None:
        """Write a ``.npy`` file for its owner only; bfloat16, which the format lacks, is stored as float32."""
        with create_file(path) as file:
            np.save(file, self.numbers, allow_pickle=False)


def _unchanged(values: HostValues) -> HostValues:
    return values


class HostReducer:
    """A `msprobe_core.plugin.Reducer` of tensors on the host, where nothing ever waits for a device."""

    def __init__(self, values_of: Callable[[Any], HostValues] = _unchanged) -> None:
        """Create a reducer.

        Args:
            values_of: Returns the elements of a tensor; by default, tensors are `HostValues`.
        """
        self._values_of = values_of
        self._sketcher = Sketcher(NumpyArrays())
        self._kernels = kernels()

    def statistics(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.stats``."""
        values = self._values_of(tensor)
        stats = None if self._kernels is None else _statistics_by(self._kernels, values)
        digest.stats = statistics_of(values.numbers) if stats is None else stats

    def checksum(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``: CRC-32."""
        digest.checksum = crc32_text(_bytes_of(self._values_of(tensor)))

    def xor(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``: exclusive or of all words."""
        digest.checksum = xor_text(_bytes_of(self._values_of(tensor)))

    def hash(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``: the additive hash."""
        array = self._values_of(tensor).array
        num_parts = 2 if array.dtype.kind == "c" else 1
        width = array.itemsize // num_parts
        if self._kernels is not None and array.flags.c_contiguous and width in _WIDTHS:
            word = self._kernels.hash(array.ctypes.data, num_parts * array.size, width)
        else:
            word = int(hash_of(array)[0])
        digest.checksum = word_text(word)

    def sketch(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.sketch``; it stays unset for values without elements."""
        values = self._values_of(tensor)
        array, kind = values.array, FLOAT_KINDS.get(values.dtype)
        if self._kernels is not None and kind is not None and array.size and array.flags.c_contiguous:
            tables = self._sketcher.tables(array.size)
            digest.sketch = self._kernels.sketch(array.ctypes.data, array.size, kind, tables)
        elif array.size:
            digest.sketch = self._sketcher.sketch(values.numbers).astype("<f4").tobytes()

    def fp8(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.fp8``; only for floating-point values with elements."""
        numbers = self._values_of(tensor).numbers
        if numbers.size and numbers.dtype.kind == "f":
            digest.fp8 = fp8.losses(fp8.quantised(numbers, NumpyArrays()).tolist(), numbers.size)

    def extra_statistics(self, tensor: Any, digest: Digest, measure: ElementMeasure) -> None:
        """Set ``digest.extra``; only for numbers, and values with elements."""
        numbers = self._values_of(tensor).numbers
        if numbers.size and numbers.dtype.kind in "biufc":
            names, found = measure(real_vector(numbers), NumpyArrays())
            digest.extra = dict(zip(names, found.tolist(), strict=True))

    @property
    def is_complete(self) -> bool:
        """Always true: digests are filled in immediately."""
        return True

    def collect(self) -> None:
        """Do nothing."""


def _statistics_by(kernels: Kernels, values: HostValues) -> Stats | None:
    """Return statistics from the native kernels; ``None`` for a layout or dtype that they do not support."""
    array = values.array
    if not array.size or not (array.flags.c_contiguous or array.flags.f_contiguous) or not array.dtype.isnative:
        return None
    return kernels.statistics(array.ctypes.data, array.size, values.dtype)


def real_vector(numbers: Array) -> Array:
    """Return the elements in C order, as `msprobe_core.plugin.Statistic` gets them; a copy if need be."""
    flat = numbers.reshape(-1)
    if flat.dtype.kind == "c":
        return np.abs(flat)
    if flat.dtype.kind == "f":
        return flat.astype(np.float32) if flat.itemsize < 4 else flat
    return flat.astype(np.float64)


@lru_cache
def _name_of(dtype: Any) -> str:
    return dtype.name  # cached, because NumPy builds the name at each access


def _bytes_of(values: HostValues) -> Array:
    contiguous: Array = np.ascontiguousarray(values.array)
    return contiguous.reshape(-1).view(np.uint8)


def sums_of_integers(total: int, squares: int, rounded: float, norm: float) -> tuple[float, float]:
    """Return sum and Euclidean norm of integers on a device without float64: exact, or rounded if int64 has wrapped.

    ``|sum(v)| <= sum(v * v)`` for integers, so neither sum has wrapped while that of the squares is below 2**63. The
    rounded norm decides that, with a margin of half that for its own error.

    Args:
        total: The sum, modulo 2**64.
        squares: The sum of squares, modulo 2**64.
        rounded: The sum in float32.
        norm: The Euclidean norm in float32.
    """
    return (total, math.sqrt(squares)) if norm * norm < _HALF_OF_INT64 else (rounded, norm)


_HALF_OF_INT64 = 2.0**62


def statistics_of(values: Array) -> Stats:
    """Return the statistics of an array; empty for an array without elements or of a dtype that is not numeric.

    Floats of up to 32 bits are summed pairwise in float32 within pieces, and in float64 over pieces; integers and
    float64 in float64. Values whose sums would leave the range of the type are scaled first.
    """
    kind = values.dtype.kind
    if not values.size or kind not in "biufc":
        return Stats()
    flat = values.reshape(-1) if values.flags.c_contiguous else values.ravel(order="K")
    if kind == "b":
        num_true = int(np.count_nonzero(flat))
        return Stats(num_true > 0, num_true == flat.size, num_true / flat.size, math.sqrt(num_true), 0, 0)
    if kind in "iu":
        _, _, mean, norm = _reduced(flat.astype(np.float64))
        return Stats(flat.max().item(), flat.min().item(), mean, norm, 0, 0)
    with np.errstate(all="ignore"):
        flat = np.abs(flat) if kind == "c" else flat
        flat = flat.astype(np.float32) if flat.dtype == np.float16 else flat
        return _float_statistics(flat)


def _float_statistics(flat: Array) -> Stats:
    high, low, mean, norm = _reduced(flat)
    if math.isfinite(low) and math.isfinite(high):
        size = max(abs(low), abs(high))
        squares = norm * norm
        if size > 0 and not (math.isfinite(mean) and _SAFE_SQUARES[0] < squares < _SAFE_SQUARES[1]):
            _, _, mean, norm = _reduced(flat.astype(np.float64) / size)
            mean, norm = size * mean, size * norm
        return Stats(high, low, mean, norm, 0, 0)
    return Stats(high, low, mean, norm, int(np.isnan(flat).sum()), int(np.isinf(flat).sum()))


def _reduced(flat: Array) -> tuple[float, float, float, float]:
    """Return maximum, minimum, mean and Euclidean norm of a vector; all NaN if an element is NaN."""
    size = flat.size
    if size <= _PIECE:
        return flat.max().item(), flat.min().item(), flat.sum().item() / size, math.sqrt(np.dot(flat, flat).item())
    highs: list[float] = []
    lows: list[float] = []
    total = squares = 0.0
    for start in range(0, size, _PIECE):
        piece = flat[start : start + _PIECE]
        highs.append(piece.max().item())
        lows.append(piece.min().item())
        total += piece.sum().item()
        squares += np.dot(piece, piece).item()
    # Python's max and min may ignore NaN; NumPy's propagate it.
    return np.max(highs).item(), np.min(lows).item(), total / size, math.sqrt(squares)
