"""Tensors of one rank made to lie as those of the other side do, as a file of layouts declares it.

Maximum, minimum, mean and norm are the same in any order of the elements. Hash, sketch and checksum count elements in
order, so they stay where a change leaves the order as it is, and are dropped where it does not.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from msprobe_core.compare.layouts import Change, FusedRule, LayoutRules, Side, TensorRule, matches
from msprobe_core.compare.layouts_rows import called_in, is_meant, names_of
from msprobe_core.compare.shard_sources import CHUNK, Assembled, narrowed, permuted, reshaped
from msprobe_core.compare.shards import (
    STATISTICS,
    Assembly,
    Held,
    Numbers,
    Refusal,
    assemble,
    counts_as_whole,
    merge_sketches,
    merge_statistics,
)
from msprobe_core.errors import DumpError
from msprobe_core.fingerprint.spread import Ranges
from msprobe_core.hookspecs import Dump, TensorSource
from msprobe_core.model import Phase, Role, RunHeader
from msprobe_core.store.frame import COLUMNS, RowKind

Array: TypeAlias = Any
"""A NumPy array, of whose functions the type checker knows only part."""

Open: TypeAlias = Callable[[], TensorSource]
_Row: TypeAlias = dict[str, Any]


@dataclass
class RelaidDump:
    """A dump whose tensors lie otherwise than they are stored; see `msprobe_core.hookspecs.Dump`.

    Attributes:
        inner: The dump as it is stored.
        frame: Its rows as they lie now.
        notes: Those of the dump, and what there is to say of the changes.
    """

    inner: Dump
    frame: pl.DataFrame
    notes: list[str]
    views: dict[str, Open] = field(default_factory=dict[str, Open])
    names: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def path(self) -> Path:
        """As stored."""
        return self.inner.path

    @property
    def header(self) -> RunHeader:
        """As stored."""
        return self.inner.header

    @property
    def stacks(self) -> Mapping[str, Sequence[str]]:
        """As stored; what was fused has those of its first part."""
        return _under_new_names(self.inner.stacks, self.names)

    @property
    def parents(self) -> Mapping[str, str | None]:
        """As stored; what was fused has that of its first part."""
        found = {
            entry: None if name is None else self.names.get(name, name) for entry, name in self.inner.parents.items()
        }
        return _under_new_names(found, self.names)

    def open_tensor(self, file_name: str) -> TensorSource:
        """Return a tensor as it lies now.

        Raises:
            DumpError: it cannot be read.
        """
        view = self.views.get(file_name)
        return self.inner.open_tensor(file_name) if view is None else view()


def _under_new_names(found: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    renamed = dict(found)
    for old, new in names.items():
        if old in found:
            renamed.setdefault(new, found[old])
    return renamed


def relaid(dump: Dump, rules: LayoutRules, side: Side, others: Sequence[Dump] = ()) -> Dump:
    """Return a dump whose tensors lie as is declared.

    Args:
        dump: One rank's dump.
        rules: What is declared.
        side: Whose dump it is.
        others: The other side, which says what fused modules are called.

    Returns: ``dump`` itself if nothing is declared of its side.
    """
    tensors = [rule for rule in rules.tensors if rule.side is side]
    fused = [rule for rule in rules.fused if rule.side is side]
    if not tensors and not fused:
        return dump
    made = RelaidDump(dump, dump.frame, list(dump.notes))
    if tensors:
        _change_all(made, tensors)
    for rule in fused:
        _fuse(made, rule, others)
    return made


# --- changes of one tensor ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Changed:
    """A tensor after a change: its shape, how to see it so, and whether its elements are in the same order."""

    shape: tuple[int, ...]
    view: Callable[[TensorSource], TensorSource]
    keeps_order: bool


def _change_all(made: RelaidDump, rules: Sequence[TensorRule]) -> None:
    used: set[str] = set()
    lost: list[str] = []
    rows = made.frame.with_row_index("row").filter(pl.col("kind") == RowKind.TENSOR.value)
    cells: dict[int, _Row] = {}
    for row in rows.iter_rows(named=True):
        value_names = names_of(row["entry"], row["role"], row["phase"], row["key"])
        wanted = [rule for rule in rules if _is_wanted(rule, row["entry"], value_names)]
        if not wanted:
            continue
        new: _Row = dict(row)
        for rule in wanted:
            shape = _sizes(new["shape"])
            changed = _change(rule, shape)
            if changed is None:
                continue
            used.add(rule.where)
            new = _changed_row(made, new, rule, changed)
            if not changed.keeps_order and (row["checksum"] or row["sketch"]):
                lost.append(row["name"])
        cells[int(row["row"])] = new
    made.frame = _with_cells(made.frame, cells)
    for rule in rules:
        if rule.where not in used:
            made.notes.append(f"{rule.where}: the rule for '{rule.match}' matches no tensor of {made.path}")
    if lost:
        made.notes.append(
            "tensors whose hash, sketch or checksum says nothing once their elements are in another order: "
            f"{len(set(lost)):,}; the first is {lost[0]}"
        )


def _is_wanted(rule: TensorRule, entry: str, value_names: Sequence[str]) -> bool:
    return is_meant(rule.match, entry) and (not rule.values or any(name in rule.values for name in value_names))


def _change(rule: TensorRule, shape: tuple[int, ...]) -> _Changed | None:
    """Return what a rule makes of a tensor; ``None`` if it does not fit one of this shape."""
    change, numbers = rule.change, rule.numbers
    if change is Change.TRANSPOSE:
        dims = tuple(range(len(shape)))
        first, second = numbers if len(numbers) == 2 else (-2, -1)
        if len(shape) < 2 or not all(-len(shape) <= dim < len(shape) for dim in (first, second)):
            return None
        order = list(dims)
        order[first], order[second] = order[second], order[first]
        return _permuted(shape, tuple(order))
    if change is Change.PERMUTE:
        return _permuted(shape, numbers) if len(numbers) == len(shape) else None
    if change is Change.UNPAD:
        return _unpadded(rule, shape)
    if change is Change.MERGE:
        new = _merged_dims(shape, numbers)
    elif change is Change.SQUEEZE:
        dims = {dim % len(shape) for dim in numbers if -len(shape) <= dim < len(shape)}
        is_sound = len(dims) == len(numbers) and all(shape[dim] == 1 for dim in dims)
        new = tuple(size for dim, size in enumerate(shape) if dim not in dims) if is_sound else None
    else:
        new = _reshaped(shape, numbers)
    if new is None:
        return None
    return _Changed(new, lambda source: reshaped(source, new), keeps_order=True)


def _permuted(shape: tuple[int, ...], dims: tuple[int, ...]) -> _Changed:
    new = tuple(shape[dim] for dim in dims)
    stays = [dim for dim in dims if shape[dim] != 1] == [dim for dim in range(len(shape)) if shape[dim] != 1]
    return _Changed(new, lambda source: permuted(reshaped(source, shape), dims), keeps_order=stays)


def _merged_dims(shape: tuple[int, ...], dims: Sequence[int]) -> tuple[int, ...] | None:
    if dims[-1] >= len(shape) or dims[0] < 0:
        return None
    return (*shape[: dims[0]], math.prod(shape[dims[0] : dims[-1] + 1]), *shape[dims[-1] + 1 :])


def _reshaped(shape: tuple[int, ...], wanted: Sequence[int]) -> tuple[int, ...] | None:
    rest = math.prod(size for size in wanted if size >= 0)
    numel = math.prod(shape)
    if -1 in wanted and (rest == 0 or numel % rest):
        return None
    new = tuple(numel // rest if size == -1 else size for size in wanted)
    return new if math.prod(new) == numel else None


def _unpadded(rule: TensorRule, shape: tuple[int, ...]) -> _Changed | None:
    dim, size = rule.numbers
    dim += len(shape) if dim < 0 else 0
    if not 0 <= dim < len(shape) or shape[dim] <= size:
        return None
    new = (*shape[:dim], size, *shape[dim + 1 :])

    def view(source: TensorSource) -> TensorSource:
        begin = [0] * len(shape)
        if rule.is_zero:
            begin[dim] = size
            rest = (*shape[:dim], shape[dim] - size, *shape[dim + 1 :])
            for values in narrowed(reshaped(source, shape), tuple(begin), rest).chunks(CHUNK):
                if values.any():
                    raise DumpError(
                        f"the padding beyond {size} of dimension {dim} is declared to be zero and is not; declare it "
                        f"as 'padding: ignored' if it does not matter ({rule.where})"
                    )
        return narrowed(reshaped(source, shape), (0,) * len(shape), new)

    # Along the first dimension all other elements keep their numbers.
    return _Changed(new, view, keeps_order=False)


def _changed_row(made: RelaidDump, row: _Row, rule: TensorRule, changed: _Changed) -> _Row:
    new = {**row, "shape": str(list(changed.shape)), "numel": math.prod(changed.shape)}
    if row["distribution"] is not None:
        # Which dimension is cut is said of the tensor as it was.
        return {
            **row,
            **dict.fromkeys(_VALUES),
            "failure": f"it is distributed, so {rule.change.value} cannot be applied",
        }
    if not changed.keeps_order:
        new |= {"checksum": None, "sketch": row["sketch"] if _keeps_sketch(rule) else None}
    if rule.change is Change.UNPAD:
        new |= _without_zeros(row, math.prod(changed.shape)) if rule.is_zero else dict.fromkeys(STATISTICS)
    if row["file_name"] is not None:
        name, inner = str(row["file_name"]), _opener(made, row["file_name"])
        token = f"{name} {rule.change.value}{list(rule.numbers) if rule.numbers else ''}"
        made.views[token] = lambda: changed.view(inner())
        new["file_name"] = token
    return new


_VALUES = (*STATISTICS, "exact", "checksum", "sketch", "file_name")


def _keeps_sketch(rule: TensorRule) -> bool:
    """Whether what is cut off added nothing and what is left has the numbers that it had."""
    return rule.change is Change.UNPAD and rule.is_zero and rule.numbers[0] == 0


def _opener(made: RelaidDump, file_name: str) -> Open:
    view = made.views.get(file_name)
    return view if view is not None else lambda: made.inner.open_tensor(file_name)


def _without_zeros(row: _Row, numel: int) -> _Row:
    """Return the statistics of a tensor without some of its zeros.

    Where the largest element is zero, that of the rest may be any below it, and is not known.
    """
    new: _Row = {"exact": None}
    largest, smallest, mean = row["max"], row["min"], row["mean"]
    new["max"] = largest if largest is None or largest > 0 or math.isnan(largest) else None
    new["min"] = smallest if smallest is None or smallest < 0 or math.isnan(smallest) else None
    new["mean"] = mean * row["numel"] / numel if mean is not None and numel else None
    return new


def _with_cells(frame: pl.DataFrame, cells: Mapping[int, _Row]) -> pl.DataFrame:
    if not cells:
        return frame
    numbers = sorted(cells)
    rows = pl.DataFrame([cells[number] for number in numbers], schema={"row": pl.UInt32, **COLUMNS}, strict=False)
    kept = frame.with_row_index("row").filter(~pl.col("row").is_in(numbers))
    return pl.concat([kept.select("row", *COLUMNS), rows.select("row", *COLUMNS)]).sort("row").drop("row")


# --- fused modules --------------------------------------------------------------------------------------------------


def _fuse(made: RelaidDump, rule: FusedRule, others: Sequence[Dump]) -> None:
    entries = made.frame["entry"].unique(maintain_order=True).to_list()
    wholes = _entries_by_path(others)
    found = 0
    without_partner: list[str] = []
    rows: list[_Row] = []
    gone: dict[str, str] = {}
    for captured, calls in _calls_of(entries, rule):
        path = _filled(rule.whole, captured)
        for kind, parts in _by_kind(calls, len(rule.parts)):
            name = wholes.get((path, kind)) or wholes.get((path.rpartition(".")[0], kind))
            if name is None:
                without_partner.append(path)
                continue
            found += 1
            rows += _fused_rows(made, rule, name, parts)
            gone.update(dict.fromkeys(parts, name))
    if not found:
        what = f"the other side has no {without_partner[0]}" if without_partner else f"{made.path} has no such modules"
        made.notes.append(f"{rule.where}: nothing is fused to '{rule.whole}': {what}")
        return
    made.frame = _with_fused(made.frame, rows, gone)
    made.names |= gone


def _entries_by_path(dumps: Sequence[Dump]) -> dict[tuple[str, str], str]:
    """Return entries of modules by path, and phase with number."""
    found: dict[tuple[str, str], str] = {}
    for dump in dumps:
        for entry in dump.frame["entry"].unique(maintain_order=True).to_list():
            path = called_in(entry).path
            if path is not None:
                found.setdefault((path, _kind_of(entry)), entry)
    return found


def _kind_of(entry: str) -> str:
    return ".".join(entry.rsplit(".", 2)[-2:])


def _calls_of(entries: Sequence[str], rule: FusedRule) -> Iterator[tuple[tuple[str, ...], list[dict[str, str]]]]:
    """Yield for each text that the stars stand for the calls of every part, by phase and number."""
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    patterns = [_capturing(part) for part in rule.parts]
    for entry in entries:
        called = called_in(entry)
        if called.path is None:
            continue
        for i, pattern in enumerate(patterns):
            match = next((m for text in called.texts[:2] if (m := pattern.fullmatch(text)) is not None), None)
            if match is not None:
                calls = found.setdefault(match.groups(), [{} for _ in rule.parts])
                calls[i].setdefault(_kind_of(entry), entry)
    yield from found.items()


def _capturing(pattern: str) -> Any:
    import re

    return re.compile(matches(pattern).pattern.replace(".*", "(.*)"), re.DOTALL)


def _filled(pattern: str, texts: Sequence[str]) -> str:
    parts = pattern.split("*")
    return parts[0] + "".join(text + part for text, part in zip(texts, parts[1:], strict=True))


def _by_kind(calls: Sequence[Mapping[str, str]], num_parts: int) -> Iterator[tuple[str, list[str]]]:
    for kind in calls[0]:
        parts = [part[kind] for part in calls if kind in part]
        if len(parts) == num_parts:
            yield kind, parts


def _fused_rows(made: RelaidDump, rule: FusedRule, name: str, entries: Sequence[str]) -> list[_Row]:
    """Return the rows of a fused call: those values that all its parts have."""
    parts = [
        {
            str(row["key"]).removeprefix(entry): row
            for row in made.frame.filter(pl.col("entry") == entry).iter_rows(named=True)
        }
        for entry in entries
    ]
    rows: list[_Row] = []
    for place in parts[0]:
        own = [part[place] for part in parts if place in part]
        if len(own) == len(parts):
            rows.append({**_fused_row(made, rule, own), "entry": name, "name": name + place, "key": name + place})
    return rows


def _fused_row(made: RelaidDump, rule: FusedRule, rows: Sequence[_Row]) -> _Row:
    first = rows[0]
    if any(row["kind"] != RowKind.TENSOR.value for row in rows):
        return first
    is_backward = first["phase"] == Phase.BACKWARD.value
    role = first["role"]
    if role == (Role.OUTPUT.value if is_backward else Role.INPUT.value):
        if not is_backward:
            return first  # all parts are given the same
        assembly = _assembled([_sizes(row["shape"]) for row in rows], None, 1)
    else:
        is_parameter = role in (Role.PARAMETERS.value, Role.PARAMETERS_GRAD.value)
        axis = rule.parameter_axis if is_parameter else rule.output_axis
        assembly = _assembled([_sizes(row["shape"]) for row in rows], axis, rule.num_groups)
    if any(row["distribution"] is not None for row in rows):
        assembly = Refusal("they are distributed, and are fused only after they are put together")
    if isinstance(assembly, Refusal):
        blank = dict.fromkeys(list(COLUMNS)[list(COLUMNS).index("type") :])
        reason = f"the parts of a fused value do not fit together: {assembly.reason}"
        return {**first, **blank, "kind": RowKind.NONE.value, "failure": reason}
    return _assembled_row(made, rows, assembly)


def _assembled(shapes: Sequence[tuple[int, ...]], axis: int | None, num_groups: int) -> Assembly | Refusal:
    """Return how parts make up a fused tensor: along an axis, group by group, or as terms of a sum."""
    if len({len(shape) for shape in shapes}) > 1:
        return Refusal(f"their shapes are {' and '.join(map(str, map(list, shapes)))}")
    if axis is None:
        whole = [tuple(((0, n),) if n else () for n in shape) for shape in shapes]
        if len(set(shapes)) > 1:
            return Refusal(f"their shapes are {' and '.join(map(str, map(list, shapes)))}")
        return assemble(shapes[0], [Held(i, ranges, (i,)) for i, ranges in enumerate(whole)], "sum")
    dim = axis if axis >= 0 else axis + len(shapes[0])
    rest = {(*shape[:dim], *shape[dim + 1 :]) for shape in shapes}
    if not 0 <= dim < len(shapes[0]) or len(rest) > 1:
        return Refusal(f"their shapes are {' and '.join(map(str, map(list, shapes)))}, and the axis is {axis}")
    if any(shape[dim] % num_groups for shape in shapes):
        return Refusal(f"{' and '.join(str(shape[dim]) for shape in shapes)} do not divide into {num_groups} groups")
    shares = [shape[dim] // num_groups for shape in shapes]
    held: list[Held] = []
    for i, shape in enumerate(shapes):
        along: Ranges = tuple(
            (begin, begin + shares[i])
            for group in range(num_groups)
            for begin in [group * sum(shares) + sum(shares[:i])]
            if shares[i]
        )
        held.append(Held(i, tuple(along if d == dim else (((0, n),) if n else ()) for d, n in enumerate(shape))))
    whole_shape = (*shapes[0][:dim], sum(shape[dim] for shape in shapes), *shapes[0][dim + 1 :])
    return assemble(whole_shape, held)


def _assembled_row(made: RelaidDump, rows: Sequence[_Row], assembly: Assembly) -> _Row:
    numbers = [
        {
            name: Numbers(np.array([_number(rows[p.part][name])]), np.array([rows[p.part][name] is not None]))
            for name in STATISTICS
        }
        for p in assembly.pieces
    ]
    is_complex = "complex" in str(rows[0]["dtype"]).lower()
    merged = merge_statistics(assembly, numbers, is_complex=is_complex)
    new: _Row = {**rows[0], "shape": str(list(assembly.shape)), "numel": math.prod(assembly.shape)}
    for name, column in merged.items():
        value = float(column.values[0]) if column.is_known[0] else None
        new[name] = int(value) if name.startswith("num_") and value is not None else value
    new |= {"checksum": None, "sketch": None, "exact": None, "file_name": None}
    if all(counts_as_whole(piece, assembly.shape) for piece in assembly.pieces):
        new["sketch"] = merge_sketches(assembly, [[rows[piece.part]["sketch"]] for piece in assembly.pieces])[0]
    files = [rows[piece.part]["file_name"] for piece in assembly.pieces]
    if None not in files:
        openers = {piece.part: _opener(made, rows[piece.part]["file_name"]) for piece in assembly.pieces}
        token = f"{files[0]} and {len(files) - 1} more"
        made.views[token] = lambda: Assembled(assembly, lambda part: openers[part](), openers[0]().dtype)
        new["file_name"] = token
    return new


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _with_fused(frame: pl.DataFrame, rows: Sequence[_Row], gone: Mapping[str, str]) -> pl.DataFrame:
    """Return the rows with those of fused calls in the place of their first part's."""
    numbered = frame.with_row_index("row")
    first: dict[str, int] = {}
    for entry, row in numbered.select("entry", "row").iter_rows():
        if entry in gone:
            first.setdefault(gone[entry], row)
    made = pl.DataFrame(
        [{**row, "row": first[row["entry"]]} for row in rows], schema={"row": pl.UInt32, **COLUMNS}, strict=False
    )
    kept = numbered.filter(~pl.col("entry").is_in(list(gone)))
    whole = pl.concat([kept.select("row", *COLUMNS), made.select("row", *COLUMNS)])
    return whole.sort("row", maintain_order=True).drop("row")


def _sizes(shape: str) -> tuple[int, ...]:
    return tuple(ast.literal_eval(shape))
