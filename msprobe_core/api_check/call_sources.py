"""Where calls to be checked come from: a dump, or files with what a device elsewhere computed of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msprobe_core import names
from msprobe_core.api_check.call_files import CallFiles, ComputedCall, has_calls
from msprobe_core.api_check.call_records import HEADER_FILE
from msprobe_core.api_check.reach import reach_of
from msprobe_core.errors import DumpError
from msprobe_core.model import Role
from msprobe_core.replay.recorded import Fill, RecordedCalls, unreadable
from msprobe_core.store import layout
from msprobe_core.store.frame import RowKind
from msprobe_core.store.reading import read_dump

SOURCE_FILES = (*layout.RECORD_FILES, HEADER_FILE)
"""Names of files that say which calls there are in a directory."""


class CallSource(Protocol):
    """The calls of one rank of one step."""

    @property
    def framework(self) -> str:
        """Name of the framework that made the calls."""
        ...

    @property
    def entries(self) -> Sequence[str]:
        """Names of all entries, in the order of the dump."""
        ...

    def read(self, entry: str, fill: Fill | None = None) -> ComputedCall:
        """Read a call; one with a damaged file has the reason in ``missing``.

        Args:
            entry: Its name.
            fill: Makes its inputs; ``None`` to take the recorded ones.
        """
        ...

    def form_of(self, entry: str) -> object:
        """Return what the calls of one API with equal arguments have in common; tensors by dtype and shape."""
        ...

    def reach(self) -> Mapping[str, int]:
        """Return the number of later calls that each call's result flows into, as far as it is known."""
        ...

    def record_files(self) -> Sequence[Path]:
        """Return the files that say which calls there are."""
        ...


def source_at(path: Path, max_elements: int) -> CallSource:
    """Return the calls at a path: of a dump, or of a directory that ``--write_shards`` wrote.

    Raises:
        DumpError: they cannot be read.
    """
    return _Stored(path, max_elements) if path.is_dir() and has_calls(path) else _Dumped(path, max_elements)


class _Dumped:
    def __init__(self, path: Path, max_elements: int) -> None:
        self._path = path
        self._calls = RecordedCalls(read_dump(path), max_elements)
        self.framework = self._calls.dump.header.framework
        self.entries = list(self._calls.entries)

    def read(self, entry: str, fill: Fill | None = None) -> ComputedCall:
        return ComputedCall(call=self._calls.read_or_missing(entry, fill), position=0, fresh=())

    def form_of(self, entry: str) -> object:
        forward = names.forward_of(entry) or entry
        return tuple(
            (row["key"].removeprefix(forward), row["dtype"], row["shape"])
            if row["kind"] == RowKind.TENSOR.value
            else (row["key"].removeprefix(forward), row["text"])
            for row in self._calls.rows(forward)
            if row["role"] == Role.INPUT.value
        )

    def reach(self) -> Mapping[str, int]:
        return reach_of(self._calls.dump)

    def record_files(self) -> Sequence[Path]:
        if self._path.is_file():
            return [self._path]
        return [path for name in ("dump.json", "dump.arrow") if (path := self._path / name).is_file()]


class _Stored:
    def __init__(self, path: Path, max_elements: int) -> None:
        self._path = path
        self._files = CallFiles(path, max_elements)
        self.framework = self._files.header.framework
        self.entries = list(self._files.entries)

    def read(self, entry: str, fill: Fill | None = None) -> ComputedCall:
        try:
            found = self._files.read(entry)
        except DumpError as error:
            return ComputedCall(call=unreadable(entry, error), position=0, fresh=())
        return found if fill is None else ComputedCall(call=found.call, position=found.position, fresh=())

    def form_of(self, entry: str) -> object:
        return tuple(sorted(self._files.read(entry).call.scalars.items()))

    def reach(self) -> Mapping[str, int]:
        return {}

    def record_files(self) -> Sequence[Path]:
        return sorted(self._path.glob("*.json"))
