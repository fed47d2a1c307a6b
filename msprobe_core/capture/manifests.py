"""What the sessions of one debugger have in common about manifests."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from msprobe_core.manifest.facts import Library
from msprobe_core.manifest.libraries import installed_libraries
from msprobe_core.store.layout import MANIFEST_FILE


class Manifests:
    """The manifests that this process has written, at most one for each run directory and rank.

    A debugger has a session after the other, and a trainer with stages one for each stage and step.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._written: dict[tuple[Path, str], Path] = {}

    @cached_property
    def libraries(self) -> tuple[Library, ...]:
        """Installed libraries that can change results."""
        return installed_libraries()

    def is_first(self, unit: Path) -> bool:
        """Whether a dump gets the manifest: no other dump of this process and run has one that still exists."""
        key = unit.parent.parent, unit.name
        written = self._written.get(key)
        if written is not None and written != unit and (written / MANIFEST_FILE).is_file():
            return False
        self._written[key] = unit
        return True
