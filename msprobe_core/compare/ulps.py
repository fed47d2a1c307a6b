"""Distance of two floating-point numbers, in steps of the coarser dtype.

Both are rounded to the coarser of the two dtypes, to nearest, and the steps from one number of that dtype to the next
are counted between them: 0 for +0 and -0, 1 for neighbours. Between two numbers of one binade this is their difference
in units in the last place (Goldberg, *What Every Computer Scientist Should Know About Floating-Point Arithmetic*, 1991,
sec. 1.2; Muller et al., *Handbook of Floating-Point Arithmetic*, 2nd ed., 2.3.2); across binades each step counts as
one, so that no distance exceeds the number of codes and none overflows. The code of a number, read as an integer, grows
by one with each step (Muller et al., sec. 3.1.2.2), so steps are differences of codes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msprobe_core.store.dtype_values import FORMS
from msprobe_core.store.tensor_values import float8_values

Distances: TypeAlias = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
"""Takes two vectors of equal length of finite numbers of any float dtypes, and returns an unsigned integer for each."""


def distances_in(target: str, golden: str) -> Distances | None:
    """Return the distance function for the coarser of two dtypes; ``None`` if one is not a float of at most 64 bits."""
    if target not in _FRACTION_BITS or golden not in _FRACTION_BITS:
        return None
    coarser = min(golden, target, key=_FRACTION_BITS.__getitem__)
    if coarser.startswith("float8_"):
        return _InFloat8(coarser)
    return _InCodes("float32", is_rounded=True) if coarser == "bfloat16" else _InCodes(coarser)


_FRACTION_BITS = {dtype: form.precision - 1 for dtype, form in FORMS.items()} | {"float8_e8m0fnu": 0}
"""Number of explicit fraction bits; of two dtypes the one with fewer is the coarser."""


class _InCodes:
    """Distances in float64, float32 or float16; with ``is_rounded`` in bfloat16, the upper half of a float32."""

    def __init__(self, dtype: str, *, is_rounded: bool = False) -> None:
        self._dtype = np.dtype(dtype)
        self._is_rounded = is_rounded
        self._rooms: list[Any] = []

    def __call__(self, target: Any, golden: Any) -> Any:
        """Return the distances, in a buffer that the next call overwrites."""
        size = self._dtype.itemsize
        if not self._rooms or self._rooms[0].size < target.size:
            self._rooms = [np.empty(target.size, f"i{size}") for _ in range(3)]
        first, second, third = (room[: target.size] for room in self._rooms)
        self._place(target, first, third)
        self._place(golden, second, third)
        larger = np.maximum(first, second, out=third)
        # A distance may need one bit more than the signed difference; read as unsigned, the wrapped value is right.
        distance = np.subtract(larger, np.minimum(first, second, out=first), out=third)
        return distance.view(f"u{size}")

    def _place(self, values: Any, place: Any, sign: Any) -> None:
        """Set ``place`` to integers that grow by one from a number of the dtype to the next; both zeros are 0."""
        with np.errstate(over="ignore"):  # numbers beyond the range become infinity, one step after the largest
            narrowed = values if values.dtype == self._dtype else values.astype(self._dtype)
        codes = narrowed.view(place.dtype)
        np.right_shift(codes, codes.itemsize * 8 - 1, out=sign)  # -1 or 0
        np.bitwise_and(sign, np.iinfo(codes.dtype).max, out=place)
        np.bitwise_xor(codes, place, out=place)
        np.subtract(place, sign, out=place)
        if self._is_rounded:  # to nearest, ties to even
            np.right_shift(place, 16, out=sign)
            np.bitwise_and(sign, 1, out=sign)
            np.add(place, sign, out=place)
            np.right_shift(np.add(place, 0x7FFF, out=place), 16, out=place)


class _InFloat8:
    """Distances in a dtype with at most 256 numbers, by table lookup."""

    def __init__(self, dtype: str) -> None:
        values = float8_values(dtype).astype(np.float64)
        numbers = np.unique(values[np.isfinite(values)] + 0.0)  # -0 and +0 are equal
        self._borders: Any = (numbers[1:] + numbers[:-1]) / 2

    def __call__(self, target: Any, golden: Any) -> Any:
        """Return the distances."""
        search: Any = self._borders.searchsorted
        return np.abs(search(target) - search(golden))
