"""Whether the rows of a result are off as a whole, by less than rounding a single element.

A normalisation divides a row by one number. If that is computed in half precision, all elements of the row are off by
the same factor, which is no larger than the rounding of each of them, so that no norm of the errors shows it. But
rounding has no common factor: over a row of n elements it averages out. The factor by which a row is off is its
projection on the exact row; what rounding explains of it follows from the last digits of the elements. Elements that
are rounded to one number may all be rounded in one direction, so they count as one.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from msprobe_core.model import ReplayTensor
from msprobe_core.replay.replays import UNIT_ROUNDOFF

Array: TypeAlias = NDArray[Any]

NORMALISATIONS = frozenset({"layer_norm", "rms_norm", "softmax"})
"""Functions, by the last part of their names, that divide each row of the last axis by one number."""

GAIN_FACTOR = 3.0
"""By how much factors of rows may exceed what rounding explains, as norms may; see `msprobe_core.replay.judge`."""

_LEAST_ELEMENTS = 16
_LEAST_ROWS = 8
_MOST_ROWS = 1024


def gain_of_rows(result: ReplayTensor, exact: Array) -> float | None:
    """Return the root mean square of the factors by which rows are off, in units of what rounding once explains.

    Args:
        result: In half precision, shape ``[..., n]``.
        exact: In more precision, of the same shape.

    Returns: about 1 of a result that was rounded once; ``None`` if there are too few rows, or too few elements in one,
        or if elements are not finite.
    """
    shape = exact.shape
    if result.dtype not in ("bfloat16", "float16") or not shape or shape[-1] < _LEAST_ELEMENTS:
        return None
    rows: Array = np.reshape(exact, (-1, shape[-1]))[:_MOST_ROWS].astype(np.float64)
    values: Array = np.reshape(result.values, (-1, shape[-1]))[:_MOST_ROWS].astype(np.float64)
    squares: Array = (rows * rows).sum(1)
    counts = (squares > 0) & np.isfinite(squares) & np.isfinite(values).all(1)
    _, places = np.unique(rows[counts], axis=0, return_index=True)  # equal rows are rounded equally, and count once
    rows, values, squares = (each[counts][places] for each in (rows, values, squares))
    if len(rows) < _LEAST_ROWS:
        return None
    gains: Array = ((values - rows) * rows).sum(1) / squares
    expected: Array = _of_rounding(values, rows, UNIT_ROUNDOFF[result.dtype]) / squares
    num_known = int(np.count_nonzero(expected > 0))
    if num_known < _LEAST_ROWS:
        return None
    times: Array = np.divide(gains, expected, out=np.zeros_like(gains), where=expected > 0)
    return float(np.square(times).sum() / num_known) ** 0.5


def _of_rounding(values: Array, rows: Array, roundoff: float) -> Array:
    """Return the standard deviation of the projection of the rounding of each row on the row."""
    exponents: Array = np.frexp(rows)[1]
    # Rounding to nearest is uniform within half a last digit to both sides.
    parts = np.abs(rows) * np.ldexp(roundoff, exponents - 1) / 3**0.5
    order = np.argsort(values, 1)
    values, parts = np.take_along_axis(values, order, 1), np.take_along_axis(parts, order, 1)
    begins = np.ones(values.shape, bool)
    begins[:, 1:] = values[:, 1:] != values[:, :-1]
    places = cast("Array", np.flatnonzero(begins))
    of_groups = np.add.reduceat(np.ravel(parts), places)
    begin_of_rows = cast("Array", np.searchsorted(places, np.arange(len(values)) * values.shape[1]))
    return np.sqrt(np.add.reduceat(of_groups**2, begin_of_rows))
