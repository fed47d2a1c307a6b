"""Files with each unit's calls and graph: there may be thousands of units, but only one is needed at a time."""

from __future__ import annotations

import gzip
import weakref
from pathlib import Path

from msprobe_core.errors import StoreError
from msprobe_core.store.held_directory import temporary_directory
from msprobe_core.store.layout import create_file
from msprobe_core.untrusted.paths import encode_json
from msprobe_core.view.data import Graph

_LEVEL = 6


class StoredGraphs:
    """Stores calls and graphs by number of the unit until it is closed; readable for the owner only."""

    def __init__(self) -> None:
        """Create a temporary directory.

        Raises:
            StoreError: it cannot be created.
        """
        try:
            self._place = temporary_directory("msprobe-view-")
            self._end = weakref.finalize(self, self._place.remove)
        except OSError as error:
            raise StoreError(f"there is no place for temporary files ({error.strerror}); set TMPDIR") from error
        self.sizes: dict[int, int] = {}

    def close(self) -> None:
        """Delete all files."""
        self._end()

    def put(self, number: int, graph: Graph) -> None:
        """Store the graph of a unit.

        Raises:
            StoreError: it cannot be written.
        """
        content = encode_json(graph)
        self.sizes[number] = len(content)
        self._write(self._path(number), gzip.compress(content, _LEVEL, mtime=0))

    def put_calls(self, number: int, content: bytes) -> None:
        """Store the calls of a unit, see `msprobe_core.view.packed_calls`, until they are taken.

        Raises:
            StoreError: they cannot be written.
        """
        self._write(self._path_of_calls(number), content)

    def take_calls(self, number: int) -> bytes | None:
        """Return the calls of a unit, and delete them; ``None`` if there are none."""
        path = self._path_of_calls(number)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        path.unlink()
        return content

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
        return self._place.path / f"unit-{number}.json.gz"

    def _path_of_calls(self, number: int) -> Path:
        return self._place.path / f"unit-{number}.calls"

    def _write(self, path: Path, content: bytes) -> None:
        try:
            with create_file(path) as file:
                file.write(content)
        except OSError as error:
            raise StoreError(
                f"{path}: cannot be written ({error.strerror or error}); free space, or set TMPDIR"
            ) from error
