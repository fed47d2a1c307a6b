"""Read the two sides of a comparison, merge the ranks of each, and attribute errors to ranks."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from msprobe_core.compare.layouts.rank_groups import DeclaredRanks
from msprobe_core.compare.layouts.rules import LayoutRules, Side
from msprobe_core.compare.layouts.stored_orders import in_canonical_order
from msprobe_core.compare.layouts.tensors import relaid
from msprobe_core.compare.pairing_codes import MergedCode
from msprobe_core.compare.pairs import UnitPair
from msprobe_core.compare.shards.findings import ReplicaFinding
from msprobe_core.compare.shards.merged import HeldPiece, MergedDump, merged
from msprobe_core.errors import DumpError
from msprobe_core.findings import Field, Finding
from msprobe_core.judge.fault import Fault
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.reading import read_dump

_NUM_TOLD = 4


def read_sides(pair: UnitPair, layouts: LayoutRules | None = None) -> tuple[Dump, Dump]:
    """Return target and golden dump of a pair, each as one dump of whole tensors.

    Args:
        pair: The paths.
        layouts: The declared layouts.

    Raises:
        CompareError: a path is not a dump.
        DumpError: a dump cannot be read.
    """
    targets, goldens = (
        [read_dump(path) for path in parts or (whole,)]
        for parts, whole in ((pair.target_parts, pair.target), (pair.golden_parts, pair.golden))
    )
    targets, goldens = in_canonical_order(targets, goldens)
    if layouts is not None:
        targets = [relaid(dump, layouts, Side.TARGET, goldens) for dump in targets]
        goldens = [relaid(dump, layouts, Side.GOLDEN, targets) for dump in goldens]
    golden = _whole(goldens, Side.GOLDEN, layouts, targets if len(targets) == 1 else ())
    target = _whole(targets, Side.TARGET, layouts, [golden])
    return target, golden


def _whole(dumps: Sequence[Dump], side: Side, layouts: LayoutRules | None, like: Sequence[Dump]) -> Dump:
    if len(dumps) == 1:
        return dumps[0]
    declaration = None if layouts is None or side not in layouts.ranks else DeclaredRanks(layouts, side)
    return merged(dumps, declaration, like)


def find_replicas(*dumps: Dump) -> list[ReplicaFinding]:
    """Return the findings on replicas in merged dumps, whose values should be equal."""
    return [finding for dump in dumps if isinstance(dump, MergedDump) for finding in dump.replicas]


def note_parts(fault: Fault | None, rows: pl.DataFrame, target: Dump, golden: Dump) -> list[Finding]:
    """Return notes on replicas that differ, and on the rank whose part of the first faulty tensor is wrong."""
    notes: list[Finding] = []
    for dump in (target, golden):
        if isinstance(dump, MergedDump) and dump.replicas:
            found = [each.finding for each in dump.replicas]
            rest = len(found) - _NUM_TOLD
            more = [Finding(MergedCode.MORE, fields={"count": rest})] if rest > 0 else []
            fields = {"path": str(dump.path), "count": len(found), "found": found[:_NUM_TOLD], "more": more}
            notes.append(Finding(MergedCode.REPLICAS, fields=fields))
    if fault is not None and isinstance(target, MergedDump):
        notes += _note_fault(fault, rows, target, golden)
    return notes


def _note_fault(fault: Fault, rows: pl.DataFrame, target: MergedDump, golden: Dump) -> list[Finding]:
    for name, _ in fault.findings:
        found = rows.filter(pl.col("name_target") == name).head(1)
        pieces = target.held(name)
        if found.height and len(pieces) > 1:
            parts = _told(pieces, _errors(found, name, target, golden), found)
            return [Finding(MergedCode.HELD, fields={"name": name, "parts": parts})]
    return []


def _errors(row: pl.DataFrame, name: str, target: MergedDump, golden: Dump) -> Sequence[float]:
    """Return the error of each part, if the tensors are stored."""
    file_name = row["file_name_golden"][0]
    if file_name is None or row["file_name_target"][0] is None:
        return []
    try:
        return target.errors_by_part(name, golden.open_tensor(file_name))
    except DumpError:  # reported by the comparison of tensors
        return []


def _told(pieces: Sequence[HeldPiece], errors: Sequence[float], row: pl.DataFrame) -> list[Finding]:
    if errors:
        worst = sorted(zip(errors, pieces, strict=True), key=lambda pair: -pair[0])[:_NUM_TOLD]
        return [_of_part(MergedCode.PART_ERROR, piece, error=error) for error, piece in worst]
    for name, what in (("max", "maximum"), ("min", "minimum")):
        value, golden = row[f"{name}_target"][0], row[f"{name}_golden"][0]
        holders = [piece for piece in pieces if value is not None and piece.values.get(name) == value]
        if golden is not None and value != golden and len(holders) == 1:
            return [_of_part(MergedCode.PART_EXTREME, holders[0], what=what, own=value, other=golden)]
    return [
        _of_part(MergedCode.PART_NORM, piece, norm=piece.values.get("norm", float("nan")))
        for piece in pieces[:_NUM_TOLD]
    ]


def _of_part(code: MergedCode, piece: HeldPiece, **fields: Field) -> Finding:
    return Finding(code, fields={"rank": piece.rank, "where": piece.where, **fields})
