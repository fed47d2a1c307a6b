"""Outcomes of finished units, stored next to their results so that an interrupted run can be resumed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.layout import make_directory
from msprobe_core.untrusted.files import read_plain

KEPT_DIRECTORY = ".units"
"""Directory of the outcomes, inside the results' directory."""

_RECORD = ".msgpack"
"""Unlike JSON, MessagePack can represent NaN and Inf, which an error may be."""


class Unit(Protocol):
    """One unit of work; it must be picklable."""

    @property
    def label(self) -> str:
        """Name of the unit in reports."""
        ...

    @property
    def files(self) -> Sequence[Path]:
        """The files of the dumps; their sizes indicate how much work the unit is."""
        ...


UnitT = TypeVar("UnitT", bound=Unit)
R = TypeVar("R")


@dataclass(frozen=True)
class KeptOutcomes(Generic[UnitT, R]):
    """Where outcomes are stored, and when a stored outcome is still valid; workers get a copy of this object.

    Attributes:
        directory: Directory of the results.
        kind: Type of an outcome, for msgspec.
        key_of: Returns a hash of everything that a unit's outcome depends on.
        results_of: Returns the files that belong to an outcome; if one is missing, the outcome is invalid.
        resumes: Whether outcomes of an earlier run are reused; otherwise they are removed.
    """

    directory: Path
    kind: type[R]
    key_of: Callable[[UnitT], str]
    results_of: Callable[[R], Sequence[Path]]
    resumes: bool

    def begin(self, units: Sequence[UnitT]) -> Mapping[int, R]:
        """Return the outcomes that are reused, by number of the unit."""
        if not self.resumes:
            shutil.rmtree(self.directory / KEPT_DIRECTORY, ignore_errors=True)
            return {}
        found = {number: self._kept_of(unit) for number, unit in enumerate(units)}
        return {number: outcome for number, outcome in found.items() if outcome is not None}

    def keep(self, label: str, key: str, outcome: R) -> None:
        """Store the outcome of a unit; an interrupted write leaves no outcome."""
        path = self._record_of(label)
        make_directory(path.parent, below=self.directory)
        with whole_file(path) as file:
            file.write(msgspec.msgpack.encode((key, outcome), enc_hook=_encoded))

    def _kept_of(self, unit: UnitT) -> R | None:
        """Return the stored outcome of the same unit under the same conditions, or ``None``."""
        try:
            content = read_plain(self._record_of(unit.label))
            key, outcome = msgspec.msgpack.decode(content, type=tuple[str, self.kind], dec_hook=_decoded)
        except (OSError, msgspec.MsgspecError, ValueError):
            return None
        is_whole = key == self.key_of(unit) and all(path.is_file() for path in self.results_of(outcome))
        return outcome if is_whole else None

    def _record_of(self, label: str) -> Path:
        return self.directory / KEPT_DIRECTORY / f"{label.replace('/', '_')}{_RECORD}"


def num_kept(directory: Path) -> int:
    """Return the number of finished units whose results are in ``directory``."""
    return len(list((directory / KEPT_DIRECTORY).glob(f"*{_RECORD}")))


def state_of(path: Path) -> tuple[str, int, int]:
    """Return the path, the size in bytes (-1 if it cannot be read) and the modification time in ns of a file."""
    try:
        status = path.stat()
    except OSError:  # whoever reads the file reports the error
        return str(path), -1, 0
    return str(path), status.st_size, status.st_mtime_ns


def _encoded(value: Any) -> Any:
    if isinstance(value, Path):
        return os.fsencode(value)
    raise NotImplementedError(f"{value!r} cannot be kept")


def _decoded(kind: type[Any], value: Any) -> Any:
    if issubclass(kind, Path):
        return Path(os.fsdecode(value))
    raise NotImplementedError(f"{kind!r} is not kept")
