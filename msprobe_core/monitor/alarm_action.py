"""What the monitor does about an alarm besides saying it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Answer:
    """What is recorded because of an alarm.

    Attributes:
        directory: Where.
        next_step: What to do with it.
    """

    directory: Path
    next_step: str


class AlarmAction(Protocol):
    """Records something because of an alarm."""

    def ask(self) -> Answer | None:
        """Record, now or in one of the next steps; ``None`` if nothing will be.

        Raises:
            StoreError: a directory cannot be created.
        """
        ...
