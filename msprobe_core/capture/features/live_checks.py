"""Checks of plugins that look at each call as soon as its statistics are known: the setting ``live_checks``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from msprobe_core.capture.features.feature import Feature, Host
from msprobe_core.custom_checks.asking import findings_of
from msprobe_core.custom_checks.check_codes import CheckCode
from msprobe_core.errors import PluginError
from msprobe_core.findings import Finding, content_of
from msprobe_core.model import Batch, Entry
from msprobe_core.plugins import registry
from msprobe_core.plugins.chosen import choose
from msprobe_core.protocols.checks import LiveCheck
from msprobe_core.store.layout import LIVE_CHECKS_FILE, create_file

_logger = logging.getLogger(__name__)

MAX_LOGGED = 10
"""Findings of a step that are logged; all are in the file."""

BUDGET = 0.05
"""Share of the time since the first call that a check may take."""

GRACE_S = 1.0
"""Seconds that a check may take in any case."""


@dataclass(slots=True)
class _Watched:
    """A check, its name for messages, and the time that it took."""

    check: LiveCheck
    who: str
    spent_s: float = 0.0


@dataclass(slots=True)
class LiveChecks(Feature):
    """Asks checks about every entry, logs what they find, and writes it next to the dump of the step."""

    directory: Callable[[], Path | None]
    watched: list[_Watched]
    _found: list[tuple[str, Finding]] = field(default_factory=list[tuple[str, Finding]])
    _began: float | None = None

    @classmethod
    def make(cls, host: Host) -> LiveChecks | None:
        """Return the feature if the configuration selects a check.

        Raises:
            ConfigError: no plugin offers one of them.
        """
        offered = registry().live_checks() if host.config.live_checks else {}
        wanted = [
            choose("live_checks", name, offered, "msprobe_register_live_checks") for name in host.config.live_checks
        ]
        watched = [_Watched(check, registry().described("live check", check.name)) for check in wanted]
        return cls(host.directory, watched) if watched else None

    def sift(self, batch: Batch, step: int) -> Batch:
        """Look at every entry; all are written."""
        if self._began is None:
            self._began = time.monotonic()
        for each in list(self.watched):
            try:
                self._look(each, batch.entries, step)
            except PluginError as error:  # noqa: PERF203  # a check costs far more than a try
                _logger.warning("step %d: %s; it checks nothing more, and recording goes on", step, error)
                self.watched.remove(each)
        return batch

    def _look(self, watched: _Watched, entries: Sequence[Entry], step: int) -> None:
        began = self._began or time.monotonic()
        for entry in entries:
            before = time.monotonic()
            self._note(entry, findings_of(watched.check, entry, watched.who), step)
            now = time.monotonic()
            watched.spent_s += now - before
            if watched.spent_s > max(GRACE_S, BUDGET * (now - began)):
                fields = {"check": watched.who, "seconds": watched.spent_s, "all": now - began}
                _logger.warning("step %d: %s", step, Finding(CheckCode.SLOW, fields=fields).text)
                self.watched.remove(watched)
                return

    def _note(self, entry: Entry, found: Sequence[Finding], step: int) -> None:
        for finding in found:
            self._found.append((entry.name, finding))
            if len(self._found) <= MAX_LOGGED:
                _logger.warning("step %d: %s: %s", step, entry.name, finding.text)

    def end_unit(self, step: int) -> None:
        """Write what has been found in the step."""
        found, self._found = self._found, []
        directory = self.directory()
        if not found or directory is None:
            return
        if len(found) > MAX_LOGGED:
            _logger.warning(
                "step %d: live checks found %d more; see %s", step, len(found) - MAX_LOGGED, LIVE_CHECKS_FILE
            )
        lines = [
            msgspec.json.encode({"entry": entry, "level": each.level.value, "message": each.text, **content_of(each)})
            for entry, each in found
        ]
        with create_file(directory / LIVE_CHECKS_FILE) as file:
            file.write(b"\n".join(lines) + b"\n")
