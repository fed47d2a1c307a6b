"""Where in a tensor the error is: mean errors over bins of rows and columns.

Tensors are read in chunks, and only the bins are kept, so that memory does not depend on the size of the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe_core.compare.tokens import has_tokens, token_errors
from msprobe_core.errors import DumpError
from msprobe_core.model import Role
from msprobe_core.protocols.storage import TensorSource
from msprobe_core.view.data import Number, TensorMap, number

MAX_BINS = 128
MAX_TOKENS = 1024
MAX_ELEMENTS = 1 << 27
"""Largest tensor that is read for its map; 128 million elements take some seconds."""

_CHUNK = 1 << 20

_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Axes:
    """Arrangement of a tensor's elements on a map.

    Attributes:
        names: Meaning of rows and columns.
        rows: Dimensions of the tensor that form the rows; averages are taken over dimensions in neither.
        columns: Dimensions that form the columns.
    """

    names: tuple[str, str]
    rows: tuple[int, ...]
    columns: tuple[int, ...]


def axes_of(shape: Sequence[int]) -> list[Axes]:
    """Return the maps that suit a shape, the most informative first.

    Four dimensions are read as batch, heads, tokens and channels (or tokens and tokens), three as batch, tokens and
    channels, two as rows and columns, which is the convention of attention and transformers in the frameworks.
    """
    match len(shape):
        case 0 | 1:
            return [Axes(("row", "element"), (), tuple(range(len(shape))))]
        case 2:
            return [Axes(("row", "column"), (0,), (1,))]
        case 3:
            return [Axes(("token", "channel"), (0, 1), (2,))]
        case 4:
            return [Axes(("token", "channel"), (0, 1, 2), (3,)), Axes(("head", "token"), (1,), (2,))]
        case _:
            return [Axes(("row", "column"), tuple(range(len(shape) - 1)), (len(shape) - 1,))]


def map_of(unit: int, node: str, slot: str, target: TensorSource, golden: TensorSource, axes: Axes) -> TensorMap | None:
    """Return where two tensors differ; ``None`` if their shapes differ, or if they are empty or too large.

    Args:
        unit: Index of the unit.
        node: Name of the node.
        slot: Slot of the value.
        target: Values under test.
        golden: Trusted values.
        axes: Arrangement of elements on the map.

    Raises:
        DumpError: a tensor cannot be read.
    """
    shape = tuple(target.shape)
    numel = math.prod(shape)
    if shape != tuple(golden.shape) or not 1 < numel <= MAX_ELEMENTS:
        return None
    place = _Placement(shape, axes)
    sums = [np.zeros(place.num_bins) for _ in range(3)]
    counts = np.zeros(place.num_bins)
    worst, worst_at, energy = -1.0, 0, 0.0
    begin = 0
    for values, trusted in _pairs(target, golden):
        difference = np.abs(values - trusted)
        # Two equal infinities, or two NaN, do not differ, though their difference is NaN.
        difference[(values == trusted) | (np.isnan(values) & np.isnan(trusted))] = 0.0
        bins = place.bins(begin, len(values))
        for i, weights in enumerate((difference**2, values, trusted)):
            sums[i] += np.bincount(bins, weights, place.num_bins)
        counts += np.bincount(bins, minlength=place.num_bins)
        energy += float(np.sum(trusted[np.isfinite(trusted)] ** 2))
        largest = int(np.argmax(np.where(np.isnan(difference), np.inf, difference)))
        own = float(difference[largest])
        # NaN on one side only is worse than any finite difference.
        own = math.inf if math.isnan(own) else own
        if own > worst:
            worst, worst_at = own, begin + largest
        begin += len(values)
    with np.errstate(all="ignore"):
        size = math.sqrt(energy / numel)
        error = np.sqrt(sums[0] / counts) / (size or 1.0)
        means = [total / counts for total in sums[1:]]
    tokens = np.atleast_2d(token_errors(target, golden)) if has_tokens(shape) and not _is_parameter(slot) else None
    return TensorMap(
        unit=unit,
        node=node,
        slot=slot,
        axes=axes.names,
        shape=place.shape,
        sizes=place.sizes,
        worst=[int(i) for i in np.unravel_index(worst_at, shape)],
        error=_table(error, place.shape),
        target=_table(means[0], place.shape),
        golden=_table(means[1], place.shape),
        tokens=None if tokens is None else _largest_of_bins(tokens),
        token_sizes=None if tokens is None else (tokens.shape[0], tokens.shape[1]),
    )


def _pairs(target: TensorSource, golden: TensorSource) -> Iterator[tuple[_Floats, _Floats]]:
    """Yield both tensors in chunks, complex numbers as their magnitudes."""
    for values, trusted in zip(target.chunks(_CHUNK), golden.chunks(_CHUNK), strict=True):
        yield _floats(values), _floats(trusted)


def _floats(values: Any) -> _Floats:
    array: NDArray[Any] = np.asarray(values)
    if array.dtype.kind == "c":
        array = np.abs(array)
    if array.dtype.kind not in "fiub":
        raise DumpError(f"tensors of {array.dtype} have no map")
    return array.astype(np.float64)


class _Placement:
    """Assigns elements of a tensor to bins."""

    def __init__(self, shape: Sequence[int], axes: Axes) -> None:
        self._shape = shape
        self._along = [[(dim, shape[dim]) for dim in dims] for dims in (axes.rows, axes.columns)]
        sizes = [math.prod(size for _, size in dims) for dims in self._along]
        self.sizes = sizes[0], sizes[1]
        self.shape = min(sizes[0], MAX_BINS), min(sizes[1], MAX_BINS)
        self.num_bins = self.shape[0] * self.shape[1]
        self._strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]

    def bins(self, begin: int, num: int) -> NDArray[np.int64]:
        """Return the bins of consecutive elements in C order."""
        flat = np.arange(begin, begin + num, dtype=np.int64)
        places: list[NDArray[np.int64]] = []
        for dims, size, num_bins in zip(self._along, self.sizes, self.shape, strict=True):
            index = np.zeros(num, np.int64)
            for dim, length in dims:
                index = index * length + flat // self._strides[dim] % length
            places.append(index * num_bins // size)
        return places[0] * self.shape[1] + places[1]


def _is_parameter(slot: str) -> bool:
    return slot.startswith(Role.PARAMETERS.value)


def _largest_of_bins(errors: _Floats) -> list[list[Number]]:
    """Return the errors of tokens; if there are too many, the largest in each bin, so that outliers stay visible."""
    shape = min(errors.shape[0], MAX_BINS), min(errors.shape[1], MAX_TOKENS)
    for axis, num_bins in enumerate(shape):
        begins = [-(-i * errors.shape[axis] // num_bins) for i in range(num_bins)]
        errors = np.maximum.reduceat(errors, begins, axis)
    return _table(errors.ravel(), shape)


def _table(values: _Floats, shape: tuple[int, int]) -> list[list[Number]]:
    flat: list[float] = values.tolist()
    shown = [number(float(f"{value:.4g}")) for value in flat]
    return [shown[row * shape[1] : (row + 1) * shape[1]] for row in range(shape[0])]
