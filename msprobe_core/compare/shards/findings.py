"""Findings about replicas: ranks whose values should be equal and are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
        reason: Why the values should be equal, as a clause for messages.
    """

    name: str
    entry: str
    position: int
    ranks: tuple[int, ...]
    odd_ranks: tuple[int, ...]
    evidence: str
    values: tuple[str, ...]
    error: float | None
    reason: str

    @property
    def text(self) -> str:
        """The finding as a sentence."""
        odd = _listed(self.odd_ranks)
        others = [rank for rank in self.ranks if rank not in self.odd_ranks]
        size = "" if self.error is None else f", by {self.error:.3g} of its size"
        by_rank = dict(zip(self.ranks, self.values, strict=True))
        shown = f"{by_rank[self.odd_ranks[0]]}, and {by_rank[others[0]]} on rank {others[0]}" if others else ""
        return (
            f"{self.name}: {odd} {'differs' if len(self.odd_ranks) == 1 else 'differ'} from {_listed(others)}{size}, "
            f"though {self.reason}; the {self.evidence} {'is' if self.evidence != 'statistics' else 'are'} {shown}"
        )


def _listed(ranks: Sequence[int]) -> str:
    few = ", ".join(map(str, ranks[:4])) + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")
    return f"rank{'' if len(ranks) == 1 else 's'} {few}"
