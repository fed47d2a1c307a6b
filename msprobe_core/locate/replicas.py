"""Replicas that differ on ranks of the target and agree on ranks of the golden run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe_core.errors import CompareError, DumpError
from msprobe_core.findings import Finding, Level
from msprobe_core.locate.locate_codes import LocateCode
from msprobe_core.locate.result import EvidenceRow, FaultKind, Suspect
from msprobe_core.model import Phase
from msprobe_core.store.reading import read_dump

if TYPE_CHECKING:
    from msprobe_core.compare.shards.findings import ReplicaFinding

_logger = logging.getLogger(__name__)

MAX_RANKS = 16
"""Maximum number of ranks, whose dumps are in memory at once for this check."""

_OF_STATE = (FaultKind.PARAMETER, FaultKind.OPTIMIZER, FaultKind.OUTSIDE)


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
        replace(suspect, kind=FaultKind.REPLICAS, reason=_reason(by_entry[suspect.entry]))
        if suspect.kind in _OF_STATE and suspect.entry in by_entry
        else suspect
        for suspect in suspects
    ]
    return told or [_suspect(found[0], step)]


def _reason(finding: ReplicaFinding) -> Finding:
    return Finding(LocateCode.REPLICAS, Level.ERROR, {"divergence": finding.finding})


def _suspect(finding: ReplicaFinding, step: int | None) -> Suspect:
    """Return a suspect for a finding, if nothing else is wrong."""
    return Suspect(
        step=step,
        ranks=finding.odd_ranks,
        micro_step=None,
        entry=finding.entry,
        only_on=None,
        module=None,
        phase=Phase.FORWARD,
        kind=FaultKind.REPLICAS,
        score=float("inf"),
        limit=1.0,
        excess=float("inf"),
        input_score=0.0,
        reason=_reason(finding),
        evidence=[EvidenceRow(finding.name, [Finding(LocateCode.REPLICA_VALUE)], None, None)],
        parents=[],
        stack=[],
        position=finding.position,
    )
