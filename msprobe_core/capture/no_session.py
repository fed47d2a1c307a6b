"""What takes the place of a session that cannot be opened: a broken plugin costs the recording, not the training."""

from __future__ import annotations

from typing import Any


class NoSession:
    """Records nothing, whatever is called; the reason has been said."""

    is_finished = True
    """Nothing will be recorded."""

    num_entries_of_last_step = 0
    """Nothing is recorded as entries."""

    running_window = None
    """A window installs nothing."""

    def start(self, models: Any, **arguments: Any) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def step(self) -> None:
        """Do nothing."""

    def begin_at(self, step: int) -> None:
        """Do nothing."""

    def dump_module(self, module: Any, name: str) -> None:
        """Do nothing."""

    def end_module_dump(self) -> None:
        """Do nothing."""

    def save(self, variable: Any, name: str, *, save_backward: bool) -> None:
        """Do nothing."""

    def monitor(self, targets: Any, optimizer: Any) -> None:
        """Do nothing."""

    def abandon(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
