"""The part of a distributed tensor that a rank holds, as ranges along each dimension, computed from its placements.

Placements are applied from left to right, each to the result of the previous ones. ``Shard`` splits like
``torch.chunk``: into pieces of equal size, rounded up, so that the last ones are smaller or empty. ``StridedShard``
splits into ``split_factor`` pieces first and takes its share of each; it describes a tensor that was sharded for tensor
parallelism before it was sharded for FSDP. Source: ``torch/distributed/tensor/placement_types.py`` of PyTorch 2.13,
whose ``compute_local_shape_and_global_offset`` computes the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

from msprobe_core.model import Distribution, Placement

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Begin and end of each run of indices along one dimension, in the order in which a rank holds them; none is empty."""

_MAX_FACTOR = 1 << 16
"""A split factor larger than the number of ranks in any mesh indicates a damaged file."""

SHARD, STRIDED_SHARD, REPLICATE, PARTIAL = "Shard", "StridedShard", "Replicate", "Partial"


def coordinates_of(device_mesh: Sequence[Any], rank: int) -> tuple[int, ...] | None:
    """Return the coordinates of a rank in a nested list of ranks; ``None`` if the list does not contain it."""
    for i, part in enumerate(device_mesh):
        if isinstance(part, int):
            if part == rank:
                return (i,)
        elif (inner := coordinates_of(cast("Sequence[Any]", part), rank)) is not None:
            return (i, *inner)
    return None


def mesh_shape(device_mesh: Sequence[Any]) -> tuple[int, ...]:
    """Return the sizes of a nested list, taken from its first elements."""
    sizes: list[int] = []
    level: Any = device_mesh
    while isinstance(level, list | tuple):
        part = cast("Sequence[Any]", level)
        sizes.append(len(part))
        if not part:
            break
        level = part[0]
    return tuple(sizes)


def ranks_in(device_mesh: Any) -> list[int]:
    """Return all ranks in a nested list."""
    if isinstance(device_mesh, int):
        return [device_mesh]
    return [rank for part in cast("Sequence[Any]", device_mesh) for rank in ranks_in(part)]


def held_ranges(distribution: Distribution, shape: Sequence[int], rank: int) -> tuple[Ranges, ...] | None:
    """Return the indices that a rank's part has along each dimension.

    Args:
        distribution: How the tensor is distributed.
        shape: Shape of the whole tensor.
        rank: The rank.

    Returns: one `Ranges` per dimension; ``None`` if the rank is not in the mesh, or if the kind of a placement does not
        determine where the elements are.
    """
    where = coordinates_of(distribution.device_mesh, rank)
    sizes = mesh_shape(distribution.device_mesh)
    if where is None or len(where) != len(distribution.placements):
        return None
    held: list[Ranges] = [((0, size),) if size else () for size in shape]
    for placement, index, num_parts in zip(distribution.placements, where, sizes, strict=True):
        if placement.kind in (REPLICATE, PARTIAL):
            continue
        dim = placement.dim
        if placement.kind not in (SHARD, STRIDED_SHARD) or dim is None or not -len(held) <= dim < len(held):
            return None
        factor = placement.split_factor if placement.kind == STRIDED_SHARD else 1
        if factor is None:
            factor = _later_parts(distribution.placements, sizes, placement)
        if not 0 < factor <= _MAX_FACTOR:
            return None
        held[dim] = _cut(held[dim], factor, index, num_parts)
    return tuple(held)


def is_block(held: Sequence[Ranges]) -> bool:
    """Whether a part is a single non-empty block of the whole tensor."""
    return all(len(ranges) == 1 for ranges in held)


def sizes_of(held: Sequence[Ranges]) -> tuple[int, ...]:
    """Return the shape of a part."""
    return tuple(sum(end - begin for begin, end in ranges) for ranges in held)


def local_offset(distribution: Distribution, shape: Sequence[int], rank: int) -> tuple[int, ...] | None:
    """Return the coordinates of the first element of a rank's part.

    ``None`` if the part is not a single block of the whole tensor, or if ``distribution.local_shape`` contradicts it.
    """
    held = held_ranges(distribution, shape, rank)
    if held is None or not is_block(held) or sizes_of(held) != tuple(distribution.local_shape):
        return None
    return tuple(ranges[0][0] for ranges in held)


def _later_parts(placements: Sequence[Placement], sizes: Sequence[int], placement: Placement) -> int:
    """Return an unrecorded split factor: the number of parts into which later placements split the dimension."""
    later = placements[placements.index(placement) + 1 :]
    later_sizes = sizes[len(sizes) - len(later) :]
    return math.prod(size for one, size in zip(later, later_sizes, strict=True) if one.dim == placement.dim)


def _cut(ranges: Ranges, factor: int, index: int, num_parts: int) -> Ranges:
    size = sum(end - begin for begin, end in ranges)
    taken: list[tuple[int, int]] = []
    for piece_begin, piece_end in _chunks(0, size, factor):
        begin, end = _chunks(piece_begin, piece_end, num_parts)[index]
        taken += _between(ranges, begin, end)
    return tuple(taken)


def _chunks(begin: int, end: int, num_parts: int) -> list[tuple[int, int]]:
    step = -(-(end - begin) // max(num_parts, 1))
    return [(min(end, begin + i * step), min(end, begin + (i + 1) * step)) for i in range(num_parts)]


def _between(ranges: Ranges, begin: int, end: int) -> list[tuple[int, int]]:
    """Return the indices at positions ``begin`` to ``end`` of the concatenated ranges."""
    found: list[tuple[int, int]] = []
    passed = 0
    for first, last in ranges:
        low, high = max(begin, passed), min(end, passed + last - first)
        if low < high:
            found.append((first + low - passed, first + high - passed))
        passed += last - first
    return found
