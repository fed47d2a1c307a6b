"""Checks of one's own: of whole dumps, of comparisons, and of calls while they are recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from msprobe_core.findings import Finding
from msprobe_core.model import Entry
from msprobe_core.protocols.storage import Dump


class DumpCheck(Protocol):
    """Looks at one rank of one step after it has been recorded: ``msprobe check RUN``."""

    @property
    def name(self) -> str:
        """Value of ``--only`` that selects it."""
        ...

    @property
    def summary(self) -> str:
        """What it looks for: one sentence."""
        ...

    def check(self, dump: Dump) -> Iterable[Finding | str]:
        """Return or yield what is wrong; a text is a warning.

        Args:
            dump: Its ``frame`` has a row for each value, described in ``docs/hooks.md``.
        """
        ...


class ComparisonCheck(Protocol):
    """Looks at each pair of dumps that ``msprobe compare`` has compared; no verdict depends on it."""

    @property
    def name(self) -> str:
        """Precedes its findings among the notes of the comparison."""
        ...

    def check(self, unit: Any) -> Iterable[Finding | str]:
        """Return or yield what there is to say, in the process that has compared the pair; a text is a warning.

        Args:
            unit: The comparison: `msprobe_core.compare.result.UnitResult`. Its ``rows`` are described in
                ``docs/compare.md``.
        """
        ...


class LiveCheck(Protocol):
    """Looks at each recorded call while the training runs, as soon as its statistics are known."""

    @property
    def name(self) -> str:
        """Value of the setting ``live_checks`` that selects it."""
        ...

    def check(self, entry: Entry) -> Iterable[Finding | str]:
        """Return or yield what is wrong; a text is a warning. Called on the thread that trains, so it must be fast.

        Args:
            entry: One phase of one call with all its values, which `msprobe_core.plugin.tensors_of` lists.
        """
        ...
