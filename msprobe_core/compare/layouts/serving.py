"""Alignment of a training dump with one of a serving engine, by common modules under common names.

The comparison covers what both have: outputs and parameters of modules, in forward. An engine gets other arguments than
a model in training, so inputs are left out. Modules that one side has alone are listed in a note, since an engine may
compute in one kernel what takes several modules in training.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import polars as pl

from msprobe_core import names
from msprobe_core.compare.layouts.fused import fuse
from msprobe_core.compare.layouts.layout_view import LayoutView, Row
from msprobe_core.compare.layouts.rows import called_in
from msprobe_core.compare.layouts.rules import FusedRule, Side
from msprobe_core.compare.pairing_codes import MadeAlikeCode
from msprobe_core.compare.shards.sources import reshaped
from msprobe_core.errors import NothingInCommonError
from msprobe_core.findings import Finding
from msprobe_core.model import Phase, Role, SiteKind
from msprobe_core.protocols.storage import Dump, TensorSource
from msprobe_core.protocols.trainers import ModuleMap
from msprobe_core.store.frame import COLUMNS, RowKind, sizes_in

_MAX_NAMES = 3
_LAYERS = "layers"
"""Part of a path that precedes a layer's number. The path before it depends on the wrappers of the model."""


def align_with_serving(target: Dump, golden: Dump, modules: ModuleMap) -> tuple[Dump, Dump]:
    """Return the two dumps with the modules that both have, under the names of the serving engine.

    Either dump may be the engine's: names and fused modules show which side is which.

    Args:
        target: One dump.
        golden: The other dump.
        modules: Module names of the training backend.

    Raises:
        CompareError: they have no module in common.
    """
    sides = [LayoutView(dump, dump.frame) for dump in (target, golden)]
    types: dict[str, str] = {}
    for side in reversed(sides):
        _rename(side, modules, types)
        _reshape(side, {})
    for side, other, which in ((sides[0], sides[1], Side.TARGET), (sides[1], sides[0], Side.GOLDEN)):
        for whole, parts in modules.fused.items():
            if not _has(side, whole) and all(_has(side, part) for part in parts) and _has(other, whole):
                rule = FusedRule(f"--backend {modules.name}", tuple(f"*.{p}" for p in parts), f"*.{whole}", which)
                fuse(side, rule, [other])
    if modules.merges_heads:
        shapes = [_shapes(side) for side in sides]
        for side, other in ((sides[0], shapes[1]), (sides[1], shapes[0])):
            _reshape(side, other)
    for side in sides:
        _forget_order(side, modules.reordered)
    _keep_common(sides)
    return sides[0], sides[1]


def _has(side: LayoutView, segment: str) -> bool:
    return any((called_in(entry).path or "").endswith(f".{segment}") for entry in side.frame["entry"].unique())


def served_path(path: str, modules: ModuleMap) -> str:
    """Return the engine's name of a module: its path from ``layers`` on, or its own name alone outside of layers."""
    parts = [modules.segments.get(part, part) for part in path.split(".") if part not in modules.wrappers]
    if _LAYERS in parts:
        return ".".join(parts[parts.index(_LAYERS) :])
    return parts[-1] if parts else ""


def _rename(side: LayoutView, modules: ModuleMap, types: dict[str, str]) -> None:
    """Keep outputs and parameters of modules in forward, and rename the modules to the engine's names.

    Args:
        side: View that is changed in place.
        modules: The names.
        types: Classes of the other side by path, which this side gets too; extended by this side's classes.
    """
    frame = side.frame.filter(
        (pl.col("phase") == Phase.FORWARD.value)
        & pl.col("role").is_in([Role.OUTPUT.value, Role.PARAMETERS.value])
        & (pl.col("kind") == RowKind.TENSOR.value)
    )
    entries = [
        (entry, site)
        for entry in frame["entry"].unique(maintain_order=True).to_list()
        if names.is_module(entry) and (site := names.parse_entry(entry)).kind is SiteKind.MODULE
    ]
    served = {entry: served_path(site.path, modules) for entry, site in entries}
    taken = Counter((served[entry], site.index) for entry, site in entries)
    renamed: dict[str, str] = {}
    for entry, site in entries:
        path = served[entry]
        if not path or taken[path, site.index] > 1:  # modules whose new names collide keep their own
            path = site.path
        type_name = types.setdefault(path, site.type_name)
        renamed[entry] = f"{names.module_stem('Module', path, type_name)}.{Phase.FORWARD.value}.{site.index}"
    side.names |= renamed
    kept = frame.filter(pl.col("entry").is_in(list(renamed)))
    new = pl.col("entry").replace_strict(renamed, default=None, return_dtype=pl.String)
    place = pl.col("key").str.slice(pl.col("entry").str.len_chars())
    side.frame = kept.with_columns(name=new + place, key=new + place, entry=new).select(*COLUMNS)


def _shapes(side: LayoutView) -> dict[str, tuple[int, ...]]:
    return {key: sizes_in(shape) for key, shape in side.frame.select("key", "shape").iter_rows() if shape is not None}


def _reshape(side: LayoutView, like: Mapping[str, tuple[int, ...]]) -> None:
    """Drop dimensions of size 1 from outputs, or merge their last two if the other side has them merged."""
    rows: list[Row] = []
    for row in side.frame.iter_rows(named=True):
        shape = None if row["shape"] is None else sizes_in(row["shape"])
        new = shape if shape is None or row["role"] != Role.OUTPUT.value else _new_shape(shape, like.get(row["key"]))
        rows.append(row if new == shape or new is None else _reshaped_row(side, row, new))
    side.frame = pl.DataFrame(rows, schema=COLUMNS, strict=False)


def _new_shape(shape: tuple[int, ...], other: tuple[int, ...] | None) -> tuple[int, ...]:
    if other is not None:
        merged = (*shape[:-2], math.prod(shape[-2:]))
        return merged if len(shape) == len(other) + 1 and merged == other else shape
    return tuple(size for size in shape if size != 1)


def _reshaped_row(side: LayoutView, row: Row, shape: tuple[int, ...]) -> Row:
    new: Row = {**row, "shape": str(list(shape))}
    if row["file_name"] is not None:
        inner = side.opener(str(row["file_name"]))
        token = f"{row['file_name']} as {list(shape)}"

        def view() -> TensorSource:
            return reshaped(inner(), shape)

        side.views[token] = view
        new["file_name"] = token
    return new


def _forget_order(side: LayoutView, reordered: Sequence[str]) -> None:
    """Keep only statistics, which are equal in any order, for modules whose elements are ordered differently."""
    paths = {entry: called_in(entry).path or "" for entry in side.frame["entry"].unique().to_list()}
    meant = [entry for entry, path in paths.items() if path.rpartition(".")[2] in reordered]
    is_meant = pl.col("entry").is_in(meant)
    side.frame = side.frame.with_columns(
        pl.when(~is_meant).then(pl.col(name)).alias(name) for name in ("checksum", "sketch", "file_name")
    )


def _keep_common(sides: Sequence[LayoutView]) -> None:
    found = [set(side.frame["entry"].unique()) for side in sides]
    common = found[0] & found[1]
    if not common:
        shown = [next(iter(sorted(own)), "none") for own in found]
        raise NothingInCommonError(
            f"{sides[0].path} and {sides[1].path} have no module in common; of the first there is {shown[0]}, of the "
            f"second {shown[1]}; was the right --backend given?"
        )
    for side, own in zip(sides, found, strict=True):
        lone = sorted({called_in(entry).path or "" for entry in own - common})
        if lone:
            shown = [*lone[:_MAX_NAMES], *(["…"] if len(lone) > _MAX_NAMES else [])]
            fields = {"path": str(side.path), "count": len(lone), "modules": shown}
            side.notes.append(Finding(MadeAlikeCode.LONE_MODULES, fields=fields))
        side.frame = side.frame.filter(pl.col("entry").is_in(list(common)))
    # A call may record more values on one side, such as attention weights that only training returns.
    keys = set(sides[0].frame["key"]) & set(sides[1].frame["key"])
    for side in sides:
        side.frame = side.frame.filter(pl.col("key").is_in(list(keys)))
