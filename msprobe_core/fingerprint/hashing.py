"""A 64-bit hash of a tensor's bits that knows positions, and that shards add up to."""

from __future__ import annotations

import math
from typing import Any

from msprobe_core.fingerprint.arrays import GAMMA, Arrays, NumpyArrays, mix, signed
from msprobe_core.fingerprint.place import Place, is_run, pieces_of, runs_of, squeezed


def hash_of(values: Any, arrays: Arrays | None = None, place: Place | None = None) -> Any:
    """Return the sum over all elements of ``mix(bits + GAMMA * (index + 1))``, modulo 2**64.

    ``bits`` are the element's own, read as a signed integer; a complex element counts as two, its real and its
    imaginary part. ``index`` counts elements in row-major order, so the memory's layout does not matter; neither
    does, for integers, the order of summation. Dtype and shape are not part of it. A tensor without elements has 0.

    A change of one element always changes the hash, because `mix` is a bijection and nothing else in the sum changes.
    Of any other two tensors the hashes are equal by chance only: with `mix` taken for a random function, with
    probability 2**-64, so that among a million pairs of different tensors one is taken for equal with probability
    5e-14. That needs a term in one sum which the other has not, so different arguments of `mix` at different
    positions: for elements of up to 32 bits they are different wherever less than 2**30 elements lie between, because
    no multiple of ``GAMMA`` before that comes closer than 2**32 to a multiple of 2**64; for wider ones they are equal
    by chance. Nothing of this holds against somebody who looks for a collision: the function is not secret.

    Args:
        values: An array of any dtype and layout.
        arrays: Its library; NumPy if not given.
        place: Where ``values`` lies in a larger tensor; the hashes of blocks that make up a tensor add up to its own,
            modulo 2**64. A tensor of its own if not given.

    Returns: int64 ``[1]`` in the same library and on the same device.

    Raises:
        ValueError: ``place`` does not have the dimensions of ``values``.

    Source: incremental hashing by addition, Bellare and Micciancio, *A New Paradigm for Collision-Free Hashing*,
    EUROCRYPT 1997 (AdHash); the mixing as `mix` says.
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
    """Return ``GAMMA * (index + 1)`` of each element, broadcast from one vector for each dimension."""
    positions: Any = arrays.ramp(1) + signed(GAMMA * (place.offset + 1))
    for dim in reversed(range(len(shape))):
        along = arrays.ramp(shape[dim], signed(GAMMA * place.strides[dim]))
        positions = along.reshape(-1, *[1] * (len(shape) - 1 - dim)) + positions
    return positions
