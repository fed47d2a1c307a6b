"""A 64-bit hash of a tensor's bits that depends on positions and adds up over shards."""

from __future__ import annotations

import math
from typing import Any

from msprobe_core.fingerprint.arrays import GAMMA, Arrays, NumpyArrays, mix, signed
from msprobe_core.fingerprint.place import Place, is_run, pieces_of, runs_of, squeezed


def hash_of(values: Any, arrays: Arrays | None = None, place: Place | None = None) -> Any:
    """Return the sum over all elements of ``mix(bits + GAMMA * (index + 1))``, modulo 2**64.

    ``bits`` are the element's bits, read as a signed integer; a complex element counts as two, its real and its
    imaginary part. ``index`` counts elements in row-major order, so the memory layout does not matter. The sum is one
    of integers, so the order of summation does not matter either. Dtype and shape are not part of the hash. A tensor
    without elements has the hash 0.

    Changing one element always changes the hash, because `mix` is a bijection and nothing else in the sum changes. Two
    tensors that differ in more elements have equal hashes only by chance: if `mix` is regarded as a random function,
    the probability is 2**-64, so that among a million pairs of different tensors one is taken for equal with
    probability 5e-14. This requires a term that occurs in only one of the two sums, hence different arguments of `mix`
    at different positions. For elements of up to 32 bits the arguments differ wherever the positions are less than
    2**30 apart, because no smaller multiple of ``GAMMA`` comes closer than 2**32 to a multiple of 2**64; for wider
    elements they are equal only by chance. None of this holds against an adversary who searches for a collision: the
    function is not secret.

    Args:
        values: An array of any dtype and layout.
        arrays: Its library; NumPy if not given.
        place: Position of ``values`` in a larger tensor; by default ``values`` is a whole tensor. The hashes of the
            blocks of a tensor add up to the tensor's hash, modulo 2**64.

    Returns: int64 ``[1]`` in the same library and on the same device.

    Raises:
        ValueError: ``place`` and ``values`` have different numbers of dimensions.

    Source: incremental hashing by addition, Bellare and Micciancio, *A New Paradigm for Collision-Free Hashing*,
    EUROCRYPT 1997 (AdHash); for the mixing see `mix`.
    """
    arrays = arrays or NumpyArrays()
    place = place or Place.of_whole(values.shape)
    parts = arrays.reals(values)
    if parts.ndim > values.ndim:
        place = place.of_parts(2)
    words, place = squeezed(arrays.words(parts), place)
    total = arrays.ramp(1) + 0
    if is_run(words, place):
        ramp = arrays.ramp(min(arrays.chunk, math.prod(words.shape)), GAMMA)
        for vector, begin in runs_of(words, place.offset, arrays.chunk):
            terms = ramp[: vector.shape[0]] + vector
            terms += signed(GAMMA * (begin + 1))
            total += mix(terms, arrays).reshape(1, -1).sum(1)
    else:
        for piece, where in pieces_of(words, place, arrays.chunk):
            terms = _positions(piece.shape, where, arrays) + piece
            total += mix(terms, arrays).reshape(1, -1).sum(1)
    return total


def _positions(shape: Any, place: Place, arrays: Arrays) -> Any:
    """Return ``GAMMA * (index + 1)`` of each element, broadcast from one vector per dimension."""
    positions: Any = arrays.ramp(1) + signed(GAMMA * (place.offset + 1))
    for dim in reversed(range(len(shape))):
        along = arrays.ramp(shape[dim], signed(GAMMA * place.strides[dim]))
        positions = along.reshape(-1, *[1] * (len(shape) - 1 - dim)) + positions
    return positions
