"""How the parts of one value form the whole: by recorded or declared placements, or by the other side's shape.

All three yield the elements that each part holds (`msprobe_core.compare.shards.assembly.Held`), from which the whole is
assembled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import msgspec

from msprobe_core.compare.shards.assembly import Assembly, CannotMerge, Held, assemble
from msprobe_core.fingerprint.shard_ranges import (
    PARTIAL,
    REPLICATE,
    SHARD,
    STRIDED_SHARD,
    Ranges,
    coordinates_of,
    held_ranges,
    mesh_shape,
    ranks_in,
    sizes_of,
)
from msprobe_core.model import Distribution, Placement


@dataclass(frozen=True, slots=True)
class AxisPlacement:
    """Placement of a value over one named axis of ranks: declared by a rule, or inferred from shapes.

    Attributes:
        axis: Name of the axis, such as ``tp``.
        placement: ``Shard``, ``Replicate`` or ``Partial``; a negative dimension counts from the last.
        ratio: For a shard, relative sizes of the blocks of the dimension, each of which is sharded separately, as in a
            fused weight.
    """

    axis: str
    placement: Placement
    ratio: tuple[int, ...] = (1,)


@dataclass(frozen=True, slots=True)
class MeshCoordinate:
    """Coordinate of a rank along each axis; it is 0 on axes that are not listed.

    Attributes:
        places: Pairs of axis and coordinate, from 0.
    """

    places: tuple[tuple[str, int], ...] = ()

    def on(self, axis: str) -> int:
        """Return the coordinate on an axis."""
        return dict(self.places).get(axis, 0)


class _Fields(msgspec.Struct):
    dim: int | None = None
    reduce_op: str | None = None
    split_factor: int | None = None


class _Record(msgspec.Struct):
    device_mesh: list[Any]
    placements: list[dict[str, _Fields]]
    local_shape: tuple[int, ...] | None = None
    local_offset: tuple[int, ...] | None = None


@lru_cache(maxsize=4096)
def recorded(text: str, shape: tuple[int, ...], rank: int) -> Distribution | CannotMerge:
    """Return a distribution from its text in a frame.

    Args:
        text: JSON.
        shape: Shape of the whole.
        rank: Rank of the part, from which the part's shape follows if it was not recorded.
    """
    try:
        record = msgspec.json.decode(text, type=_Record)
        placements = tuple(
            Placement(kind, fields.dim, fields.reduce_op, fields.split_factor)
            for placement in record.placements
            for kind, fields in placement.items()
        )
        if not _is_mesh(record.device_mesh):
            return CannotMerge("its device mesh is malformed")
        found = Distribution(_nested(record.device_mesh), placements, record.local_shape or (), record.local_offset)
        if record.local_shape is None:
            held = held_ranges(found, shape, rank)
            found = msgspec.structs.replace(found, local_shape=() if held is None else sizes_of(held))
    except msgspec.MsgspecError as error:
        return CannotMerge(f"its placements are malformed ({error})")
    return found


def _is_mesh(mesh: Any, depth: int = 0) -> bool:
    """Whether nested lists contain ranks innermost, and lists of equal length at each level."""
    parts = cast("list[Any]", mesh)
    if not parts or depth > _MAX_MESH_DIMS:
        return False
    if all(isinstance(part, list) for part in parts):
        return len({len(part) for part in parts}) == 1 and all(_is_mesh(part, depth + 1) for part in parts)
    return all(isinstance(part, int) and not isinstance(part, bool) for part in parts)


_MAX_MESH_DIMS = 16


def _nested(mesh: Any) -> Any:
    return tuple(_nested(part) for part in cast("list[Any]", mesh)) if isinstance(mesh, list) else mesh


def assemble_recorded(
    shape: tuple[int, ...],
    parts: Sequence[int],
    ranks: Sequence[int],
    texts: Sequence[str],
    *,
    are_meshes_alike: bool = False,
) -> Assembly | CannotMerge:
    """Return how the parts of a distributed tensor form it, from the placements that each rank has recorded.

    Args:
        shape: Shape of the whole.
        parts: Numbers of the parts.
        ranks: Rank of each part.
        texts: Record of each part.
        are_meshes_alike: Whether ranks of other meshes hold the same tensor, as for parameters, which are equal for all
            data; otherwise they hold other tensors, and that of the first mesh is used.
    """
    by_mesh: dict[tuple[int, ...], list[tuple[int, int, Distribution]]] = {}
    for part, rank, text in zip(parts, ranks, texts, strict=True):
        spread = recorded(text, shape, rank)
        if isinstance(spread, CannotMerge):
            return spread
        by_mesh.setdefault(tuple(ranks_in(spread.device_mesh)), []).append((part, rank, spread))
    made = [_assemble_mesh(shape, own) for own in by_mesh.values()]
    first = made[0]
    if isinstance(first, CannotMerge) or len(made) == 1 or not are_meshes_alike:
        return first
    copies: dict[Any, list[int]] = {}
    for one in made:
        for piece in () if isinstance(one, CannotMerge) else one.pieces:
            copies.setdefault((piece.term, piece.blocks), []).extend((piece.part, *piece.copies))
    pieces = tuple(replace(piece, copies=tuple(copies[piece.term, piece.blocks][1:])) for piece in first.pieces)
    return replace(first, pieces=pieces)


def _assemble_mesh(shape: tuple[int, ...], holders: Sequence[tuple[int, int, Distribution]]) -> Assembly | CannotMerge:
    """Return how the parts of one mesh form a tensor; ``holders`` has number, rank and placements of each."""
    spread = holders[0][2]
    if any(other.placements != spread.placements for _, _, other in holders):
        return CannotMerge("its ranks say different things of how it is placed")
    unknown = {one.kind for one in spread.placements} - {SHARD, STRIDED_SHARD, REPLICATE, PARTIAL}
    if unknown:
        return CannotMerge(f"its placement is {', '.join(sorted(unknown))}, from which nothing follows for the whole")
    reductions = {one.reduce_op for one in spread.placements if one.kind == PARTIAL}
    if len(reductions) > 1:
        return CannotMerge(f"several reductions are pending, {' and '.join(sorted(map(str, reductions)))}")
    held: list[Held] = []
    for part, rank, own in holders:
        ranges = held_ranges(own, shape, rank)
        if ranges is None:
            if coordinates_of(own.device_mesh, rank) is None:
                return CannotMerge(f"rank {rank} is not in its mesh {ranks_in(own.device_mesh)}")
            return CannotMerge("its placements do not fit its mesh and its shape")
        if sizes_of(ranges) != tuple(own.local_shape):
            return CannotMerge(
                f"rank {rank} holds {list(own.local_shape)} of it, where its placements say {list(sizes_of(ranges))}"
            )
        where = coordinates_of(own.device_mesh, rank) or ()
        term = tuple(i for i, one in zip(where, own.placements, strict=True) if one.kind == PARTIAL)
        held.append(Held(part, ranges, term))
    made = assemble(shape, held, next(iter(reductions), None))
    terms = [n for n, one in zip(mesh_shape(spread.device_mesh), spread.placements, strict=True) if one.kind == PARTIAL]
    if isinstance(made, Assembly) and len({one.term for one in held}) == math.prod(terms):
        return made
    missing = sorted(set(ranks_in(spread.device_mesh)) - {rank for _, rank, _ in holders})
    if missing:
        return CannotMerge(f"the parts of rank {', '.join(map(str, missing[:4]))} are not there")
    return made


def assemble_declared(
    placements: Sequence[AxisPlacement],
    parts: Sequence[int],
    places: Sequence[MeshCoordinate],
    shapes: Sequence[tuple[int, ...]],
) -> Assembly | CannotMerge:
    """Return how plain tensors on several ranks form one.

    Args:
        placements: Placement over each axis of ranks; over other axes they are copies.
        parts: Numbers of the parts.
        places: Coordinate of each part.
        shapes: Shape of each part; sizes may differ along a sharded dimension.
    """
    num_dims = len(shapes[0])
    if any(len(shape) != num_dims for shape in shapes):
        return CannotMerge(f"its parts have different numbers of dimensions, {' and '.join(_texts(shapes))}")
    cuts: dict[int, AxisPlacement] = {}
    for along in placements:
        if along.placement.kind == SHARD and (declared := along.placement.dim) is not None:
            dim = declared + (num_dims if declared < 0 else 0)
            if not 0 <= dim < num_dims or dim in cuts:
                return CannotMerge(f"it is declared to be cut along dimension {declared}, and its shape is {shapes[0]}")
            cuts[dim] = along
    along_dims: list[_Cut] = []
    for dim in range(num_dims):
        cut = _Cut.of(cuts.get(dim), places, [shape[dim] for shape in shapes])
        if cut is None:
            return CannotMerge(f"its parts have shapes that do not fit together, {' and '.join(_texts(shapes))}")
        along_dims.append(cut)
    terms = [along.axis for along in placements if along.placement.kind == PARTIAL]
    held = [
        Held(part, tuple(cut.ranges(place) for cut in along_dims), tuple(place.on(axis) for axis in terms))
        for part, place in zip(parts, places, strict=True)
    ]
    return assemble(tuple(cut.size for cut in along_dims), held, "sum" if terms else None)


def _texts(shapes: Sequence[tuple[int, ...]]) -> list[str]:
    return [str(list(shape)) for shape in dict.fromkeys(shapes)]


@dataclass(frozen=True, slots=True)
class _Cut:
    """One dimension of a tensor: the sizes of the parts along an axis of ranks, or the size that all share."""

    along: AxisPlacement | None
    sizes: Mapping[int, int]

    @staticmethod
    def of(along: AxisPlacement | None, places: Sequence[MeshCoordinate], sizes: Sequence[int]) -> _Cut | None:
        """Return the cut; ``None`` if parts at one coordinate have different sizes, or do not divide into blocks."""
        found: dict[int, int] = {}
        for place, size in zip(places, sizes, strict=True):
            if found.setdefault(0 if along is None else place.on(along.axis), size) != size:
                return None
        if along is not None and any(size % sum(along.ratio) for size in found.values()):
            return None
        return _Cut(along, dict(sorted(found.items())))

    @property
    def size(self) -> int:
        """Size of the whole."""
        return sum(self.sizes.values())

    def ranges(self, place: MeshCoordinate) -> Ranges:
        """Return the ranges that the part at a coordinate holds."""
        own = 0 if self.along is None else place.on(self.along.axis)
        ratio = (1,) if self.along is None else self.along.ratio
        unit, whole = sum(ratio), self.size
        before = sum(size for number, size in self.sizes.items() if number < own)
        found: list[tuple[int, int]] = []
        passed = 0
        for share in ratio:
            begin = (passed * whole + share * before) // unit
            found.append((begin, begin + share * self.sizes[own] // unit))
            passed += share
        return tuple((begin, end) for begin, end in found if end > begin)


def axis_cut_to(
    shapes: Sequence[tuple[int, ...]], places: Sequence[MeshCoordinate], axes: Sequence[str], whole: tuple[int, ...]
) -> AxisPlacement | None:
    """Return the axis and dimension along which parts are sharded, if the whole's shape determines them.

    ``None`` if the sizes fit no axis, or several.
    """
    if any(len(shape) != len(whole) for shape in shapes):
        return None
    different = {dim for shape in shapes for dim, size in enumerate(shape) if size != whole[dim]}
    if len(different) != 1:
        return None
    dim = different.pop()
    fitting: list[AxisPlacement] = []
    for axis in axes:
        sizes: dict[int, int] = {}
        is_sound = all(
            sizes.setdefault(place.on(axis), shape[dim]) == shape[dim]
            for place, shape in zip(places, shapes, strict=True)
        )
        if is_sound and len(sizes) > 1 and sum(sizes.values()) == whole[dim]:
            fitting.append(AxisPlacement(axis, Placement(SHARD, dim)))
    return fitting[0] if len(fitting) == 1 else None
