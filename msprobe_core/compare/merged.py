"""Several ranks' dumps as one: a row for each whole tensor, whatever part of it each rank has.

How a value lies over the ranks is taken from what was recorded (placements of distributed tensors), else from what is
declared, else from the shape that the other side of the comparison has. What cannot be put together is kept as a row
that says why. Values that several ranks should have alike are compared on the way.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import polars as pl

from msprobe_core.compare.shard_sources import CHUNK, Assembled, Reader, overlap, slabs
from msprobe_core.compare.shards import (
    STATISTICS,
    Assembly,
    Held,
    Numbers,
    Refusal,
    assemble,
    counts_as_whole,
    merge_hashes,
    merge_sketches,
    merge_statistics,
)
from msprobe_core.compare.shards_calls import fakes, machinery, reduced_values, results_for_all, unwrapped, without
from msprobe_core.compare.shards_findings import ReplicaFinding
from msprobe_core.compare.shards_lie import (
    Along,
    Whereabouts,
    assemble_declared,
    assemble_recorded,
    axis_cut_to,
    recorded,
)
from msprobe_core.compare.shards_replicas import agreement, differing
from msprobe_core.compare.shards_union import Part, Union, part_of, unite
from msprobe_core.errors import DumpError
from msprobe_core.hookspecs import Dump, TensorSource
from msprobe_core.model import Distribution, Role, RunHeader
from msprobe_core.store.frame import COLUMNS, RowKind

Array: TypeAlias = Any
"""A NumPy array, of whose functions the type checker knows only part."""

_COUNTS = ("num_nan", "num_inf")


class Declaration(Protocol):
    """What is declared of the ranks of one side."""

    @property
    def axes(self) -> Sequence[str]:
        """Names of the axes along which there is more than one rank."""
        ...

    @property
    def divides_calls(self) -> bool:
        """Whether ranks make different calls: stages of a pipeline, or experts."""
        ...

    def place_of(self, rank: int) -> Whereabouts:
        """Return where a rank stands."""
        ...

    def named(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Return the parts with the names that their rows have in the whole, in the order of execution."""
        ...

    def order(self, union: Union) -> Array | None:
        """Return the order of execution of all values, int64 ``[values]``; ``None`` if it is as they are."""
        ...

    def spreads(self, rows: pl.DataFrame, parents: Mapping[str, str | None]) -> Sequence[Sequence[Along] | None]:
        """Return how each value lies along the axes; ``None`` where nothing is declared.

        Args:
            rows: Columns of a dump.
            parents: Enclosing call by entry.
        """
        ...


class Undeclared:
    """Ranks of which nothing is declared: one axis that all of them are on."""

    axes = ("rank",)
    divides_calls = False

    def __init__(self, ranks: Sequence[int]) -> None:
        self._places = {rank: Whereabouts((("rank", i),)) for i, rank in enumerate(ranks)}

    def place_of(self, rank: int) -> Whereabouts:
        """Return where a rank stands."""
        return self._places[rank]

    def named(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Return the parts as they are."""
        return parts

    def order(self, union: Union) -> Array | None:  # noqa: ARG002
        """Return ``None``."""
        return None

    def spreads(
        self,
        rows: pl.DataFrame,
        parents: Mapping[str, str | None],  # noqa: ARG002
    ) -> Sequence[Sequence[Along] | None]:
        """Return for parameters of data parallel models that they are replicated, and nothing for all else."""
        if not is_data_parallel(rows):
            return [None] * rows.height
        is_parameter = rows["role"] == Role.PARAMETERS.value
        return [() if yes else None for yes in is_parameter.to_list()]


def is_data_parallel(rows: pl.DataFrame) -> bool:
    """Whether all ranks have the same parameters: the model is wrapped for it, and none of its layers is cut."""
    entries = rows["entry"]
    is_wrapped = entries.str.contains(r"\.DistributedDataParallel\.(forward|backward|parameters_grad)\.").any()
    return bool(is_wrapped) and not entries.str.contains(r"ParallelLinear|VocabParallel").any()


@dataclass(frozen=True)
class HeldPiece:
    """What one rank has of a tensor.

    Attributes:
        rank: Which rank.
        where: Which part it is, in words; empty for all of it.
        values: Its statistics by name, those that are known.
    """

    rank: int
    where: str
    values: Mapping[str, float]


class MergedDump:
    """Several ranks' dumps as one; see `msprobe_core.hookspecs.Dump`.

    Attributes:
        parts: The dumps.
        frame: One row per whole value.
        notes: Those of all parts, and what there is to say of putting them together.
        replicas: Values that ranks should have alike and have not, in the order of execution.
    """

    def __init__(self, parts: Sequence[Part], merging: _Merging) -> None:
        self.parts = parts
        self.frame = merging.frame
        self.notes: Sequence[str] = [*(note for part in parts for note in part.dump.notes), *merging.notes]
        self.replicas: Sequence[ReplicaFinding] = merging.replicas
        self._merging = merging

    @property
    def path(self) -> Path:
        """The directory that all parts are in, or the first one's own."""
        paths = [part.dump.path for part in self.parts]
        common = paths[0].parent.parent
        return common if all(path.parent.parent == common for path in paths) else paths[0]

    @property
    def header(self) -> RunHeader:
        """That of the first part."""
        return self.parts[0].dump.header

    @property
    def stacks(self) -> Mapping[str, Sequence[str]]:
        """Frames by entry name, innermost first."""
        return self._all_stacks

    @property
    def parents(self) -> Mapping[str, str | None]:
        """Enclosing call by entry name."""
        return self._all_parents

    @cached_property
    def _all_parents(self) -> Mapping[str, str | None]:
        found: dict[str, str | None] = {}
        for part in self.parts:
            for entry, parent in part.dump.parents.items():
                own = self._merging.name_of(part, entry)
                found.setdefault(own, None if parent is None else self._merging.name_of(part, parent))
        return found

    @cached_property
    def _all_stacks(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, Sequence[str]] = {}
        for part in self.parts:
            for entry, frames in part.dump.stacks.items():
                found.setdefault(self._merging.name_of(part, entry), frames)
        return found

    def open_tensor(self, file_name: str) -> TensorSource:
        """Return a tensor that is put together while it is read.

        Raises:
            DumpError: a part of it is missing, damaged or no tensor.
        """
        return self._merging.open_tensor(file_name)

    def held(self, name: str) -> Sequence[HeldPiece]:
        """Return which ranks have which part of the row of this name; empty if there is none, or it is no tensor."""
        return self._merging.held(name)

    def errors_by_part(self, name: str, golden: TensorSource) -> Sequence[float]:
        """Return for each of ``held(name)`` the relative error of its elements in the Euclidean norm.

        Empty where the tensor is not kept, is a sum, or has another shape than ``golden``.

        Raises:
            DumpError: a part or ``golden`` cannot be read.
        """
        return self._merging.errors_by_part(name, golden)


def merged(dumps: Sequence[Dump], declaration: Declaration | None = None, like: Sequence[Dump] = ()) -> MergedDump:
    """Return the dumps of several ranks as one dump of whole tensors.

    Args:
        dumps: Of one step, each of another rank; their ranks are in their paths.
        declaration: How plain tensors lie, where it is declared.
        like: The other side of the comparison: what nothing is known of is put together as its shapes say.

    Raises:
        DumpError: a dump is not sound.
    """
    parts = [part_of(dump, i) for i, dump in enumerate(dumps)]
    declaration = declaration or Undeclared([part.rank for part in parts])
    merging = _Merging(list(declaration.named(parts)), declaration, like)
    merging.run()
    return MergedDump(merging.union.parts, merging)


def check_replicas(dumps: Sequence[Dump], declaration: Declaration | None = None) -> list[ReplicaFinding]:
    """Return the values that ranks of one run should have alike and have not, in the order of execution.

    These are distributed tensors that are replicated; results of communication that all ranks of a group get alike;
    parameters under ``DistributedDataParallel``; and what is declared to be replicated.

    Args:
        dumps: Of one step, each of another rank.
        declaration: How plain tensors lie, where it is declared.
    """
    return list(merged(dumps, declaration).replicas) if len(dumps) > 1 else []


# --- one merging ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cell:
    """What one part has in the place of a value."""

    kind: str
    shape: tuple[int, ...]
    distribution: str | None
    is_complex: bool


@dataclass
class _Columns:
    """Columns of the frame that are made anew, for all values."""

    size: int
    is_new: Array = field(init=False)
    numbers: dict[str, Numbers] = field(init=False)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    texts: dict[str, dict[int, Any]] = field(init=False)
    refused: dict[int, str] = field(default_factory=dict[int, str])

    def __post_init__(self) -> None:
        self.is_new = np.zeros(self.size, np.bool_)
        self.numbers = {name: Numbers.unknown(self.size) for name in STATISTICS}
        self.texts = {name: {} for name in ("checksum", "sketch", "file_name", "exact")}

    def put(self, values: Array, numbers: Mapping[str, Numbers]) -> None:
        """Set the statistics of some values."""
        self.is_new[values] = True
        for name, column in numbers.items():
            self.numbers[name].values[values] = column.values
            self.numbers[name].is_known[values] = column.is_known

    def over(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows with what is new in its place."""
        if not self.is_new.any() and not self.refused:
            return rows
        is_new = pl.Series(self.is_new)
        made: list[Any] = []
        unknown = pl.Series([None] * self.size, dtype=pl.Float64)
        for name, column in self.numbers.items():
            values: Any = cast("Any", pl.Series(name, column.values)).zip_with(pl.Series(column.is_known), unknown)
            made.append(values.cast(COLUMNS[name], strict=False))
        for name, cells in self.texts.items():
            made.append(pl.Series(name, _spread_out(cells, self.size), dtype=COLUMNS[name]))
        shapes = {value: str(list(shape)) for value, shape in self.shapes.items()}
        sizes = {value: math.prod(shape) for value, shape in self.shapes.items()}
        made.append(pl.Series("shape", _spread_out(shapes, self.size), dtype=pl.String))
        made.append(pl.Series("numel", _spread_out(sizes, self.size), dtype=pl.Int64))
        made.append(pl.Series("distribution", [None] * self.size, dtype=pl.String))
        rows = rows.with_columns(
            pl.when(is_new).then(column).otherwise(pl.col(column.name)).alias(column.name) for column in made
        )
        refused = pl.Series("refused", _spread_out(self.refused, self.size), dtype=pl.String)
        blank = [name for name in list(COLUMNS)[list(COLUMNS).index("type") :] if name != "failure"]
        is_refused = refused.is_not_null()
        return rows.with_columns(
            *[pl.when(is_refused).then(None).otherwise(pl.col(name)).alias(name) for name in blank],
            kind=pl.when(is_refused).then(pl.lit(RowKind.NONE.value, COLUMNS["kind"])).otherwise("kind"),
            failure=pl.coalesce(refused, pl.col("failure")),
        )


def _spread_out(cells: Mapping[int, Any], size: int) -> list[Any]:
    column: list[Any] = [None] * size
    for value, cell in cells.items():
        column[value] = cell
    return column


class _Merging:
    """Puts the parts together; what comes of it is in ``frame``, ``notes`` and ``replicas``."""

    def __init__(self, parts: Sequence[Part], declaration: Declaration, like: Sequence[Dump]) -> None:
        self._parts = parts
        self._declaration = declaration
        self._like = like
        self._findings: dict[int, ReplicaFinding] = {}
        self._assemblies: dict[int, Assembly] = {}
        self._files: dict[str, int] = {}
        self._renamed: dict[str, str] = {}
        self.notes: list[str] = []
        self.frame = pl.DataFrame()

    def run(self) -> None:
        """Do it all."""
        known = {entry for dump in self._like for entry in dump.frame["entry"].unique()}
        union = unite([unwrapped(part, known) for part in self._parts])
        order = self._declaration.order(union)
        if order is not None:
            union = union.at(order)
        self.union = union
        self._note_sequence()
        self._columns = _Columns(union.rows.height)
        self._cells: dict[str, int] = {}
        self._cell_list: list[_Cell] = []
        self._reduced = reduced_values(union)
        for values, assembly in self._groups():
            self._take(values, assembly)
        self._check_communication()
        self._refuse_sizes()
        self._note_refused()
        rows = self._columns.over(union.rows)
        dropped = machinery(union, known) | fakes(union)
        self.frame, self._renamed = without(rows, dropped)
        self._kept = np.flatnonzero(~dropped)
        if dropped.any():
            calls = union.rows.filter(pl.Series(dropped))["entry"].n_unique()
            self.notes.append(
                f"calls that only pass parts of tensors between the ranks that were merged, or compute no values, and "
                f"were left out: {calls:,}"
            )

    # names

    def name_of(self, part: Part, entry: str) -> str:
        """Return what an entry of a part is called in the whole."""
        own = part.names.get(entry, entry)
        return self._renamed.get(own, own)

    # how values lie

    def _groups(self) -> Iterator[tuple[Array, Assembly | Refusal]]:
        """Yield the values of tensors that are put together in the same way, and how."""
        union = self.union
        codes = [self._codes_of(number) for number in range(len(union.parts))]
        spreads, spread_codes = self._spread_codes()
        shapes, shape_codes = self._like_shapes()
        is_parameter = (union.rows["role"] == Role.PARAMETERS.value).to_numpy()
        table = np.stack([*codes, spread_codes, shape_codes, is_parameter.astype(np.int64)], axis=1)
        unique: tuple[Array, Array] = np.unique(table, axis=0, return_inverse=True)
        numbers: Array = unique[1].reshape(-1)
        order = np.argsort(numbers, kind="stable")
        kinds: list[list[int]] = unique[0].tolist()
        ends = np.searchsorted(numbers[order], np.arange(len(kinds) + 1))
        for i, kind in enumerate(kinds):
            values = order[ends[i] : ends[i + 1]]
            *cells, spread, shape, is_parameter_kind = kind
            present = [part for part, code in enumerate(cells) if code >= 0]
            held = [self._cell_list[cells[part]] for part in present]
            if all(cell.kind != RowKind.TENSOR.value for cell in held):
                continue
            self._is_complex = any(cell.is_complex for cell in held)
            yield from self._lie(
                values,
                present,
                held,
                None if spread < 0 else spreads[spread],
                None if shape < 0 else shapes[shape],
                is_parameter=bool(is_parameter_kind),
            )

    def _codes_of(self, number: int) -> Array:
        """Return for each value a number for what a part has in its place, -1 for nothing."""
        frame = self.union.parts[number].frame
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
                sizes = _sizes(shape) if kind == RowKind.TENSOR.value else ()
                self._cell_list.append(_Cell(kind, sizes, distribution or None, is_complex == "true"))
        codes: Array = cast("Any", texts).replace_strict(self._cells, return_dtype=pl.Int64).to_numpy()
        index = self.union.index[:, number]
        return np.where(index >= 0, codes[np.maximum(index, 0)], -1) if len(codes) else np.full(len(index), -1)

    def _spread_codes(self) -> tuple[list[tuple[Along, ...]], Array]:
        parents: dict[str, str | None] = {}
        for part in self.union.parts:
            for entry, parent in part.dump.parents.items():
                own = part.names.get(entry, entry)
                parents.setdefault(own, None if parent is None else part.names.get(parent, parent))
        known: dict[tuple[Along, ...], int] = {}
        codes = [
            -1 if spread is None else known.setdefault(tuple(spread), len(known))
            for spread in self._declaration.spreads(self.union.rows, parents)
        ]
        return list(known), np.array(codes, np.int64)

    def _like_shapes(self) -> tuple[list[tuple[int, ...]], Array]:
        """Return the shapes of the other side, and for each value the number of its own, -1 where it is not known."""
        size = self.union.rows.height
        if len(self._like) != 1:
            return [], np.full(size, -1)
        other = self._like[0].frame.filter(pl.col("kind") == RowKind.TENSOR.value)
        other = other.select("key", like="shape").unique("key", keep="first", maintain_order=True)
        found = self.union.rows.select("key").join(other, on="key", how="left", maintain_order="left")["like"]
        texts = found.drop_nulls().unique(maintain_order=True).to_list()
        numbers = {text: i for i, text in enumerate(texts)}
        codes: Any = cast("Any", found).replace_strict(numbers, default=-1, return_dtype=pl.Int64)
        return [_sizes(text) for text in texts], codes.fill_null(-1).to_numpy()

    def _lie(
        self,
        values: Array,
        present: Sequence[int],
        held: Sequence[_Cell],
        spread: Sequence[Along] | None,
        like: tuple[int, ...] | None,
        *,
        is_parameter: bool,
    ) -> Iterator[tuple[Array, Assembly | Refusal]]:
        ranks = [self.union.parts[part].rank for part in present]
        if any(cell.kind != RowKind.TENSOR.value for cell in held):
            yield values, Refusal("some ranks have a tensor there and others have not")
        elif all(cell.distribution is not None for cell in held):
            texts = [cell.distribution or "" for cell in held]
            yield values, assemble_recorded(held[0].shape, present, ranks, texts, are_meshes_alike=is_parameter)
        elif any(cell.distribution is not None for cell in held):
            yield values, Refusal("some ranks have it as a distributed tensor and others have not")
        elif len(present) == 1:
            yield values, _one_part(present[0], held[0].shape)
        else:
            yield from self._lie_plain(values, present, [cell.shape for cell in held], spread, like)

    def _lie_plain(
        self,
        values: Array,
        present: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        spread: Sequence[Along] | None,
        like: tuple[int, ...] | None,
    ) -> Iterator[tuple[Array, Assembly | Refusal]]:
        places = [self._declaration.place_of(self.union.parts[part].rank) for part in present]
        if spread is not None:
            declared = assemble_declared(spread, present, places, shapes)
            # The other side knows better how large the whole is than a rule that holds for all of a kind.
            if isinstance(declared, Refusal) or like is None or declared.shape == like or shapes[0] != like:
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
        else:
            for part in present[1:]:
                is_alike &= agreement(self.union, values, present[0], part)
        whole = tuple(((0, n),) if n else () for n in shapes[0])
        yield values[is_alike], assemble(shapes[0], [Held(part, whole) for part in present])
        rest = values[~is_alike]
        is_term = self._are_reduced(rest)
        yield rest[is_term], assemble(shapes[0], [Held(part, whole, (part,)) for part in present], "sum")
        unknown = Refusal("the ranks have different values there, and nothing says how these make up the whole")
        yield rest[~is_term], unknown

    # what is known of them

    def _take(self, values: Array, assembly: Assembly | Refusal) -> None:
        if isinstance(assembly, Refusal):
            self._columns.refused.update(dict.fromkeys(values.tolist(), assembly.reason))
            return
        if assembly.reduction is not None:
            is_reduced = self._are_reduced(values)
            self._take_reduced(values[is_reduced], assembly)
            values = values[~is_reduced]
        if not len(values):
            return
        for piece in assembly.pieces:
            if piece.copies:
                reason = self._why_alike(values, piece.part)
                differing(self.union, values, [piece.part, *piece.copies], reason, self._findings)
        self._assemblies.update(dict.fromkeys(values.tolist(), assembly))
        if assembly.is_one_part:
            self._take_one(values, assembly)
            return
        numbers = [self.union.numbers(piece.part, values) for piece in assembly.pieces]
        self._columns.put(values, merge_statistics(assembly, numbers, is_complex=self._is_complex))
        self._columns.shapes.update(dict.fromkeys(values.tolist(), assembly.shape))
        self._take_fingerprints(values, assembly)
        self._take_exact(values, assembly)
        self._take_files(values, assembly)

    def _are_reduced(self, values: Array) -> Array:
        """Return whether what became of a sum is recorded; bool ``[n]``."""
        return np.array([value in self._reduced for value in values.tolist()], np.bool_)

    def _why_alike(self, values: Array, part: int) -> str:
        cell = self.union.parts[part].frame["distribution"][int(self.union.index[values[0], part])]
        return "it is recorded as the same part of one tensor" if cell else "all should have the same"

    def _take_one(self, values: Array, assembly: Assembly) -> None:
        """Take what one part has, all but that it is a part."""
        part = assembly.pieces[0].part
        self._columns.put(values, self.union.numbers(part, values))
        self._columns.shapes.update(dict.fromkeys(values.tolist(), assembly.shape))
        for name in ("checksum", "sketch", "exact"):
            cells = self.union.cells(name, part, values)
            self._columns.texts[name].update(zip(values.tolist(), cells, strict=True))
        self._take_files(values, assembly)

    def _take_reduced(self, values: Array, assembly: Assembly) -> None:
        """Take for sums what became of them: all ranks have it."""
        for value in values.tolist():
            result = self._reduced[value]
            part = int(self.union.is_there[result].argmax())
            one = np.array([value])
            self._assemblies[value] = assembly
            self._columns.put(one, self.union.numbers(part, np.array([result])))
            self._columns.shapes[value] = assembly.shape
            for name in ("checksum", "sketch", "exact"):
                self._columns.texts[name][value] = self.union.cells(name, part, np.array([result]))[0]
            self._take_files(one, _one_part(part, assembly.shape), result)

    def _take_fingerprints(self, values: Array, assembly: Assembly) -> None:
        is_placed = [self._is_placed(values, i, assembly) for i in range(len(assembly.pieces))]
        if not all(is_placed):
            return
        sketches = [self.union.cells("sketch", piece.part, values) for piece in assembly.pieces]
        if any(sketch is not None for part in sketches for sketch in part):
            merged_sketches = merge_sketches(assembly, sketches)
            self._columns.texts["sketch"].update(zip(values.tolist(), merged_sketches, strict=True))
        if self.union.parts[0].dump.header.summary_mode == "hash":
            hashes = [self.union.cells("checksum", piece.part, values) for piece in assembly.pieces]
            merged_hashes = merge_hashes(assembly, hashes)
            self._columns.texts["checksum"].update(zip(values.tolist(), merged_hashes, strict=True))

    def _is_placed(self, values: Array, number: int, assembly: Assembly) -> bool:
        """Whether hash and sketch of a piece counted its elements as the whole has them."""
        piece = assembly.pieces[number]
        if counts_as_whole(piece, assembly.shape):
            return True
        part = self.union.parts[piece.part]
        text = part.frame["distribution"][int(self.union.index[values[0], piece.part])]
        if text is None:
            return False
        spread = recorded(text, assembly.shape, part.rank)
        return isinstance(spread, Distribution) and spread.local_offset is not None

    def _take_exact(self, values: Array, assembly: Assembly) -> None:
        """Extremes of integers beyond what float64 holds."""
        cells = [self.union.cells("exact", piece.part, values) for piece in assembly.pieces if piece.numel]
        if assembly.reduction is not None or not any(cell is not None for part in cells for cell in part):
            return
        numbers = [self.union.numbers(piece.part, values) for piece in assembly.pieces if piece.numel]
        for i, value in enumerate(values.tolist()):
            found = [
                [int(n) for n in texts[i].split(" and ")] if texts[i] else _whole_numbers(own, i)
                for texts, own in zip(cells, numbers, strict=True)
            ]
            if any(texts[i] for texts in cells) and None not in found:
                high, low = max(one[0] for one in found if one), min(one[1] for one in found if one)
                self._columns.texts["exact"][value] = f"{high} and {low}"

    def _take_files(self, values: Array, assembly: Assembly, source: int | None = None) -> None:
        """Give each tensor whose parts are all kept a name to open it by."""
        at = values if source is None else np.array([source])
        filled = [piece for piece in assembly.pieces if piece.numel] or list(assembly.pieces[:1])
        names = [self.union.cells("file_name", piece.part, at) for piece in filled]
        for i, value in enumerate(values.tolist()):
            own = [part[i] for part in names]
            if None not in own:
                rank = self.union.parts[filled[0].part].rank
                token = f"rank{rank}/{own[0]}" + (f" and {len(own) - 1} more" if len(own) > 1 else "")
                while self._files.setdefault(token, value) != value:
                    token += "'"
                self._columns.texts["file_name"][value] = token
                self._recipes[value] = (assembly, int(at[0]) if source is not None else value)

    @cached_property
    def _recipes(self) -> dict[int, tuple[Assembly, int]]:
        return {}

    def open_tensor(self, file_name: str) -> TensorSource:
        """Return a tensor by the name that the frame has of it.

        Raises:
            DumpError: there is none, or a part of it cannot be read.
        """
        value = self._files.get(file_name)
        if value is None:
            raise DumpError(f"{file_name}: is no tensor of these dumps")
        assembly, source = self._recipes[value]

        open_part = self._opener(source)
        first = open_part(assembly.pieces[0].part)
        return first if assembly.is_one_part else Assembled(assembly, open_part, first.dtype)

    def _opener(self, value: int) -> Callable[[int], TensorSource]:
        def open_part(number: int) -> TensorSource:
            part = self.union.parts[number]
            return part.dump.open_tensor(part.frame["file_name"][int(self.union.index[value, number])])

        return open_part

    # what there is to say

    def _note_sequence(self) -> None:
        first = self.union.parts[0]
        rows = self.union.rows.filter(pl.Series(~self.union.is_there.all(axis=1)))
        if rows.height and not self._declaration.divides_calls:
            self.notes.append(
                f"values that not all of the {len(self.union.parts)} merged ranks have: {rows.height:,}; the first is "
                f"{rows['name'][0]}; rank {first.rank} and the others did not make the same calls"
            )

    def _check_communication(self) -> None:
        for values, parts in results_for_all(self.union):
            reason = "it is the result of communication that gives all the same"
            differing(self.union, values, parts, reason, self._findings)

    def _refuse_sizes(self) -> None:
        """Take arguments that are sizes of parts for what they are, where the other side has other ones."""
        if len(self._like) != 1:
            return
        cut = [value for value, made in self._assemblies.items() if not made.is_one_part]
        entries = self.union.rows["entry"].gather(cut).unique().to_list()
        other = self._like[0].frame.filter(pl.col("kind") == RowKind.SCALAR.value)
        other = other.select("key", like="text").unique("key", keep="first")
        rows = self.union.rows.with_row_index("value").join(other, on="key", how="inner")
        sizes = rows.filter(
            (pl.col("kind") == RowKind.SCALAR.value)
            & pl.col("type").is_in(["int", "torch.Size"])
            & pl.col("entry").is_in(entries)
            & (pl.col("text") != pl.col("like"))
        )
        for value, text in sizes.select("value", "text").iter_rows():
            self._columns.refused[value] = f"{text} is a size of a part, from which nothing follows for the whole"

    def _note_refused(self) -> None:
        partial = [v for v, made in self._assemblies.items() if made.reduction and v not in self._reduced]
        if partial:
            name = self.union.rows["name"][min(partial)]
            self.notes.append(
                f"sums whose terms the ranks hold, of which statistics tell no more than the mean: {len(partial):,}; "
                f"the first is {name}"
            )

    @property
    def replicas(self) -> Sequence[ReplicaFinding]:
        """All findings."""
        return [finding for _, finding in sorted(self._findings.items())]

    def held(self, name: str) -> Sequence[HeldPiece]:
        """Return which ranks have which part of a row."""
        value = self._value_of(name)
        assembly = None if value is None else self._assemblies.get(value)
        if value is None or assembly is None:
            return []
        pieces: list[HeldPiece] = []
        for piece in assembly.pieces:
            numbers = self.union.numbers(piece.part, np.array([value]))
            known = {name: float(n.values[0]) for name, n in numbers.items() if n.is_known[0]}
            pieces.append(HeldPiece(self.union.parts[piece.part].rank, _where(assembly, piece.blocks), known))
        return pieces

    def errors_by_part(self, name: str, golden: TensorSource) -> Sequence[float]:
        """Return the relative error of each part of a row."""
        value = self._value_of(name)
        recipe = None if value is None else self._recipes.get(value)
        if recipe is None or recipe[0].reduction is not None or golden.shape != recipe[0].shape:
            return []
        own, other = (
            Reader(source, CHUNK) for source in (Assembled(recipe[0], self._opener(recipe[1]), golden.dtype), golden)
        )
        sums: Array = np.zeros((len(recipe[0].pieces), 2))
        for begin, sizes in slabs(golden.shape, CHUNK):
            target, trusted = (np.asarray(reader.take(sizes), np.complex128) for reader in (own, other))
            for number, piece in enumerate(recipe[0].pieces):
                for block in piece.blocks:
                    inside = overlap(begin, sizes, block)
                    if inside is not None:
                        sums[number] += [_square(target[inside] - trusted[inside]), _square(trusted[inside])]
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(sums[:, 0] == 0, 0.0, np.sqrt(sums[:, 0] / sums[:, 1])).tolist()

    def _value_of(self, name: str) -> int | None:
        found = self.frame.with_row_index("row").filter(pl.col("name") == name)["row"].to_list()
        return int(self._kept[found[0]]) if found else None


def _square(values: Array) -> float:
    return float((np.abs(values) ** 2).sum())


def _where(assembly: Assembly, blocks: Sequence[Any]) -> str:
    for dim, size in enumerate(assembly.shape):
        runs = {(block.whole[dim], block.sizes[dim]) for block in blocks}
        if runs and runs != {(0, size)}:
            ranges = ", ".join(f"{begin} to {begin + length - 1}" for begin, length in sorted(runs))
            return f"{ranges} of dimension {dim}"
    return ""


def _one_part(part: int, shape: tuple[int, ...]) -> Assembly | Any:
    return assemble(shape, [Held(part, tuple(((0, n),) if n else () for n in shape))])


def _whole_numbers(numbers: Mapping[str, Numbers], i: int) -> list[int] | None:
    pair = [numbers[name] for name in ("max", "min")]
    if not all(column.is_known[i] and math.isfinite(column.values[i]) for column in pair):
        return None
    return [int(column.values[i]) for column in pair]


def _sizes(shape: str) -> tuple[int, ...]:
    return tuple(ast.literal_eval(shape))
