"""What is found where ranks that should have the same value have not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ReplicaFinding:
    """A value that ranks should have alike and have not.

    Attributes:
        name: Row name.
        entry: Entry name.
        position: Where it is in the order of execution, from 0.
        ranks: Who should have the same.
        odd_ranks: Who has something else than most; of two, the second.
        evidence: What differs: ``checksum``, ``sketch`` or ``statistics``.
        values: What each of ``ranks`` has, as text.
        error: Largest difference of a statistic, over the largest magnitude or, of the norms, the norm; ``None`` where
            there are none.
        reason: Why they should have the same; a clause for people.
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
