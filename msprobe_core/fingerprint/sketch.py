"""A sketch of a tensor: 64 numbers, from which the distance of two tensors can be estimated.

The sketch is a linear map with random signs, the CountSketch of Charikar, Chen, Farach-Colton, *Finding Frequent Items
in Data Streams*, ICALP 2002: element ``i`` is added, with the sign ``s(i)``, to the number ``h(i)``. So sketches of
shards add up to that of the whole, the sketch of a difference is the difference of the sketches, and

    E ||S x||^2 = ||x||^2    and    Var ||S x||^2 = 2 * sum over i != j of P[h(i) = h(j)] * x_i^2 * x_j^2

for signs that are independent by fours (Alon, Matias, Szegedy, *The Space Complexity of Approximating the Frequency
Moments*, STOC 1996; with buckets, Thorup, Zhang, *Tabulation Based 4-Universal Hashing with Applications to Second
Moment Estimation*, SODA 2004). Where any two elements share a number with probability 1/64 at the most, the variance is
at most ``2/64 * ||x||^4``: the squared norm has a relative standard deviation of 0.177 at the most, the norm one of
half of that.

``h`` and ``s`` are made such that a library of arrays computes them in few passes and scatters nothing, which devices
do in any order. The index is ``65536 * block + 64 * row + column``.

* Each block is turned by a random number of rows, and the blocks are added up; then number ``(column + t(row)) % 64``
  takes the element, where ``t`` is a random arrangement of 16 times each of 0 to 63. Two elements of different blocks
  share a number with probability 1/64, counted out over turns and arrangements; two of one block never if they are in
  one row, and otherwise with probability 1/64 * 1024/1023 at the most, which the bound above neglects. A pattern that
  repeats would not do: the columns of a matrix, one of which may hold all the energy, lie at one place of every block.
* ``s(i) = a(block) * b(p) * c(block + p)``, where ``p`` is the place in the turned block, with three tables of random
  signs. They are independent by fours (Thorup, Zhang): if ``a`` and ``b`` cancel in a product over four elements, these
  are the corners of a rectangle of blocks and places, and then ``c`` at the smallest of the sums does not. Without
  ``c`` the variance for equal blocks is three times as large.

The tables come from SplitMix64 and a fixed seed, so that the map is the same in every framework and on every device.
The probabilities are over seeds; the tests draw others.

NaN or Inf in a tensor makes NaN or Inf of each number that it is added to, so that nothing can be estimated; the counts
in the statistics tell.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from msprobe_core.fingerprint.arrays import GAMMA, Arrays, mix, signed
from msprobe_core.fingerprint.place import Place, is_run, spread_of, squeezed
from msprobe_core.native.reductions import SketchTables

SIZE = 64
"""How many numbers a sketch has."""

_ROWS = 1024
_BLOCK = _ROWS * SIZE
_SEED = 0x6D7370726F6265


class Sketcher:
    """Makes sketches of the arrays of one library on one device, whose tables it keeps: some 2 MB."""

    def __init__(self, arrays: Arrays, seed: int = _SEED) -> None:
        """Make the tables, on the device, without waiting for it.

        Args:
            arrays: The library.
            seed: Chooses the map. Sketches that were made with different ones cannot be compared.
        """
        self._arrays = arrays
        self._seed = seed
        self._num_blocks = 0
        self._tables: SketchTables | None = None
        self._place_signs = self._signs(0, _BLOCK)
        keys = self._random(1, _ROWS)
        self._ranks = (keys.reshape(-1, 1) > keys).sum(1)
        columns = arrays.ramp(SIZE)
        # For each row and number, where in the block the column stands that is added to it.
        self._sources = arrays.ramp(_ROWS).reshape(-1, 1) * SIZE + ((columns - self._ranks.reshape(-1, 1)) & SIZE - 1)
        self._prepare(1)
        self._first_signs = self._place_signs * self._sum_signs[:_BLOCK] * self._block_signs[:1]

    def sketch(self, values: Any, place: Place | None = None) -> Any:
        """Return the sketch of an array.

        The same for any layout in memory. Sums are kept in float64, or in float32 where the device has nothing wider,
        in an order that depends on nothing but the shape. A complex element counts as two.

        Args:
            values: An array of any dtype that ``Arrays.floats`` takes.
            place: Where ``values`` lies in a larger tensor; the sketches of blocks that make up a tensor add up to its
                own, but for rounding. A tensor of its own if not given.

        Returns: float32 ``[64]`` in the same library and on the same device.

        Raises:
            ValueError: ``place`` does not have the dimensions of ``values``, or does not hold it.
        """
        with np.errstate(invalid="ignore", over="ignore"):  # NumPy would warn the program of what it has itself
            return self._sketch(values, place or Place.of_whole(values.shape))

    def tables(self, num_elements: int) -> SketchTables:
        """Return NumPy's tables as the compiled kernels take them, for so many elements at least."""
        num_blocks = max(1, -(-num_elements // _BLOCK))
        if self._tables is None or num_blocks > self._num_blocks:
            self._prepare(num_blocks)
            signs = (self._place_signs, self._sum_signs, self._block_signs)
            numbers = (self._turns, self._ranks)
            self._tables = SketchTables(
                [*(table.astype(np.int8) for table in signs), *(table.astype(np.int64) for table in numbers)]
            )
        return self._tables

    def _sketch(self, values: Any, place: Place) -> Any:
        arrays = self._arrays
        parts = arrays.reals(values)
        if parts.ndim > values.ndim:
            place = place.of_parts(2)
        parts, place = squeezed(parts, place)
        size = math.prod(parts.shape)
        if place.offset == 0 and size <= _BLOCK and is_run(parts, place):
            return arrays.single(self._folded(arrays.floats(parts.reshape(-1)) * self._first_signs[:size]))
        total = arrays.zeros(_BLOCK)
        if size:
            for vector, begin in spread_of(parts, place, max(arrays.chunk, _BLOCK), arrays):
                total += self._added_up(arrays.floats(vector), begin)
        return arrays.single(self._folded(total * self._place_signs))

    def _added_up(self, vector: Any, begin: int) -> Any:
        """Return the sum of all blocks in a vector, each turned and with its signs but for those of the places."""
        arrays, size = self._arrays, vector.shape[0]
        first, lead = divmod(begin, _BLOCK)
        num_blocks = -(-(lead + size) // _BLOCK)
        if lead or size % _BLOCK:
            padded = arrays.zeros(num_blocks * _BLOCK)
            padded[lead : lead + size] = vector
            vector = padded
        self._prepare(first + num_blocks)
        blocks = slice(first, first + num_blocks)
        source = arrays.ramp(num_blocks).reshape(-1, 1) * _ROWS
        source = source + ((arrays.ramp(_ROWS) - self._turns[blocks].reshape(-1, 1)) & _ROWS - 1)
        turned = vector.reshape(-1, SIZE)[source.reshape(-1)].reshape(num_blocks, _BLOCK)
        turned = turned * arrays.windows(self._sum_signs, first, num_blocks, _BLOCK)
        turned *= self._block_signs[blocks].reshape(-1, 1)
        return turned[0] if num_blocks == 1 else turned.sum(0)

    def _folded(self, block: Any) -> Any:
        """Return the 64 sums of a block, or of its beginning."""
        rows = -(-block.shape[0] // SIZE)
        if block.shape[0] < rows * SIZE:
            padded = self._arrays.zeros(rows * SIZE)
            padded[: block.shape[0]] = block
            block = padded
        return block[self._sources[:rows]].sum(0)

    def _prepare(self, num_blocks: int) -> None:
        """Have tables for this many blocks at least."""
        if num_blocks <= self._num_blocks:
            return
        self._num_blocks = max(64, 1 << (num_blocks - 1).bit_length())
        self._tables = None
        self._block_signs = self._signs(2, self._num_blocks)
        self._sum_signs = self._signs(3, self._num_blocks + _BLOCK)
        self._turns = self._random(4, self._num_blocks) & _ROWS - 1
        self._turns[:1] = 0  # only differences count, and a tensor of one block need not be turned

    def _random(self, table: int, size: int) -> Any:
        return mix(self._arrays.ramp(size, GAMMA) + signed(self._seed + (table + 1 << 59)), self._arrays)

    def _signs(self, table: int, size: int) -> Any:
        is_negative = self._arrays.shift(self._random(table, size), 63)
        return self._arrays.zeros(size) + (1 - 2 * is_negative)
