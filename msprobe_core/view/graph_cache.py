"""What is made of each unit, in a file each: there may be thousands of units, and one is needed at a time."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

from msprobe_core.errors import StoreError
from msprobe_core.store.layout import create_file
from msprobe_core.view.data import Graph, encode

_LEVEL = 6


class GraphCache:
    """Keeps calls and graphs by number of the unit until it is closed, for the owner only."""

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
        self._write(self._path(number), gzip.compress(content, _LEVEL, mtime=0))

    def put_calls(self, number: int, content: bytes) -> None:
        """Keep the calls of a unit, see `msprobe_core.view.packed_calls`, until they are taken.

        Raises:
            StoreError: there is no room for them.
        """
        self._write(self._path_of_calls(number), content)

    def take_calls(self, number: int) -> bytes | None:
        """Return the calls of a unit, and remove them; ``None`` if there are none."""
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
        return Path(self._place.name) / f"unit-{number}.json.gz"

    def _path_of_calls(self, number: int) -> Path:
        return Path(self._place.name) / f"unit-{number}.calls"

    def _write(self, path: Path, content: bytes) -> None:
        try:
            with create_file(path) as file:
                file.write(content)
        except OSError as error:
            raise StoreError(
                f"{path}: cannot be written ({error.strerror or error}); free space, or set TMPDIR"
            ) from error
