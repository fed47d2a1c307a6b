"""A configuration file that is edited while the training runs, between the edit and the step from which it counts."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from msprobe_core.config import Config, ConfigWatch
from msprobe_core.guard import message_of

_logger = logging.getLogger(__name__)


class LiveSettings:
    """The configuration that counts now, and the one that counts from the next step on."""

    def __init__(self, config: Config, watch: ConfigWatch | None) -> None:
        """Begin with the configuration that was read first.

        Args:
            config: That configuration.
            watch: The file, or ``None`` if edits are not followed.
        """
        self.config = config
        """The configuration that counts now."""
        self.watch = watch
        """The file that is watched, or ``None``."""
        self.edited: Config | None = None
        """The configuration that counts from the next step on, or ``None`` if it does not change."""
        self.has_switched = False
        """Whether an edit has ever counted: the program began with a valid configuration, so errors do not end it."""

    def look(self, *, is_urgent: bool = False) -> None:
        """Look for an edit of the file; a wrong one ends recording until it is corrected.

        Args:
            is_urgent: See `ConfigWatch.poll`.
        """
        if self.watch is None:
            return
        try:
            edited = self.watch.poll(is_urgent=is_urgent)
        except Exception as error:  # noqa: BLE001  # an edited file may hold anything
            self.switch_off(message_of(error))
        else:
            self.edited = edited or self.edited

    def switch_off(self, reason: str) -> None:
        """Record nothing from the next step on, until the file is corrected."""
        _logger.warning("%s; from the next step on nothing is recorded until the file is corrected", reason)
        self.edited = msgspec.structs.replace(self.config, dump_enable=False)

    def redirect(self, dump_path: Path) -> None:
        """Record to another directory from the next step on, whatever the file says."""
        if self.watch is not None:
            self.watch.override("dump_path", dump_path)
        self.edited = msgspec.structs.replace(self.edited or self.config, dump_path=dump_path)

    def count_at_once(self) -> None:
        """Let the edited configuration count now, as nothing has been recorded with the other."""
        self.config, self.edited = self.edited or self.config, None

    def switch_to(self, config: Config) -> None:
        """Let an edited configuration count from now on."""
        self.config, self.has_switched = config, True

    @contextmanager
    def unwatched(self) -> Generator[None, None, None]:
        """Follow no edit in the block; one that is made meanwhile counts from the next step on."""
        kept = self.watch, self.edited
        self.watch, self.edited = None, None
        try:
            yield
        finally:
            self.watch, self.edited = kept
