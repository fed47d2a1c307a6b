"""Common base of dumps of every format after reading: the frame, and the optional files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msprobe_core.errors import DumpError, LargeDumpError
from msprobe_core.findings import Finding
from msprobe_core.model import Ending, RunHeader
from msprobe_core.store import layout
from msprobe_core.store.reading_codes import ReadingCode
from msprobe_core.untrusted.files import MAX_BYTES, TooLargeError, read_plain

if TYPE_CHECKING:
    import polars as pl

    from msprobe_core.protocols.storage import Dump, TensorSource
    from msprobe_core.store.stored_rows import Rows

_V = TypeVar("_V")


class StoredDump(ABC):
    """A dump read from its file and, on demand, the files next to it; see `msprobe_core.plugin.Dump`.

    ``stack_file`` and ``construct_file`` are their names.
    """

    stack_file: str
    construct_file: str

    def __init__(self, path: Path, header: RunHeader, rows: Rows, damage: Sequence[Finding], ending: Ending) -> None:
        self.path = path
        self.ending = ending
        self.header = header
        self.rows = rows
        self.notes = notes_of(path, damage)
        self._stacks: Mapping[str, Sequence[str]] | None = None
        self._parents: Mapping[str, str | None] | None = None

    @property
    def frame(self) -> pl.DataFrame:
        """All rows, in memory from now on."""
        from msprobe_core.store.stored_rows import frame_of  # imports polars, which the command line does not need

        self.rows = frame = frame_of(self.rows)
        return frame

    @property
    def stacks(self) -> Mapping[str, Sequence[str]]:
        """Frames by entry name, innermost first; empty if their file is missing or cannot be read."""
        if self._stacks is None:
            self._stacks = self._read_beside(self.stack_file, self._read_stacks)
        return self._stacks

    @property
    def parents(self) -> Mapping[str, str | None]:
        """Enclosing call by entry name; empty if the file is missing or cannot be read."""
        if self._parents is None:
            self._parents = self._read_beside(self.construct_file, self._read_parents)
        return self._parents

    @property
    def recomputed(self) -> frozenset[str]:
        """Entries of forward calls that ran inside a backward pass, if the dump records it; read on demand."""
        return frozenset()

    @abstractmethod
    def _read_stacks(self, path: Path) -> Mapping[str, Sequence[str]]:
        """Read the file of stacks.

        Raises:
            DumpError: it cannot be read.
        """

    @abstractmethod
    def _read_parents(self, path: Path) -> Mapping[str, str | None]:
        """Read the file of the nesting.

        Raises:
            DumpError: it cannot be read.
        """

    def _read_beside(self, name: str, read: Callable[[Path], Mapping[str, _V]]) -> Mapping[str, _V]:
        """Read an optional file: a damaged one becomes a note and does not stop the comparison."""
        path = self.path.parent / name
        if not path.exists():
            return {}
        try:
            return read(path)
        except DumpError as error:
            self.notes.append(Finding(ReadingCode.WITHOUT_FILE, fields={"why": str(error)}))
            return {}

    def tensor_path(self, file_name: str) -> Path:
        """Return the path of a tensor's file.

        Raises:
            DumpError: ``file_name`` is outside of the dump's directory.
        """
        return layout.tensor_path(self.path, file_name)

    def open_tensor(self, file_name: str) -> TensorSource:
        """Return a stored tensor; its elements are read on demand.

        Raises:
            DumpError: it is missing, damaged, not a tensor, or outside of the dump's directory.
        """
        from msprobe_core.store.tensors import open_tensor  # not needed to compare statistics

        return open_tensor(self.tensor_path(file_name))


def notes_of(path: Path, damage: Sequence[Finding]) -> list[Finding]:
    """Return damage of a file as notes, which have its path."""
    return [Finding(ReadingCode.OF_FILE, fields={"path": str(path), "damage": each}) for each in damage]


def rows_of(dump: Dump) -> Rows:
    """Return the rows of a dump, which may be in files."""
    return dump.rows if isinstance(dump, StoredDump) else dump.frame


def read_content(path: Path) -> bytes:
    """Return the bytes of a file.

    Raises:
        DumpError: it is too large, or cannot be read.
    """
    try:
        return read_plain(path)
    except TooLargeError as error:
        raise LargeDumpError(
            f"{path}: is larger than {MAX_BYTES >> 30} GiB; compare one step of one rank at a time"
        ) from error
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from error
