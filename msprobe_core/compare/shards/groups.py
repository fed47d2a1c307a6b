"""Groups of values of several ranks that have the same assembly."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import polars as pl

from msprobe_core.compare.shards.assembly import Array, Assembly, CannotMerge, Held, assemble
from msprobe_core.compare.shards.declaration import Declaration
from msprobe_core.compare.shards.placement import AxisPlacement, assemble_declared, assemble_recorded, axis_cut_to
from msprobe_core.compare.shards.rank_rows import Union
from msprobe_core.compare.shards.replicas import agreement
from msprobe_core.model import Role
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import RowKind, sizes_in


@dataclass(frozen=True)
class _Cell:
    """The content of one part at the position of a value."""

    kind: str
    shape: tuple[int, ...]
    distribution: str | None
    is_complex: bool


class Groups:
    """Determines placements of values: as recorded, else as declared, else by the other side's shapes.

    Attributes:
        is_complex: Whether the group yielded last has complex elements.
    """

    def __init__(self, union: Union, declaration: Declaration, like: Sequence[Dump], terms: Collection[int]) -> None:
        """Begin.

        Args:
            union: All values.
            declaration: Declared placements of plain tensors.
            like: The other side of the comparison.
            terms: Values that are terms of a recorded sum.
        """
        self._union = union
        self._declaration = declaration
        self._like = like
        self._terms = terms
        self._cells: dict[str, int] = {}
        self._cell_list: list[_Cell] = []
        self.is_complex = False

    def all(self) -> Iterator[tuple[Array, Assembly | CannotMerge]]:
        """Yield groups of values with their common assembly."""
        union = self._union
        codes = [self._codes_of(number) for number in range(len(union.parts))]
        placements, placement_codes = self._placement_codes()
        shapes, shape_codes = self._like_shapes()
        is_parameter = (union.rows["role"] == Role.PARAMETERS.value).to_numpy()
        table = np.stack([*codes, placement_codes, shape_codes, is_parameter.astype(np.int64)], axis=1)
        unique: tuple[Array, Array] = np.unique(table, axis=0, return_inverse=True)
        numbers: Array = unique[1].reshape(-1)
        order = np.argsort(numbers, kind="stable")
        kinds: list[list[int]] = unique[0].tolist()
        ends = np.searchsorted(numbers[order], np.arange(len(kinds) + 1))
        for i, kind in enumerate(kinds):
            values = order[ends[i] : ends[i + 1]]
            *cells, placement, shape, is_parameter_kind = kind
            present = [part for part, code in enumerate(cells) if code >= 0]
            held = [self._cell_list[cells[part]] for part in present]
            if all(cell.kind != RowKind.TENSOR.value for cell in held):
                continue
            self.is_complex = any(cell.is_complex for cell in held)
            yield from self._assemble(
                values,
                present,
                held,
                None if placement < 0 else placements[placement],
                None if shape < 0 else shapes[shape],
                is_parameter=bool(is_parameter_kind),
            )

    def _codes_of(self, number: int) -> Array:
        """Return for each value a number for its content in a part, -1 if it is absent."""
        frame = self._union.parts[number].frame
        texts = frame.select(
            pl.concat_str(
                pl.col("kind").cast(pl.String),
                pl.col("shape").fill_null(""),
                pl.col("distribution").fill_null(""),
                pl.col("dtype").str.to_lowercase().str.contains("complex").fill_null(False).cast(pl.String),
                separator="\n",
            )
        ).to_series()
        for text in texts.unique().to_list():
            if text not in self._cells:
                kind, shape, distribution, is_complex = text.split("\n")
                self._cells[text] = len(self._cell_list)
                sizes = sizes_in(shape) if kind == RowKind.TENSOR.value else ()
                self._cell_list.append(_Cell(kind, sizes, distribution or None, is_complex == "true"))
        codes: Array = cast("Any", texts).replace_strict(self._cells, return_dtype=pl.Int64).to_numpy()
        index = self._union.index[:, number]
        return np.where(index >= 0, codes[np.maximum(index, 0)], -1) if len(codes) else np.full(len(index), -1)

    def _placement_codes(self) -> tuple[list[tuple[AxisPlacement, ...]], Array]:
        known: dict[tuple[AxisPlacement, ...], int] = {}
        codes = [
            -1 if placements is None else known.setdefault(tuple(placements), len(known))
            for placements in self._declaration.placements(self._union.rows, self._parents)
        ]
        return list(known), np.array(codes, np.int64)

    def _parents(self) -> Mapping[str, str | None]:
        parents: dict[str, str | None] = {}
        for part in self._union.parts:
            for entry, parent in part.dump.parents.items():
                own = part.names.get(entry, entry)
                parents.setdefault(own, None if parent is None else part.names.get(parent, parent))
        return parents

    def _like_shapes(self) -> tuple[list[tuple[int, ...]], Array]:
        """Return the shapes of the other side, and for each value the number of its shape, -1 if it is unknown."""
        size = self._union.rows.height
        if len(self._like) != 1:
            return [], np.full(size, -1)
        other = self._like[0].frame.filter(pl.col("kind") == RowKind.TENSOR.value)
        other = other.select("key", like="shape").unique("key", keep="first", maintain_order=True)
        found = self._union.rows.select("key").join(other, on="key", how="left", maintain_order="left")["like"]
        texts = found.drop_nulls().unique(maintain_order=True).to_list()
        numbers = {text: i for i, text in enumerate(texts)}
        codes: Any = cast("Any", found).replace_strict(numbers, default=-1, return_dtype=pl.Int64)
        return [sizes_in(text) for text in texts], codes.fill_null(-1).to_numpy()

    def _assemble(
        self,
        values: Array,
        present: Sequence[int],
        held: Sequence[_Cell],
        placements: Sequence[AxisPlacement] | None,
        like: tuple[int, ...] | None,
        *,
        is_parameter: bool,
    ) -> Iterator[tuple[Array, Assembly | CannotMerge]]:
        ranks = [self._union.parts[part].rank for part in present]
        if any(cell.kind != RowKind.TENSOR.value for cell in held):
            yield values, CannotMerge("some ranks have a tensor there and others have not")
        elif all(cell.distribution is not None for cell in held):
            texts = [cell.distribution or "" for cell in held]
            yield values, assemble_recorded(held[0].shape, present, ranks, texts, are_meshes_alike=is_parameter)
        elif any(cell.distribution is not None for cell in held):
            yield values, CannotMerge("some ranks have it as a distributed tensor and others have not")
        elif len(present) == 1:
            yield values, one_part(present[0], held[0].shape)
        else:
            shapes = [cell.shape for cell in held]
            yield from self._assemble_plain(values, present, shapes, placements, like, is_parameter=is_parameter)

    def _assemble_plain(
        self,
        values: Array,
        present: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        placements: Sequence[AxisPlacement] | None,
        like: tuple[int, ...] | None,
        *,
        is_parameter: bool,
    ) -> Iterator[tuple[Array, Assembly | CannotMerge]]:
        places = [self._declaration.place_of(self._union.parts[part].rank) for part in present]
        if placements is not None:
            declared = assemble_declared(placements, present, places, shapes)
            # The other side's shape is more reliable than a rule for a whole class of layers.
            if isinstance(declared, CannotMerge) or like is None or declared.shape == like or shapes[0] != like:
                yield values, declared
                return
        if like is not None and any(shape != like for shape in shapes):
            along = axis_cut_to(shapes, places, self._declaration.axes, like)
            if along is not None:
                yield values, assemble_declared([along], present, places, shapes)
                return
        is_alike = np.ones(len(values), np.bool_)
        if len(set(shapes)) > 1:
            is_alike[:] = False
        elif not (is_parameter and shapes[0] == like):  # whole parameters are replicas; differences are reported
            for part in present[1:]:
                is_alike &= agreement(self._union, values, present[0], part)
        whole = tuple(((0, n),) if n else () for n in shapes[0])
        yield values[is_alike], assemble(shapes[0], [Held(part, whole) for part in present])
        rest = values[~is_alike]
        is_term = self._are_reduced(rest)
        yield rest[is_term], assemble(shapes[0], [Held(part, whole, (part,)) for part in present], "sum")
        unknown = CannotMerge("the ranks have different values there, and nothing says how these make up the whole")
        yield rest[~is_term], unknown

    def _are_reduced(self, values: Array) -> Array:
        return np.array([value in self._terms for value in values.tolist()], np.bool_)


def one_part(part: int, shape: tuple[int, ...]) -> Assembly | Any:
    """Return the assembly of a tensor that one part has whole."""
    return assemble(shape, [Held(part, tuple(((0, n),) if n else () for n in shape))])
