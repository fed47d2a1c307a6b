"""Comparison of values that should be equal on several ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from msprobe_core.compare.compare_codes import CompareCode
from msprobe_core.compare.shards.assembly import Array, Assembly
from msprobe_core.compare.shards.findings import ReplicaFinding
from msprobe_core.compare.shards.rank_rows import Union

_SHOWN = ("max", "min", "mean", "norm")


def agreement(union: Union, values: Array, first: int, other: int) -> Array:
    """Return for some values whether two parts agree, as far as is known; bool ``[n]``.

    If both have a checksum, it decides; if both have a sketch, the sketch and the statistics; else the statistics.
    """
    rows = union.index[values, first], union.index[values, other]
    parts = union.parts[first], union.parts[other]
    same: Array = np.ones(len(values), np.bool_)
    for name in ("max", "min", "mean", "norm", "num_nan", "num_inf"):
        left, right = (part.numbers[name].at(row) for part, row in zip(parts, rows, strict=True))
        equal = (left.values == right.values) | (np.isnan(left.values) & np.isnan(right.values))
        same &= equal | ~(left.is_known & right.is_known)
    for name in ("sketch", "checksum"):
        marks = [part.marks[name] for part in parts]
        both = marks[0][1][rows[0]] & marks[1][1][rows[1]]
        equal = marks[0][0][rows[0]] == marks[1][0][rows[1]]
        same = cast("Any", np).where(both, equal if name == "checksum" else equal & same, same)
    return same


def differing(
    union: Union, values: Array, parts: Sequence[int], reason: CompareCode, known: dict[int, ReplicaFinding]
) -> None:
    """Add a finding for each value that should be equal in several parts and is not.

    Args:
        union: All values.
        values: The values to check.
        parts: Parts that should be equal.
        reason: Why they should be equal.
        known: Findings by value; existing ones are kept.
    """
    differs = np.zeros(len(values), np.bool_)
    for part in parts[1:]:
        differs |= ~agreement(union, values, parts[0], part)
    for value in values[differs].tolist():
        known.setdefault(value, _finding(union, value, parts, reason))


def copies_that_differ(union: Union, values: Array, assembly: Assembly, known: dict[int, ReplicaFinding]) -> None:
    """Add a finding for each value whose parts are copies and differ.

    Args:
        union: All values.
        values: Values of one group.
        assembly: Their assembly.
        known: Findings by value; existing ones are kept.
    """
    for piece in assembly.pieces:
        if piece.copies:
            part = union.parts[piece.part]
            is_placed = bool(part.frame["distribution"][int(union.index[values[0], piece.part])])
            reason = CompareCode.ALIKE_AS_PARTS if is_placed else CompareCode.ALIKE_ON_ALL
            differing(union, values, [piece.part, *piece.copies], reason, known)


def _finding(union: Union, value: int, parts: Sequence[int], reason: CompareCode) -> ReplicaFinding:
    cells = [union.parts[part].frame.row(int(union.index[value, part]), named=True) for part in parts]
    for evidence in ("checksum", "sketch"):
        found = [cell[evidence] for cell in cells]
        if None not in found and len(set(found)) > 1:
            break
    else:
        evidence = "statistics"
        found = [tuple(cell[name] for name in (*_SHOWN, "num_nan", "num_inf")) for cell in cells]
    # Compare texts, because NaN is not equal to itself.
    usual = Counter(map(repr, found)).most_common(1)[0][0]
    ranks = [union.parts[part].rank for part in parts]
    odd = tuple(rank for rank, one in zip(ranks, found, strict=True) if repr(one) != usual)
    return ReplicaFinding(
        name=cells[0]["name"],
        entry=cells[0]["entry"],
        position=value,
        ranks=tuple(ranks),
        odd_ranks=odd,
        evidence=evidence,
        values=tuple(_value_text(cell, evidence) for cell in cells),
        error=_error(cells),
        reason=reason,
    )


def _value_text(cell: dict[str, Any], evidence: str) -> str:
    if evidence == "checksum":
        return str(cell["checksum"])
    if evidence == "sketch":
        return f"0x{cell['sketch'][:8].hex()}…"
    shown = [f"{name} {cell[name]:.6g}" for name in _SHOWN if cell[name] is not None]
    return " ".join([*shown, *([f"NaN {cell['num_nan']}"] if cell["num_nan"] else [])])


def _error(cells: Sequence[dict[str, Any]]) -> float | None:
    """Return the largest difference of the norms over the norm, or of the extremes over the largest magnitude."""
    errors: list[float] = []
    sizes = [abs(cell[name]) for cell in cells for name in ("max", "min") if cell[name] is not None]
    for name in ("norm", "max", "min"):
        known = np.array([cell[name] for cell in cells if cell[name] is not None], np.float64)
        if len(known) == len(cells) and np.isfinite(known).all():
            size = float(known.max()) if name == "norm" else max(sizes)
            spread = float(np.ptp(known))
            errors.append(0.0 if spread == 0 else spread / size if size > 0 else float("inf"))
    return max(errors, default=None)
