"""What one pass over a tensor tells of it: a number for each row and column, and whether an initialiser made it.

The number of a row is the sum of its elements times fixed random weights, so two rows have the same number only if they
are equal, but for chance; the number of a column is the same down its rows. Thus the numbers of a tensor's rows are
those of the columns of its transpose, and reordered rows have reordered numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from msprobe_core.checkpoint.boxes import CHUNK_BYTES, Array, boxes_of, read_values
from msprobe_core.checkpoint.contents import LogicalTensor

_MAX_LINES = 1 << 22
"""Most rows or columns that numbers are kept for."""

_PERIOD = 65521
_SEED = 0x6D7370


@dataclass(frozen=True, kw_only=True)
class Signature:
    """What was found of one tensor, seen as a matrix; see `split_of`.

    Attributes:
        rows: A number for each row; ``None`` if there are too many.
        columns: A number for each column; ``None`` if there are too many.
        numel: Number of elements.
        mean: Mean.
        std: Standard deviation.
        low: Minimum.
        high: Maximum.
        kurtosis: Fourth central moment over the squared variance: 3 for a normal distribution, 1.8 for a uniform one.
        row_spread: Variance of the rows' mean squares, over what independent elements would have; 1 for an initialiser.
        column_spread: The same for columns.
    """

    rows: Array | None
    columns: Array | None
    numel: int
    mean: float
    std: float
    low: float
    high: float
    kurtosis: float
    row_spread: float
    column_spread: float

    @property
    def is_constant(self) -> bool:
        """Whether all elements are equal."""
        return self.numel > 0 and self.low == self.high

    @property
    def looks_initial(self) -> bool:
        """Whether the elements look independent and of one normal, truncated normal or uniform distribution of mean 0.

        Trained weights do not: their rows and columns have different norms. With fewer than 1024 elements it cannot be
        told.
        """
        if self.numel < _LEAST_ELEMENTS or self.std == 0 or not math.isfinite(self.kurtosis):
            return False
        is_centred = abs(self.mean) * math.sqrt(self.numel) < 5 * self.std
        slack = 5 * math.sqrt(24 / self.numel)
        is_shaped = 1.8 - slack < self.kurtosis < 3 + slack
        return is_centred and is_shaped and all(s < _MOST_SPREAD for s in (self.row_spread, self.column_spread))

    @property
    def distribution(self) -> str:
        """Name of the distribution that an initialiser may have drawn from."""
        return "uniform" if self.kurtosis < _BETWEEN_KURTOSIS else "normal"


_LEAST_ELEMENTS = 1024
_MOST_SPREAD = 1.5
_BETWEEN_KURTOSIS = 2.1


def split_of(shape: Sequence[int]) -> int:
    """Return how many dimensions index the rows of a tensor seen as a matrix; the others index its columns.

    Columns are as few dimensions as have some elements: so the rows of a stack of matrices are those of the matrices.
    """
    inner = (d for d in range(len(shape) - 1, 1, -1) if math.prod(shape[d:]) >= _LEAST_COLUMNS)
    return next(inner, min(1, len(shape)))


_LEAST_COLUMNS = 32


def signature_of(tensor: LogicalTensor, rounded_to: str | None = None) -> Signature:
    """Read a tensor once.

    Args:
        tensor: The tensor; of dtypes without numbers nothing is found.
        rounded_to: A dtype to round the elements to first, that of a coarser tensor to compare with.

    Raises:
        DumpError: it cannot be read.
    """
    num_rows = math.prod(tensor.shape[: split_of(tensor.shape)])
    num_columns = tensor.numel // num_rows if num_rows else 0
    rows = np.zeros(num_rows) if num_rows <= _MAX_LINES else None
    columns = np.zeros(num_columns) if num_columns <= _MAX_LINES else None
    row_squares, column_squares = np.zeros(num_rows if rows is not None else 0), np.zeros(0)
    if columns is not None:
        column_squares = np.zeros(num_columns)
    moments = np.zeros(4)
    low, high = math.inf, -math.inf
    for row, column, block in _blocks(tensor, num_columns):
        values = block if rounded_to is None else rounded(block, rounded_to)
        wide: Any = values.astype(np.float64)
        size, width = wide.shape
        squares: Any = wide * wide
        if rows is not None:
            rows[row : row + size] += wide @ weights(column, width)
            row_squares[row : row + size] += squares.sum(axis=1)
        if columns is not None:
            columns[column : column + width] += weights(row, size) @ wide
            column_squares[column : column + width] += squares.sum(axis=0)
        cubes: Any = np.einsum("ij,ij->", squares, wide)
        powers: list[Any] = [wide.sum(), squares.sum(), cubes, np.vdot(squares, squares)]
        moments += powers
        low, high = min(low, float(wide.min())), max(high, float(wide.max()))
    mean, variance, kurtosis = _moments(moments, tensor.numel)
    return Signature(
        rows=rows, columns=columns, numel=tensor.numel, mean=mean, std=math.sqrt(variance),
        low=low, high=high, kurtosis=kurtosis,
        row_spread=_spread(row_squares, num_columns, kurtosis),
        column_spread=_spread(column_squares, num_rows, kurtosis),
    )  # fmt: skip


def _moments(sums: Array, numel: int) -> tuple[float, float, float]:
    """Return mean, variance and kurtosis from the sums of the first four powers."""
    if numel == 0 or not np.isfinite(sums).all():
        return 0.0, 0.0, math.nan
    first, second, third, fourth = (float(s) / numel for s in sums)
    variance = max(0.0, second - first**2)
    central = fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4
    return first, variance, central / variance**2 if variance else math.nan


def _spread(squares: Array, length: int, kurtosis: float) -> float:
    """Return the relative variance of lines' mean squares, over ``(kurtosis - 1) / length`` of independent elements."""
    if squares.size < 2 or length < 2 or not math.isfinite(kurtosis) or kurtosis <= 1:
        return 1.0
    mean = float(squares.mean())
    # Of few lines the variance is uncertain by sqrt(2 / lines): what chance explains is taken off.
    found = float(squares.var()) / mean**2 * length / (kurtosis - 1) if mean else 1.0
    return found / (1 + 4 * math.sqrt(2 / squares.size))


def _blocks(tensor: LogicalTensor, num_columns: int) -> Iterator[tuple[int, int, Array]]:
    """Yield a tensor as matrices, each with its first row and column."""
    for box, flat in boxes_of(tensor.shape, CHUNK_BYTES // 4):
        values: Any = read_values(tensor, box)
        row, column = divmod(flat, max(1, num_columns))
        size = math.prod(box.sizes)
        is_whole_rows = column == 0 and size % max(1, num_columns) == 0
        width = num_columns if is_whole_rows else size
        yield row, column, values.reshape(-1, width) if size else values.reshape(0, 1)


def weights(begin: int, size: int) -> Array:
    """Return the random weights of some indices: the same for rows and for columns."""
    index = np.arange(begin, begin + size)
    slow = index // _PERIOD
    values = _table()[index % _PERIOD]
    return values if not slow.any() else values * (1 + 0.5 * _table()[slow % _PERIOD])


@cache
def _table() -> Array:
    return np.random.default_rng(_SEED).standard_normal(_PERIOD)


def rounded(values: Array, dtype: str) -> Array:
    """Return numbers rounded to a dtype, to nearest; of dtypes other than bfloat16, float16 and float32 as they are."""
    if dtype in ("float16", "float32") and values.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return values.astype(dtype)
    if dtype == "bfloat16" and values.dtype.kind == "f":
        single: Any = np.ascontiguousarray(values, np.float32)
        bits: Any = single.view(np.uint32)
        up = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
        return ((bits + up) & np.uint32(0xFFFF0000)).view(np.float32)
    return values


def permutation_of(target: Array | None, golden: Array | None) -> Array | None:
    """Return for each line of the target the golden line with the same number; ``None`` if a line has no partner."""
    if target is None or golden is None or target.size != golden.size or not target.size:
        return None
    scale = float(np.abs(golden).max())
    if not math.isfinite(scale) or scale == 0 or not np.isfinite(target).all():
        return None
    # Equal lines may have numbers that differ in the last bits, and must stay in order.
    own: Any = np.round(target / scale, 11)
    other: Any = np.round(golden / scale, 11)
    first, second = np.argsort(own, kind="stable"), np.argsort(other, kind="stable")
    if np.abs(own[first] - other[second]).max() > _SAME_LINE:
        return None
    found = np.empty(target.size, np.int64)
    found[first] = second
    return found


_SAME_LINE = 1e-9
