"""What the commands say of one pair."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.bugs.peers import PeerAnswer
from bench.faults.answers import Answer
from bench.faults.scoring import Score


@dataclass(frozen=True)
class Result:
    """What the commands say of one pair.

    Attributes:
        name: Name of the bug, or of the healthy pair.
        kernels: Kernels of the target.
        changes: Whether the target's results differ from the golden run's at all.
        locate: Answer of ``locate``.
        compare: Answer of ``compare``.
        place: Score of ``locate``; ``None`` of a healthy pair.
        checks: What further commands say, by name: whether something is wrong, ``None`` if they cannot tell.
        recording_seconds: Wall time of recording both sides.
        peers: What other means of comparison say, by name; empty if they were not asked.
    """

    name: str
    kernels: str
    changes: bool
    locate: Answer
    compare: Answer
    place: Score | None = None
    checks: dict[str, bool | None] = field(default_factory=dict)
    recording_seconds: float = 0.0
    peers: dict[str, PeerAnswer] = field(default_factory=dict)
