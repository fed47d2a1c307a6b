"""Fusion of modules of one side into the one module that they are on the other side, as a layout file declares."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from msprobe_core import names
from msprobe_core.compare.extra_statistics import merged_extra
from msprobe_core.compare.layouts.layout_view import LayoutView, Row
from msprobe_core.compare.layouts.rows import called_in
from msprobe_core.compare.layouts.rules import FusedRule
from msprobe_core.compare.pairing_codes import MadeAlikeCode
from msprobe_core.compare.shards.assembly import (
    STATISTICS,
    Assembly,
    CannotMerge,
    Held,
    Numbers,
    assemble,
    counts_as_whole,
    merge_sketches,
    merge_statistics,
)
from msprobe_core.compare.shards.sources import Assembled
from msprobe_core.config.name_patterns import NamePattern
from msprobe_core.findings import Finding
from msprobe_core.fingerprint.shard_ranges import Ranges
from msprobe_core.model import Phase, Role
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import COLUMNS, RowKind, sizes_in


def fuse(made: LayoutView, rule: FusedRule, others: Sequence[Dump]) -> None:
    """Replace the rows of parts by rows of whole modules.

    Args:
        made: View whose rows are changed in place.
        rule: The modules.
        others: The other side, which has the names of the whole modules.
    """
    entries = made.frame["entry"].unique(maintain_order=True).to_list()
    wholes = _entries_by_path(others)
    found = 0
    without_partner: list[str] = []
    rows: list[Row] = []
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
        why = (
            Finding(MadeAlikeCode.NOT_ON_OTHER_SIDE, fields={"module": without_partner[0]}) if without_partner
            else Finding(MadeAlikeCode.NO_SUCH_MODULES, fields={"path": str(made.path)})
        )  # fmt: skip
        fields = {"rule": rule.where, "whole": rule.whole, "why": why}
        made.notes.append(Finding(MadeAlikeCode.NOT_FUSED, fields=fields))
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
                found.setdefault((path, names.ending_of(entry)), entry)
    return found


def _calls_of(entries: Sequence[str], rule: FusedRule) -> Iterator[tuple[tuple[str, ...], list[dict[str, str]]]]:
    """Yield, for each text matched by the stars, the calls of every part, by phase and number."""
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    patterns = [NamePattern(part) for part in rule.parts]
    for entry in entries:
        called = called_in(entry)
        if called.path is None:
            continue
        for i, pattern in enumerate(patterns):
            stars = next((own for text in called.texts[:2] if (own := pattern.stars_in(text)) is not None), None)
            if stars is not None:
                calls = found.setdefault(stars, [{} for _ in rule.parts])
                calls[i].setdefault(names.ending_of(entry), entry)
    yield from found.items()


def _filled(pattern: str, texts: Sequence[str]) -> str:
    parts = pattern.split("*")
    return parts[0] + "".join(text + part for text, part in zip(texts, parts[1:], strict=True))


def _by_kind(calls: Sequence[Mapping[str, str]], num_parts: int) -> Iterator[tuple[str, list[str]]]:
    for kind in calls[0]:
        parts = [part[kind] for part in calls if kind in part]
        if len(parts) == num_parts:
            yield kind, parts


def _fused_rows(made: LayoutView, rule: FusedRule, name: str, entries: Sequence[str]) -> list[Row]:
    """Return the rows of a fused call: the values that all its parts have."""
    parts = [
        {
            str(row["key"]).removeprefix(entry): row
            for row in made.frame.filter(pl.col("entry") == entry).iter_rows(named=True)
        }
        for entry in entries
    ]
    rows: list[Row] = []
    for place in parts[0]:
        own = [part[place] for part in parts if place in part]
        if len(own) == len(parts):
            rows.append({**_fused_row(made, rule, own), "entry": name, "name": name + place, "key": name + place})
    return rows


def _fused_row(made: LayoutView, rule: FusedRule, rows: Sequence[Row]) -> Row:
    first = rows[0]
    if any(row["kind"] != RowKind.TENSOR.value for row in rows):
        return first
    is_backward = first["phase"] == Phase.BACKWARD.value
    role = first["role"]
    if role == (Role.OUTPUT.value if is_backward else Role.INPUT.value):
        if not is_backward:
            return first  # all parts have the same input
        assembly = _assembled([sizes_in(row["shape"]) for row in rows], None, 1)
    else:
        is_parameter = role in (Role.PARAMETERS.value, Role.PARAMETERS_GRAD.value)
        axis = rule.parameter_axis if is_parameter else rule.output_axis
        assembly = _assembled([sizes_in(row["shape"]) for row in rows], axis, rule.num_groups)
    if any(row["distribution"] is not None for row in rows):
        assembly = CannotMerge("they are distributed, and are fused only after they are put together")
    if isinstance(assembly, CannotMerge):
        blank = dict.fromkeys(list(COLUMNS)[list(COLUMNS).index("type") :])
        reason = f"the parts of a fused value do not fit together: {assembly.reason}"
        return {**first, **blank, "kind": RowKind.NONE.value, "failure": reason}
    return _assembled_row(made, rows, assembly)


def _assembled(shapes: Sequence[tuple[int, ...]], axis: int | None, num_groups: int) -> Assembly | CannotMerge:
    """Return how parts form a fused tensor: along an axis, group by group, or as terms of a sum."""
    if len({len(shape) for shape in shapes}) > 1:
        return CannotMerge(f"their shapes are {' and '.join(map(str, map(list, shapes)))}")
    if axis is None:
        whole = [tuple(((0, n),) if n else () for n in shape) for shape in shapes]
        if len(set(shapes)) > 1:
            return CannotMerge(f"their shapes are {' and '.join(map(str, map(list, shapes)))}")
        return assemble(shapes[0], [Held(i, ranges, (i,)) for i, ranges in enumerate(whole)], "sum")
    dim = axis if axis >= 0 else axis + len(shapes[0])
    rest = {(*shape[:dim], *shape[dim + 1 :]) for shape in shapes}
    if not 0 <= dim < len(shapes[0]) or len(rest) > 1:
        return CannotMerge(f"their shapes are {' and '.join(map(str, map(list, shapes)))}, and the axis is {axis}")
    if any(shape[dim] % num_groups for shape in shapes):
        return CannotMerge(
            f"{' and '.join(str(shape[dim]) for shape in shapes)} do not divide into {num_groups} groups"
        )
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


def _assembled_row(made: LayoutView, rows: Sequence[Row], assembly: Assembly) -> Row:
    numbers = [
        {
            name: Numbers(np.array([_number(rows[p.part][name])]), np.array([rows[p.part][name] is not None]))
            for name in STATISTICS
        }
        for p in assembly.pieces
    ]
    is_complex = "complex" in str(rows[0]["dtype"]).lower()
    merged = merge_statistics(assembly, numbers, is_complex=is_complex)
    new: Row = {**rows[0], "shape": str(list(assembly.shape)), "numel": math.prod(assembly.shape)}
    for name, column in merged.items():
        value = float(column.values[0]) if column.is_known[0] else None
        new[name] = int(value) if name.startswith("num_") and value is not None else value
    new |= {"checksum": None, "sketch": None, "fp8": None, "extra": None, "exact": None, "file_name": None}
    cells = [rows[piece.part]["extra"] for piece in assembly.pieces]
    if assembly.reduction is None and None not in cells:
        new["extra"] = merged_extra(cells, [piece.numel for piece in assembly.pieces])
    if all(counts_as_whole(piece, assembly.shape) for piece in assembly.pieces):
        new["sketch"] = merge_sketches(assembly, [[rows[piece.part]["sketch"]] for piece in assembly.pieces])[0]
    files = [rows[piece.part]["file_name"] for piece in assembly.pieces]
    if None not in files:
        openers = {piece.part: made.opener(rows[piece.part]["file_name"]) for piece in assembly.pieces}
        token = f"{files[0]} and {len(files) - 1} more"
        made.views[token] = lambda: Assembled(assembly, lambda part: openers[part](), openers[0]().dtype)
        new["file_name"] = token
    return new


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _with_fused(frame: pl.DataFrame, rows: Sequence[Row], gone: Mapping[str, str]) -> pl.DataFrame:
    """Return the rows, with those of fused calls at the position of their first part."""
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
