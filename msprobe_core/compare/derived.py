"""A dump derived from another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from msprobe_core.findings import Finding
from msprobe_core.model import Ending, RunHeader
from msprobe_core.protocols.storage import Dump, TensorSource
from msprobe_core.store.ending import ending_of


class DerivedDump:
    """A dump with other rows, another header, or further notes; everything else is that of the original."""

    def __init__(
        self, dump: Dump, frame: pl.DataFrame, header: RunHeader | None = None, notes: Sequence[Finding] = ()
    ) -> None:
        """Set the frame, the header if it is given, and further notes."""
        self._dump = dump
        self.frame = frame
        self.header = header or dump.header
        self.notes: list[str | Finding] = [*dump.notes, *notes]

    @property
    def path(self) -> Path:
        """See `msprobe_core.plugin.Dump`."""
        return self._dump.path

    @property
    def ending(self) -> Ending:
        """See `msprobe_core.plugin.MarkedDump`."""
        return ending_of(self._dump)

    @property
    def stacks(self) -> Mapping[str, Sequence[str]]:
        """See `msprobe_core.plugin.Dump`."""
        return self._dump.stacks

    @property
    def parents(self) -> Mapping[str, str | None]:
        """See `msprobe_core.plugin.Dump`."""
        return self._dump.parents

    def open_tensor(self, file_name: str) -> TensorSource:
        """See `msprobe_core.plugin.Dump`."""
        return self._dump.open_tensor(file_name)
