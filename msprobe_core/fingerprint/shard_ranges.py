"""Which part of a distributed tensor a rank holds: ranges along each dimension, from the placements alone.

Placements are applied from left to right, each to what those before it have left. ``Shard`` cuts as ``torch.chunk``
does: into pieces of the same size, rounded up, so that the last are smaller, or empty. ``StridedShard`` cuts into
``split_factor`` pieces first and takes its share of each, which is what a tensor looks like that was cut for tensor
parallelism before it was cut for FSDP. Source: ``torch/distributed/tensor/placement_types.py`` of PyTorch 2.13, whose
``compute_local_shape_and_global_offset`` says the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

from msprobe_core.model import Distribution, Placement

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Begin and end of each run of indices along one dimension, in the order in which a rank holds them; none is empty."""

_MAX_FACTOR = 1 << 16
"""More pieces than any mesh has ranks are no split factor, but a damaged file."""

SHARD, STRIDED_SHARD, REPLICATE, PARTIAL = "Shard", "StridedShard", "Replicate", "Partial"


def coordinates_of(device_mesh: Sequence[Any], rank: int) -> tuple[int, ...] | None:
    """Return where a rank stands in a nested list of ranks; ``None`` if it does not."""
    for i, part in enumerate(device_mesh):
        if isinstance(part, int):
            if part == rank:
                return (i,)
        elif (inner := coordinates_of(cast("Sequence[Any]", part), rank)) is not None:
            return (i, *inner)
    return None


def mesh_shape(device_mesh: Sequence[Any]) -> tuple[int, ...]:
    """Return the sizes of a nested list."""
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
    """Return all ranks of a nested list."""
    if isinstance(device_mesh, int):
        return [device_mesh]
    return [rank for part in cast("Sequence[Any]", device_mesh) for rank in ranks_in(part)]


def held_ranges(distribution: Distribution, shape: Sequence[int], rank: int) -> tuple[Ranges, ...] | None:
    """Return what a rank holds: of each dimension the indices that its part has.

    Args:
        distribution: How the tensor is spread.
        shape: Of the whole tensor.
        rank: Which rank.

    Returns: one `Ranges` for each dimension; ``None`` if the rank is not in the mesh, or the placements are of a kind
        that says nothing of where elements are.
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
    """Whether a part is one block of the whole, with elements."""
    return all(len(ranges) == 1 for ranges in held)


def sizes_of(held: Sequence[Ranges]) -> tuple[int, ...]:
    """Return the shape of a part."""
    return tuple(sum(end - begin for begin, end in ranges) for ranges in held)


def local_offset(distribution: Distribution, shape: Sequence[int], rank: int) -> tuple[int, ...] | None:
    """Return the coordinates of the first element of a rank's part.

    ``None`` if its part is not one block of the whole, or is not as large as ``distribution.local_shape`` says.
    """
    held = held_ranges(distribution, shape, rank)
    if held is None or not is_block(held) or sizes_of(held) != tuple(distribution.local_shape):
        return None
    return tuple(ranges[0][0] for ranges in held)


def _later_parts(placements: Sequence[Placement], sizes: Sequence[int], placement: Placement) -> int:
    """Return a split factor that was not recorded: the number of parts that later placements make of the dimension."""
    later = placements[placements.index(placement) + 1 :]
    behind = sizes[len(sizes) - len(later) :]
    return math.prod(size for one, size in zip(later, behind, strict=True) if one.dim == placement.dim)


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
    """Return what lies from ``begin`` to ``end`` where the ranges are counted through."""
    found: list[tuple[int, int]] = []
    passed = 0
    for first, last in ranges:
        low, high = max(begin, passed), min(end, passed + last - first)
        if low < high:
            found.append((first + low - passed, first + high - passed))
        passed += last - first
    return found
