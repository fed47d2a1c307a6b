"""Findings about replicas: ranks whose values should be equal and are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msprobe_core.compare.compare_codes import CompareCode
from msprobe_core.findings import Field, Finding, Level


@dataclass(frozen=True, kw_only=True)
class ReplicaFinding:
    """A value that should be equal on several ranks and is not.

    Attributes:
        name: Row name.
        entry: Entry name.
        position: Position in execution order, from 0.
        ranks: Ranks that should have the same value.
        odd_ranks: Ranks that differ from the majority; of two, the second.
        evidence: What differs: ``checksum``, ``sketch`` or ``statistics``.
        values: Value of each of ``ranks``, as text.
        error: Largest difference of a statistic, relative to the largest magnitude or, for the norms, to the norm;
            ``None`` without statistics.
        reason: Why the values should be equal.
    """

    name: str
    entry: str
    position: int
    ranks: tuple[int, ...]
    odd_ranks: tuple[int, ...]
    evidence: str
    values: tuple[str, ...]
    error: float | None
    reason: CompareCode

    @property
    def finding(self) -> Finding:
        """The same as a finding."""
        others = [rank for rank in self.ranks if rank not in self.odd_ranks]
        by_rank = dict(zip(self.ranks, self.values, strict=True))
        differs: dict[str, Field] = {"odd": _listed(self.odd_ranks), "others": _listed(others), "error": self.error}
        shown: dict[str, Field] = {"odd": by_rank[self.odd_ranks[0]], "other": by_rank[others[0]], "rank": others[0]}
        fields: dict[str, Field] = {
            "row": self.name,
            "difference": Finding(_DIFFERS[len(self.odd_ranks) > 1, self.error is not None], fields=differs),
            "why": Finding(self.reason),
            "values": Finding(_VALUES[self.evidence], fields=shown),
        }
        return Finding(CompareCode.REPLICAS, Level.ERROR, fields)

    @property
    def text(self) -> str:
        """The finding as a sentence."""
        return self.finding.text


_DIFFERS = {
    (False, False): CompareCode.REPLICA_DIFFERS,
    (False, True): CompareCode.REPLICA_DIFFERS_BY,
    (True, False): CompareCode.REPLICAS_DIFFER,
    (True, True): CompareCode.REPLICAS_DIFFER_BY,
}
"""By whether several ranks differ from the others, and whether it is known by how much."""

_VALUES = {
    "checksum": CompareCode.REPLICA_CHECKSUM,
    "sketch": CompareCode.REPLICA_SKETCH,
    "statistics": CompareCode.REPLICA_STATISTICS,
}
_MOST_RANKS = 4


def _listed(ranks: Sequence[int]) -> Finding:
    if len(ranks) > _MOST_RANKS:
        fields: dict[str, Field] = {"ranks": ranks[:_MOST_RANKS], "more": len(ranks) - _MOST_RANKS}
        return Finding(CompareCode.MORE_RANKS, fields=fields)
    return Finding(CompareCode.RANK if len(ranks) == 1 else CompareCode.RANKS, fields={"ranks": ranks})
