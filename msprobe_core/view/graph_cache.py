"""Graphs that have been made, compressed, in a file each: there may be thousands, and one is needed at a time."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

from msprobe_core.errors import StoreError
from msprobe_core.store.layout import create_file
from msprobe_core.view.data import Graph, encode

_LEVEL = 6


class Spool:
    """Keeps graphs by number of the unit until it is closed, for the owner only."""

    def __init__(self) -> None:
        """Make the directory.

        Raises:
            StoreError: there is no room for temporary files.
        """
        try:
            self._place = tempfile.TemporaryDirectory(prefix="msprobe-view-")
        except OSError as error:
            raise StoreError(f"there is no place for temporary files ({error.strerror}); set TMPDIR") from error
        self.sizes: dict[int, int] = {}

    def close(self) -> None:
        """Remove all of it."""
        self._place.cleanup()

    def put(self, number: int, graph: Graph) -> None:
        """Keep the graph of a unit.

        Raises:
            StoreError: there is no room for it.
        """
        content = encode(graph)
        self.sizes[number] = len(content)
        try:
            with create_file(self._path(number)) as file:
                file.write(gzip.compress(content, _LEVEL, mtime=0))
        except OSError as error:
            raise StoreError(
                f"{self._path(number)}: cannot be written ({error.strerror or error}); free space, or set TMPDIR"
            ) from error

    def compressed(self, number: int) -> bytes | None:
        """Return a graph as gzip of JSON; ``None`` if there is none."""
        try:
            return self._path(number).read_bytes()
        except FileNotFoundError:
            return None

    def content(self, number: int) -> bytes | None:
        """Return a graph as JSON; ``None`` if there is none."""
        packed = self.compressed(number)
        return None if packed is None else gzip.decompress(packed)

    def _path(self, number: int) -> Path:
        return Path(self._place.name) / f"unit-{number}.json.gz"
