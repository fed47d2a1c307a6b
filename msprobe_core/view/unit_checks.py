"""The checks of calls that are stored next to the dumps of a page, or were given for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msprobe_core.errors import CompareError
from msprobe_core.findings import Finding
from msprobe_core.view.api_checks import CheckFile, check_files_of, shown_checks
from msprobe_core.view.data import CheckedDump
from msprobe_core.view.view_codes import ViewCode


class UnitChecks:
    """Reads the checks of units.

    Args:
        given: A file that was given; ``None`` if there is none.
    """

    def __init__(self, given: Path | None) -> None:
        self._given = [] if given is None else [given]
        self.files: list[CheckFile] = []

    def read(self, target: Path, units: Sequence[Path]) -> list[Finding]:
        """Read the file that was given and those of the units; return the problems with the latter.

        Raises:
            CompareError: the file that was given is damaged, or of a later version.
        """
        notes: list[Finding] = []
        for path in dict.fromkeys([*self._given, *check_files_of(target, units)]):
            try:
                self.files.append(CheckFile.read(path))
            except CompareError as error:  # noqa: PERF203  # there are a few files at most
                if path in self._given:
                    raise
                notes.append(Finding(ViewCode.NO_CHECKS, fields={"why": str(error)}))
        return notes

    def shown(self, places: Sequence[Path]) -> list[CheckedDump]:
        """Return the checks in the page's form, with the numbers of their units.

        Args:
            places: The target of each unit.
        """
        units = {
            (place if place.is_dir() else place.parent).resolve(): number
            for number, place in reversed(list(enumerate(places)))
        }
        return [shown_checks(file, units) for file in self.files]
