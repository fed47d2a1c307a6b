"""Call the compiled kernels, if they exist; see ``kernels.c``.

They are compiled when the package is built, if a C compiler is available (``hatch_build.py``). If they are missing, or
``MSPROBE_NATIVE=0`` is set, callers compute the same with their array library.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from msprobe_core.model import Stats

NATIVE_VARIABLE = "MSPROBE_NATIVE"
"""Environment variable; ``0`` disables the kernels."""

_FILE = Path(__file__).with_name("libkernels.so")
_VERSION = 1

FLOAT_KINDS = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}
"""Dtypes with statistics and sketches, and their numbers in ``kernels.c``."""

INTEGER_KINDS = {"int8": 0, "int16": 1, "int32": 2, "int64": 3, "uint8": 4, "uint16": 5, "uint32": 6, "uint64": 7}
"""The same for integers."""

LONG = 1 << 18
"""Number of elements from which a tensor is split into parts, for several threads."""

_BRIEF = 1 << 14
"""Below this number of elements a call keeps the GIL: it takes a few microseconds, releasing the GIL can take more."""

FloatStatistics: TypeAlias = tuple[float, float, float, float, int, int]
"""Maximum, minimum, mean, Euclidean norm, number of NaN, number of infinities."""

_SixNumbers = ctypes.c_double * 6
_TwoNumbers = ctypes.c_double * 2
_TwoIntegers = ctypes.c_int64 * 2
_SketchNumbers = ctypes.c_float * 64


class _Threads(ctypes.Structure):
    _fields_ = (("run", ctypes.c_void_p), ("number", ctypes.c_void_p), ("count", ctypes.c_int32))


class _Tables(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("place_signs", "sum_signs", "block_signs", "turns", "ranks"))


class SketchTables:
    """The tables of a sketch, at fixed addresses."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        """Take ownership of contiguous NumPy arrays.

        Args:
            arrays: Signs of places, of sums and of blocks as int8, turns of blocks and ranks of rows as int64.
        """
        self._arrays = arrays
        self.structure = _Tables(*(array.ctypes.data for array in arrays))


class Threads:
    """OpenMP threads that the caller's framework has started and keeps waiting for work."""

    def __init__(self, run: int, number: int, count: Callable[[], int]) -> None:
        """Store how to use them.

        Args:
            run: Address of ``GOMP_parallel``.
            number: Address of ``omp_get_thread_num``.
            count: Returns how many threads the framework wants to use now.
        """
        self._structure = _Threads(run, number, 1)
        self._count = count

    def pointer(self) -> Any:
        """Return the structure for the kernels, with the current number of threads."""
        self._structure.count = self._count()
        return ctypes.byref(self._structure)


class Kernels:
    """The compiled functions. All take the address of contiguous elements, which the caller keeps alive.

    Results are the same for any number of threads and on every processor.
    """

    def __init__(self, path: Path) -> None:
        """Load the library.

        Raises:
            OSError: the file does not exist, or is not a library for this machine.
            AttributeError: it is a different library.
        """
        holding, releasing = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
        self.path = path
        self.version: int = holding.msprobe_kernels_version()
        self._float_statistics = _declared(holding, releasing, "msprobe_float_statistics", None, 2)
        self._integer_statistics = _declared(holding, releasing, "msprobe_integer_statistics", None, 2)
        self._hash = _declared(holding, releasing, "msprobe_hash", ctypes.c_uint64, 1)
        self._sketch = _declared(holding, releasing, "msprobe_sketch", None, 3)

    def statistics(self, address: int, count: int, dtype: str, threads: Threads | None = None) -> Stats | None:
        """Return the statistics of elements by dtype name, also ``bool``; ``None`` if the kernels do not support it.

        Args:
            address: Address of the elements.
            count: Number of elements, at least 1.
            dtype: NumPy's name, or ``bfloat16``.
            threads: Used for long tensors.
        """
        if (kind := FLOAT_KINDS.get(dtype)) is not None:
            return self.statistics_of_floats(address, count, kind, threads)
        if (kind := INTEGER_KINDS.get("uint8" if dtype == "bool" else dtype)) is None:
            return None
        high, low, mean, norm = self.integer_statistics(address, count, kind)
        if dtype == "bool":
            return Stats(bool(high), bool(low), mean, norm, 0, 0)
        return Stats(high, low, mean, norm, 0, 0)

    def statistics_of_floats(self, address: int, count: int, kind: int, threads: Threads | None = None) -> Stats:
        """Return `float_statistics` as what is recorded."""
        high, low, mean, norm, num_nan, num_inf = self._floats(address, count, kind, threads)
        return Stats(high, low, mean, norm, int(num_nan), int(num_inf))

    def float_statistics(self, address: int, count: int, kind: int, threads: Threads | None = None) -> FloatStatistics:
        """Return the statistics of floating-point numbers.

        Sums and squares of up to 32 elements are accumulated in the elements' width, at least float32, then in float64.
        If that would overflow, everything is computed in float64, and float64 is scaled. The norm's relative error is
        below 2e-6, the mean's error below 2e-6 of the mean of the absolute values.

        Args:
            address: Address of the elements.
            count: Number of elements, at least 1.
            kind: One of the values of `FLOAT_KINDS`.
            threads: Used for long tensors.

        Returns: NaN except for the counts if an element is NaN.
        """
        high, low, mean, norm, num_nan, num_inf = self._floats(address, count, kind, threads)
        return high, low, mean, norm, int(num_nan), int(num_inf)

    def _floats(self, address: int, count: int, kind: int, threads: Threads | None) -> list[float]:
        result = _SixNumbers()
        if count < LONG:
            self._float_statistics[count >= _BRIEF](address, count, kind, None, result)
        else:
            self._float_statistics[1](address, count, kind, _pointer(threads), result)
        return result[:]  # a slice is one call, where unpacking is six

    def integer_statistics(self, address: int, count: int, kind: int) -> tuple[int, int, float, float]:
        """Return maximum, minimum, mean and Euclidean norm of integers, the last two summed in float64.

        Args:
            address: Address of the elements.
            count: Number of elements, at least 1.
            kind: One of the values of `INTEGER_KINDS`.
        """
        extremes, result = _TwoIntegers(), _TwoNumbers()
        self._integer_statistics[count >= _BRIEF](address, count, kind, extremes, result)
        high, low = extremes
        if kind == INTEGER_KINDS["uint64"]:
            high, low = high % (1 << 64), low % (1 << 64)
        return high, low, result[0], result[1]

    def hash(self, address: int, count: int, width: int, threads: Threads | None = None) -> int:
        """Return the same as `msprobe_core.fingerprint.hashing.hash_of` for a whole tensor, below 2**64.

        Args:
            address: Address of the elements.
            count: Number of elements.
            width: Bytes of an element: 1, 2, 4 or 8.
            threads: Used for long tensors.
        """
        return self._hash[count >= _BRIEF](address, count, width, None if count < LONG else _pointer(threads))

    def sketch(
        self, address: int, count: int, kind: int, tables: SketchTables, threads: Threads | None = None
    ) -> bytes:
        """Return the same as `msprobe_core.fingerprint.sketch.Sketcher.sketch` for a whole tensor, except for rounding.

        Args:
            address: Address of the elements.
            count: Number of elements.
            kind: One of the values of `FLOAT_KINDS`.
            tables: For at least this number of elements.
            threads: Used for long tensors.

        Returns: 64 little-endian float32.
        """
        result = _SketchNumbers()
        pointer = None if count < LONG else _pointer(threads)
        self._sketch[count >= _BRIEF](address, count, kind, ctypes.byref(tables.structure), pointer, result)
        return bytes(result)


_Function: TypeAlias = Callable[..., Any]


def _declared(
    holding: ctypes.PyDLL, releasing: ctypes.CDLL, name: str, result: Any, num_pointers: int
) -> tuple[_Function, _Function]:
    """Return a function in two variants: one that holds the GIL while it runs, and one that releases it.

    Both take an address, a number of elements and a kind, or width, and then pointers.
    """
    functions: list[_Function] = []
    for library in (holding, releasing):
        function = getattr(library, name)
        function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, *[ctypes.c_void_p] * num_pointers]
        function.restype = result
        functions.append(function)
    return functions[0], functions[1]


def _pointer(threads: Threads | None) -> Any:
    return None if threads is None else threads.pointer()


@cache
def kernels() -> Kernels | None:
    """Return the compiled kernels; ``None`` if there are no usable ones."""
    if os.environ.get(NATIVE_VARIABLE) == "0":
        return None
    try:
        found = Kernels(_FILE)
    except (OSError, AttributeError):
        return None
    return found if found.version == _VERSION else None  # another version's file may be left in a clone
