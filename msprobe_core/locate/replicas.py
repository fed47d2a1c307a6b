"""Replicas that differ on ranks of the target and agree on ranks of the golden run.

Parameters and what an optimizer computes need no measure of noise for this: ranks of one run that update the same
parameter do the same arithmetic. Which ranks those are, the golden run says: where it has a value alike bit by bit.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from msprobe_core import names
from msprobe_core.compare.compare_codes import CompareCode
from msprobe_core.compare.shards.findings import ReplicaFinding
from msprobe_core.errors import CompareError, DumpError
from msprobe_core.findings import Finding, Level
from msprobe_core.judge.limits import LimitTable, precision_of
from msprobe_core.locate.locate_codes import LocateCode
from msprobe_core.locate.result import EvidenceRow, FaultKind, Suspect
from msprobe_core.model import Phase, Role
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import RowKind
from msprobe_core.store.reading import read_dump

_logger = logging.getLogger(__name__)

MAX_RANKS = 16
"""Maximum number of ranks, whose dumps are in memory at once for this check."""

OF_STATE = (FaultKind.PARAMETER, FaultKind.OPTIMIZER, FaultKind.OUTSIDE)
"""Kinds of faults that may be a state that has parted."""


def find_divergences(targets: Sequence[Path], goldens: Sequence[Path]) -> list[ReplicaFinding]:
    """Return values that differ between replicas of the target but agree between replicas of the golden run.

    Args:
        targets: Dumps of the ranks of one step.
        goldens: The same for the golden run.
    """
    if not 1 < len(targets) <= MAX_RANKS:
        return []
    # A late import: it takes as long as a small comparison, and is rarely needed.
    from msprobe_core.compare.shards.merged import check_replicas

    try:
        found = check_replicas([read_dump(path) for path in targets])
        if not found:
            return []
        usual = {finding.name for finding in check_replicas([read_dump(path) for path in goldens])}
    except (CompareError, DumpError) as error:
        _logger.info("replicas were not checked: %s", error)
        return []
    return [finding for finding in found if finding.name not in usual]


_STATISTICS = ("max", "min", "mean", "norm")


def parted_states(targets: Mapping[int, Path], goldens: Mapping[int, Path], limits: LimitTable) -> list[ReplicaFinding]:
    """Return parameters and values of an optimizer that differ between ranks of the target, in execution order.

    Only values count that the golden run has alike on these ranks, whose statistics are equal to the last digit and not
    those of a constant; and only differences beyond the limit of their precision, in case that a device adds up
    gradients in any order.

    Args:
        targets: Dumps of the ranks of one step.
        goldens: The same for the golden run.
        limits: The limits in force.
    """
    if not 1 < len(targets) <= MAX_RANKS:
        return []
    try:
        dumps = [{rank: read_dump(path) for rank, path in own.items()} for own in (targets, goldens)]
        # Calls have the same names on all ranks if each rank makes all updates, and not if each makes a part of them.
        are_whole = all(_updates_of(dump) == _updates_of(dumps[1][rank]) for rank, dump in dumps[0].items())
        sides = [
            pl.concat(_state_of(rank, dump, with_updates=are_whole) for rank, dump in own.items()) for own in dumps
        ]
    except (CompareError, DumpError) as error:
        _logger.info("states of replicas were not checked: %s", error)
        return []
    is_known = pl.all_horizontal(pl.col(name).is_finite() for name in _STATISTICS)
    alike = pl.struct(*_STATISTICS).hash()
    classes = sides[1].filter(is_known & (pl.col("max") > pl.col("min"))).select("key", "rank", alike=alike)
    size, root = pl.col("norm").max(), pl.col("numel").max().cast(pl.Float64).sqrt()
    largest = pl.max_horizontal(pl.col("max").abs().max(), pl.col("min").abs().max())
    gaps = {name: pl.col(name).max() - pl.col(name).min() for name in _STATISTICS}
    error = pl.max_horizontal(
        gaps["norm"] / size, gaps["mean"] * root / size, gaps["max"] / largest, gaps["min"] / largest
    )
    found = (
        sides[0]
        .filter(is_known)
        .join(classes, on=["key", "rank"], maintain_order="left")
        .group_by("key", "alike")
        .agg(pl.col("entry", "dtype").first(), pl.col("position").min(), pl.col("rank", *_STATISTICS), error=error)
        .filter((pl.col("rank").list.len() > 1) & (pl.col("error") > 0))
        .sort("position", maintain_order=True)
    )
    findings: list[ReplicaFinding] = []
    for row in found.iter_rows(named=True):
        precision = precision_of(row["dtype"])
        if precision is None or row["error"] <= limits.relative.of(precision):
            continue
        values = list(zip(*(row[name] for name in _STATISTICS), strict=True))
        usual = Counter(values).most_common(1)[0][0]
        shown = (" ".join(f"{name} {n:.6g}" for name, n in zip(_STATISTICS, each, strict=True)) for each in values)
        findings.append(
            ReplicaFinding(
                name=row["key"],
                entry=row["entry"],
                position=row["position"],
                ranks=tuple(row["rank"]),
                odd_ranks=tuple(rank for rank, each in zip(row["rank"], values, strict=True) if each != usual),
                evidence="statistics",
                values=tuple(shown),
                error=row["error"],
                reason=CompareCode.ALIKE_IN_GOLDEN,
            )
        )
    return findings


def _updates_of(dump: Dump) -> Sequence[str]:
    """Return the calls of an optimizer."""
    return [entry for entry, parent in dump.parents.items() if parent == names.OPTIMIZER]


def _state_of(rank: int, dump: Dump, *, with_updates: bool) -> pl.DataFrame:
    """Return the parameters of a rank and, if asked for, the values of its optimizer, each with its position."""
    of_optimizer = _updates_of(dump) if with_updates else list[str]()
    is_state = (pl.col("role") == Role.PARAMETERS.value) | pl.col("entry").is_in(of_optimizer)
    rows = dump.frame.with_row_index("position").filter(is_state & (pl.col("kind") == RowKind.TENSOR.value))
    return rows.select("position", "key", "entry", "dtype", "numel", *_STATISTICS, rank=pl.lit(rank))


def with_divergences(suspects: Sequence[Suspect], found: Sequence[ReplicaFinding], step: int | None) -> list[Suspect]:
    """Return the suspects with the findings on replicas: a state that differs on some ranks only has diverged there.

    Args:
        suspects: Suspects of one step, in order.
        found: Result of `find_divergences`.
        step: Number of the step.
    """
    if not found:
        return list(suspects)
    by_entry: dict[str, ReplicaFinding] = {}
    for finding in found:
        by_entry.setdefault(finding.entry, finding)
    told = [
        replace(suspect, kind=FaultKind.REPLICAS, reason=reason_of_parting(by_entry[suspect.entry]))
        if suspect.kind in OF_STATE and suspect.entry in by_entry
        else suspect
        for suspect in suspects
    ]
    return told or [suspect_of(found[0], step)]


def reason_of_parting(finding: ReplicaFinding) -> Finding:
    """Return why a place is suspected where replicas have parted."""
    return Finding(LocateCode.REPLICAS, Level.ERROR, {"divergence": finding.finding})


def suspect_of(finding: ReplicaFinding, step: int | None) -> Suspect:
    """Return a suspect for a finding, if nothing else is wrong."""
    return Suspect(
        step=step,
        ranks=finding.odd_ranks,
        entry=finding.entry,
        phase=Phase.FORWARD,
        kind=FaultKind.REPLICAS,
        score=float("inf"),
        excess=float("inf"),
        reason=reason_of_parting(finding),
        evidence=[EvidenceRow(finding.name, [Finding(LocateCode.REPLICA_VALUE)], None, None)],
        position=finding.position,
    )
