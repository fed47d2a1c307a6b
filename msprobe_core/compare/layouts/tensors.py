"""Conversion of one rank's tensors to the layout of the other side, as declared in a layout file.

Maximum, minimum, mean and norm do not depend on the order of elements. Hash, sketch and checksum do, so they are kept
if a change preserves the order, and dropped otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from msprobe_core.compare.layouts.fused import fuse
from msprobe_core.compare.layouts.layout_view import LayoutView, Row
from msprobe_core.compare.layouts.rows import is_meant, names_of
from msprobe_core.compare.layouts.rules import Change, LayoutRules, Side, TensorRule
from msprobe_core.compare.pairing_codes import MadeAlikeCode
from msprobe_core.compare.shards.assembly import STATISTICS
from msprobe_core.compare.shards.sources import CHUNK, narrowed, permuted, reshaped
from msprobe_core.errors import DumpError
from msprobe_core.findings import Finding
from msprobe_core.protocols.storage import Dump, TensorSource
from msprobe_core.store.frame import COLUMNS, VALUE_COLUMNS, RowKind, sizes_in


def relaid(dump: Dump, rules: LayoutRules, side: Side, others: Sequence[Dump] = ()) -> Dump:
    """Return a dump with its tensors in the declared layout.

    Args:
        dump: One rank's dump.
        rules: The declarations.
        side: Side of the dump.
        others: The other side, which has the names of fused modules.

    Returns: ``dump`` itself if nothing is declared for its side.
    """
    tensors = [rule for rule in rules.tensors if rule.side is side]
    fused = [rule for rule in rules.fused if rule.side is side]
    if not tensors and not fused:
        return dump
    made = LayoutView(dump, dump.frame)
    if tensors:
        _change_all(made, tensors)
    for rule in fused:
        fuse(made, rule, others)
    return made


@dataclass(frozen=True)
class _Changed:
    """A tensor after a change: its shape, its view, and whether its elements keep their order."""

    shape: tuple[int, ...]
    view: Callable[[TensorSource], TensorSource]
    keeps_order: bool


def _change_all(made: LayoutView, rules: Sequence[TensorRule]) -> None:
    used: set[str] = set()
    lost: list[str] = []
    rows = made.frame.with_row_index("row").filter(pl.col("kind") == RowKind.TENSOR.value)
    cells: dict[int, Row] = {}
    for row in rows.iter_rows(named=True):
        value_names = names_of(row["entry"], row["role"], row["phase"], row["key"])
        wanted = [rule for rule in rules if _is_wanted(rule, row["entry"], value_names)]
        if not wanted:
            continue
        new: Row = dict(row)
        for rule in wanted:
            shape = sizes_in(new["shape"])
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
        if rule.where and rule.where not in used:
            fields = {"rule": rule.where, "match": rule.match, "path": str(made.path)}
            made.notes.append(Finding(MadeAlikeCode.RULE_UNUSED, fields=fields))
    if lost:
        fields = {"count": len(set(lost)), "first": lost[0]}
        made.notes.append(Finding(MadeAlikeCode.HASHES_LOST, fields=fields))


def _is_wanted(rule: TensorRule, entry: str, value_names: Sequence[str]) -> bool:
    return is_meant(rule.match, entry) and (not rule.values or any(name in rule.values for name in value_names))


def _change(rule: TensorRule, shape: tuple[int, ...]) -> _Changed | None:
    """Return the change of a tensor by a rule; ``None`` if the rule does not fit its shape."""
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

    # Along the first dimension the remaining elements keep their numbers; see `_keeps_sketch`.
    return _Changed(new, view, keeps_order=False)


def _changed_row(made: LayoutView, row: Row, rule: TensorRule, changed: _Changed) -> Row:
    new = {**row, "shape": str(list(changed.shape)), "numel": math.prod(changed.shape)}
    if row["distribution"] is not None:
        # The recorded placement refers to dimensions before the change.
        return {
            **row,
            **dict.fromkeys(VALUE_COLUMNS),
            "failure": f"it is distributed, so {rule.change.value} cannot be applied",
        }
    if not changed.keeps_order:
        new |= {"checksum": None, "sketch": row["sketch"] if _keeps_sketch(rule) else None}
    if rule.change is Change.UNPAD:
        new |= {"fp8": None, "extra": None}
        new |= _without_zeros(row, math.prod(changed.shape)) if rule.is_zero else dict.fromkeys(STATISTICS)
    if row["file_name"] is not None:
        name, inner = str(row["file_name"]), made.opener(str(row["file_name"]))
        token = f"{name} {rule.change.value}{list(rule.numbers) if rule.numbers else ''}"
        made.views[token] = lambda: changed.view(inner())
        new["file_name"] = token
    return new


def _keeps_sketch(rule: TensorRule) -> bool:
    """Whether the removed padding contributed nothing to the sketch and the rest keeps its element numbers."""
    return rule.change is Change.UNPAD and rule.is_zero and rule.numbers[0] == 0


def _without_zeros(row: Row, numel: int) -> Row:
    """Return the statistics of a tensor without some of its zeros.

    If an extreme is zero, that of the remaining elements is unknown.
    """
    new: Row = {"exact": None}
    largest, smallest, mean = row["max"], row["min"], row["mean"]
    new["max"] = largest if largest is None or largest > 0 or math.isnan(largest) else None
    new["min"] = smallest if smallest is None or smallest < 0 or math.isnan(smallest) else None
    new["mean"] = mean * row["numel"] / numel if mean is not None and numel else None
    return new


def _with_cells(frame: pl.DataFrame, cells: Mapping[int, Row]) -> pl.DataFrame:
    if not cells:
        return frame
    numbers = sorted(cells)
    rows = pl.DataFrame([cells[number] for number in numbers], schema={"row": pl.UInt32, **COLUMNS}, strict=False)
    kept = frame.with_row_index("row").filter(~pl.col("row").is_in(numbers))
    return pl.concat([kept.select("row", *COLUMNS), rows.select("row", *COLUMNS)]).sort("row").drop("row")
