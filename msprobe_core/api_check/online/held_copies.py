"""Copies of the tensors of sampled calls, from the call until the end of its step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msprobe_core.model import TensorValue


class Copy(NamedTuple):
    """A tensor's snapshot, the stem of the file that it may go to, and its value in the entry."""

    snapshot: Any
    stem: str
    value: TensorValue


@dataclass(slots=True)
class _OfEntry:
    copies: list[Copy] = field(default_factory=list[Copy])
    size_bytes: int = 0


class HeldCopies:
    """Holds copies by entry; threads of a training may add to it at the same time.

    Args:
        max_bytes: Memory, in bytes, beyond which it is full.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: dict[str, _OfEntry] = {}
        self._refused: set[str] = set()
        self._num_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no further copies are to be made."""
        return self._num_bytes >= self.max_bytes

    @property
    def refused(self) -> set[str]:
        """Entries whose copies did not fit."""
        return self._refused

    def __contains__(self, entry: str) -> bool:
        """Whether copies of an entry are held."""
        return entry in self._entries

    def __iter__(self) -> Iterator[tuple[str, Copy]]:
        """Yield the name of the entry and the copy, in the order of calls."""
        return ((name, copy) for name, held in self._entries.items() for copy in held.copies)

    def by_stem(self) -> dict[str, Any]:
        """Return all snapshots by the stems of their files."""
        return {copy.stem: copy.snapshot for _, copy in self}

    def add(self, entry: str, snapshot: Any, stem: str, value: TensorValue) -> None:
        """Hold a copy, and name its file in the value until it is known whether one is written."""
        size = int(getattr(snapshot, "nbytes", 0))
        with self._lock:
            held = self._entries.setdefault(entry, _OfEntry())
            held.copies.append(Copy(snapshot, stem, value))
            held.size_bytes += size
            self._num_bytes += size
        value.file_name = stem

    def refuse(self, entry: str) -> None:
        """Drop the copies of an entry, and remember that the others did not fit."""
        self._refused.add(entry)
        self.drop(entry)

    def drop(self, entry: str) -> None:
        """Drop the copies of an entry."""
        with self._lock:
            if (held := self._entries.pop(entry, None)) is not None:
                self._num_bytes -= held.size_bytes

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._entries.clear()
            self._refused.clear()
            self._num_bytes = 0
