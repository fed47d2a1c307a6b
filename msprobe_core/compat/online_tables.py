"""The task ``acc_check`` with the published tables, which are written when recording ends."""

from __future__ import annotations

from typing import Any

from msprobe_core.api_check.online.online_check import OnlineCheck
from msprobe_core.api_check.verdict import CallVerdict
from msprobe_core.compat.mindspore_tables import form_of
from msprobe_core.compat.published_tables import ORDER, PublishedFiles, write_published_tables

_MOST_CALLS = 20_000
"""Limit of the number of calls that are held for the tables, some 5 KiB each; the later ones are in the lines only."""


class TabulatedCheck(OnlineCheck):
    """Also writes one pair of tables per process: of each call, the worst verdict of all steps, or the last such."""

    def __init__(self, *arguments: Any) -> None:
        """See `OnlineCheck`."""
        super().__init__(*arguments)
        self._worst: dict[str, CallVerdict] = {}

    def note(self, verdict: CallVerdict, step: int) -> None:  # noqa: ARG002
        """Hold the verdict for the tables."""
        known = self._worst.get(verdict.entry)
        if known is None and len(self._worst) >= _MOST_CALLS:
            return
        if known is None or ORDER[verdict.verdict] <= ORDER[known.verdict]:
            self._worst[verdict.entry] = verdict

    def close(self) -> None:
        """Write the tables, the coverage, and a summary."""
        if self._unit is not None and self._worst:
            files = PublishedFiles.of(self._unit.parent.parent, f"{self._stamp}_{self._unit.name}")
            write_published_tables(self._worst.values(), files, form=form_of(self._host.framework.name))
        super().close()
