"""Several ranks' dumps as one: a row for each whole tensor, whatever part of it each rank has.

The placement of a value over the ranks is taken from the record (placements of distributed tensors), else from the
declaration, else from its shape on the other side of the comparison. A value that cannot be merged remains as a row
with the reason. Values that should be equal on several ranks are compared on the way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from msprobe_core.compare.compare_codes import CompareCode
from msprobe_core.compare.extra_statistics import merged_extra
from msprobe_core.compare.pairing_codes import MergedCode
from msprobe_core.compare.shards.assembly import (
    Array,
    Assembly,
    CannotMerge,
    Numbers,
    counts_as_whole,
    merge_hashes,
    merge_sketches,
    merge_statistics,
)
from msprobe_core.compare.shards.columns import TEXTS, Columns
from msprobe_core.compare.shards.declaration import Declaration, Undeclared
from msprobe_core.compare.shards.distributed_calls import (
    fake_tensor_calls,
    framework_calls,
    reduced_values,
    results_for_all,
    unwrapped,
    without,
)
from msprobe_core.compare.shards.findings import ReplicaFinding
from msprobe_core.compare.shards.groups import Groups, one_part
from msprobe_core.compare.shards.merged_files import MergedFiles
from msprobe_core.compare.shards.placement import recorded
from msprobe_core.compare.shards.rank_rows import Part, part_of, unite
from msprobe_core.compare.shards.replica_check import replicas_that_differ
from msprobe_core.compare.shards.replicas import copies_that_differ, differing
from msprobe_core.findings import Finding
from msprobe_core.model import Distribution, Ending, RunHeader
from msprobe_core.protocols.storage import Dump, TensorSource
from msprobe_core.store.ending import ending_of_all
from msprobe_core.store.frame import RowKind

_COUNTS = ("num_nan", "num_inf")


@dataclass(frozen=True)
class HeldPiece:
    """The part of a tensor that one rank holds.

    Attributes:
        rank: The rank.
        where: Text on which part it is; empty for the whole.
        values: Its known statistics by name.
    """

    rank: int
    where: str
    values: Mapping[str, float]


class MergedDump:
    """Several ranks' dumps as one; see `msprobe_core.plugin.Dump`.

    Attributes:
        parts: The dumps.
        frame: One row per whole value.
        notes: Notes of all parts, and on the merging.
        replicas: Findings on values that should be equal on several ranks, in execution order.
    """

    def __init__(self, parts: Sequence[Part], merging: _Merging) -> None:
        self.parts = parts
        self.frame = merging.frame
        self.notes: Sequence[str | Finding] = [*(note for part in parts for note in part.dump.notes), *merging.notes]
        self.replicas: Sequence[ReplicaFinding] = merging.replicas
        self._merging = merging

    @property
    def path(self) -> Path:
        """The common directory of all parts, or the first part's own."""
        paths = [part.dump.path for part in self.parts]
        common = paths[0].parent.parent
        return common if all(path.parent.parent == common for path in paths) else paths[0]

    @property
    def header(self) -> RunHeader:
        """The header of the first part."""
        return self.parts[0].dump.header

    @property
    def ending(self) -> Ending:
        """The end mark of the least complete part."""
        return ending_of_all([part.dump for part in self.parts])

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
        """Return a tensor that is merged while it is read.

        Raises:
            DumpError: a part of it is missing, damaged or not a tensor.
        """
        return self._merging.files.open_tensor(file_name)

    def held(self, name: str) -> Sequence[HeldPiece]:
        """Return the parts of a row's tensor with their ranks; empty if there is no such row, or it is not a tensor."""
        return self._merging.held(name)

    def errors_by_part(self, name: str, golden: TensorSource) -> Sequence[float]:
        """Return, for each of ``held(name)``, the relative error of its elements in the Euclidean norm.

        Empty if the tensor is not stored, is a sum, or has another shape than ``golden``.

        Raises:
            DumpError: a part or ``golden`` cannot be read.
        """
        return self._merging.errors_by_part(name, golden)


def merged(dumps: Sequence[Dump], declaration: Declaration | None = None, like: Sequence[Dump] = ()) -> MergedDump:
    """Return the dumps of several ranks as one dump of whole tensors.

    Args:
        dumps: Dumps of different ranks in one step; the ranks are taken from their paths.
        declaration: Declared placements of plain tensors.
        like: The other side of the comparison; its shapes determine the merging of values without placements.

    Raises:
        DumpError: a dump is damaged.
    """
    parts = [part_of(dump, i) for i, dump in enumerate(dumps)]
    declaration = declaration or Undeclared([part.rank for part in parts])
    merging = _Merging(list(declaration.named(parts)), declaration, like)
    merging.run()
    return MergedDump(merging.union.parts, merging)


def check_replicas(dumps: Sequence[Dump], declaration: Declaration | None = None) -> list[ReplicaFinding]:
    """Return the values that should be equal on several ranks of one run and are not, in execution order.

    These are replicated distributed tensors; results of communication that are equal on all ranks of a group;
    parameters under ``DistributedDataParallel``; and values declared as replicated.

    Args:
        dumps: Dumps of different ranks in one step.
        declaration: Declared placements of plain tensors.
    """
    if len(dumps) < 2:  # nothing to compare with
        return []
    return replicas_that_differ(dumps) if declaration is None else list(merged(dumps, declaration).replicas)


# --- one merging ----------------------------------------------------------------------------------------------------


class _Merging:
    """Merges the parts; the results are ``frame``, ``notes`` and ``replicas``."""

    def __init__(self, parts: Sequence[Part], declaration: Declaration, like: Sequence[Dump]) -> None:
        self._parts = parts
        self._declaration = declaration
        self._like = like
        self._findings: dict[int, ReplicaFinding] = {}
        self._assemblies: dict[int, Assembly] = {}
        self._renamed: dict[str, str] = {}
        self.notes: list[Finding] = []
        self.frame = pl.DataFrame()

    def run(self) -> None:
        """Merge all parts."""
        known = {entry for dump in self._like for entry in dump.frame["entry"].unique()}
        union = unite([unwrapped(part, known) for part in self._parts])
        order = self._declaration.order(union)
        if order is not None:
            union = union.at(order)
        self.union = union
        self.files = MergedFiles(union)
        self._note_sequence()
        self._columns = Columns(union.rows.height)
        self._reduced = reduced_values(union)
        groups = Groups(union, self._declaration, self._like, self._reduced)
        for values, assembly in groups.all():
            self._take(values, assembly, is_complex=groups.is_complex)
        self._check_communication()
        self._refuse_sizes()
        self._note_refused()
        rows = self._columns.over(union.rows)
        dropped = framework_calls(union, known) | fake_tensor_calls(union)
        self.frame, self._renamed = without(rows, dropped)
        self._kept = np.flatnonzero(~dropped)
        if dropped.any():
            calls = union.rows.filter(pl.Series(dropped))["entry"].n_unique()
            self.notes.append(Finding(MergedCode.LEFT_OUT, fields={"count": calls}))

    # names

    def name_of(self, part: Part, entry: str) -> str:
        """Return the name in the whole of an entry of a part."""
        own = part.names.get(entry, entry)
        return self._renamed.get(own, own)

    # values

    def _take(self, values: Array, assembly: Assembly | CannotMerge, *, is_complex: bool) -> None:
        if isinstance(assembly, CannotMerge):
            self._columns.refused.update(dict.fromkeys(values.tolist(), assembly.reason))
            return
        if assembly.reduction is not None:
            is_reduced = self._are_reduced(values)
            self._take_reduced(values[is_reduced], assembly)
            values = values[~is_reduced]
        if not len(values):
            return
        copies_that_differ(self.union, values, assembly, self._findings)
        self._assemblies.update(dict.fromkeys(values.tolist(), assembly))
        if assembly.is_one_part:
            self._take_one(values, assembly)
            return
        numbers = [self.union.numbers(piece.part, values) for piece in assembly.pieces]
        self._columns.put(values, merge_statistics(assembly, numbers, is_complex=is_complex))
        self._columns.shapes.update(dict.fromkeys(values.tolist(), assembly.shape))
        self._take_fingerprints(values, assembly)
        self._take_exact(values, assembly)
        self._take_extra(values, assembly)
        self._name_files(values, assembly)

    def _are_reduced(self, values: Array) -> Array:
        """Return whether the result of a sum is recorded; bool ``[n]``."""
        return np.array([value in self._reduced for value in values.tolist()], np.bool_)

    def _take_one(self, values: Array, assembly: Assembly) -> None:
        """Take the values of the only part."""
        part = assembly.pieces[0].part
        self._columns.put(values, self.union.numbers(part, values))
        self._columns.shapes.update(dict.fromkeys(values.tolist(), assembly.shape))
        for name in TEXTS:
            cells = self.union.cells(name, part, values)
            self._columns.texts[name].update(zip(values.tolist(), cells, strict=True))
        self._name_files(values, assembly)

    def _take_reduced(self, values: Array, assembly: Assembly) -> None:
        """Take the results of sums, which all ranks have."""
        for value in values.tolist():
            result = self._reduced[value]
            part = int(self.union.is_there[result].argmax())
            one = np.array([value])
            self._assemblies[value] = assembly
            self._columns.put(one, self.union.numbers(part, np.array([result])))
            self._columns.shapes[value] = assembly.shape
            for name in TEXTS:
                self._columns.texts[name][value] = self.union.cells(name, part, np.array([result]))[0]
            self._name_files(one, one_part(part, assembly.shape), result)

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
        """Whether hash and sketch of a piece were computed with the element numbers of the whole."""
        piece = assembly.pieces[number]
        if counts_as_whole(piece, assembly.shape):
            return True
        part = self.union.parts[piece.part]
        text = part.frame["distribution"][int(self.union.index[values[0], piece.part])]
        if text is None:
            return False
        spread = recorded(text, assembly.shape, part.rank)
        return isinstance(spread, Distribution) and spread.local_offset is not None

    def _name_files(self, values: Array, assembly: Assembly, source: int | None = None) -> None:
        self._columns.texts["file_name"].update(self.files.add(values, assembly, source))

    def _take_exact(self, values: Array, assembly: Assembly) -> None:
        """Merge extremes of integers that float64 cannot represent."""
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

    def _take_extra(self, values: Array, assembly: Assembly) -> None:
        """Merge the statistics that plugins offer, as far as they declare how."""
        pieces = [piece for piece in assembly.pieces if piece.numel]
        cells = [self.union.cells("extra", piece.part, values) for piece in pieces]
        if not pieces or assembly.reduction is not None or any(cell is None for part in cells for cell in part):
            return
        for value, *texts in zip(values.tolist(), *cells, strict=True):
            self._columns.texts["extra"][value] = merged_extra(texts, [piece.numel for piece in pieces])

    # notes

    def _note_sequence(self) -> None:
        rows = self.union.rows.filter(pl.Series(~self.union.is_there.all(axis=1)))
        if rows.height and not self._declaration.divides_calls:
            first = {"first": rows["name"][0], "rank": self.union.parts[0].rank}
            fields = {"ranks": len(self.union.parts), "count": rows.height, **first}
            self.notes.append(Finding(MergedCode.NOT_ON_ALL, fields=fields))

    def _check_communication(self) -> None:
        for values, parts in results_for_all(self.union):
            reason = CompareCode.ALIKE_BY_COMMUNICATION
            differing(self.union, values, parts, reason, self._findings)

    def _refuse_sizes(self) -> None:
        """Refuse arguments that are sizes of parts, if the other side has different ones."""
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
            self.notes.append(Finding(MergedCode.SUMS, fields={"count": len(partial), "first": name}))

    @property
    def replicas(self) -> Sequence[ReplicaFinding]:
        """All findings."""
        return [finding for _, finding in sorted(self._findings.items())]

    def held(self, name: str) -> Sequence[HeldPiece]:
        """Return the parts of a row with their ranks."""
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
        return [] if value is None else self.files.errors_by_part(value, golden)

    def _value_of(self, name: str) -> int | None:
        found = self.frame.with_row_index("row").filter(pl.col("name") == name)["row"].to_list()
        return int(self._kept[found[0]]) if found else None


def _where(assembly: Assembly, blocks: Sequence[Any]) -> str:
    for dim, size in enumerate(assembly.shape):
        runs = {(block.whole[dim], block.sizes[dim]) for block in blocks}
        if runs and runs != {(0, size)}:
            ranges = ", ".join(f"{begin} to {begin + length - 1}" for begin, length in sorted(runs))
            return f"{ranges} of dimension {dim}"
    return ""


def _whole_numbers(numbers: Mapping[str, Numbers], i: int) -> list[int] | None:
    pair = [numbers[name] for name in ("max", "min")]
    if not all(column.is_known[i] and math.isfinite(column.values[i]) for column in pair):
        return None
    return [int(column.values[i]) for column in pair]
