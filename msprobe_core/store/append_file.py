"""An append-only file that is valid after every append. No byte is written twice."""

from __future__ import annotations

import os
from pathlib import Path

from msprobe_core.errors import StoreError
from msprobe_core.store.layout import create_file


class GrowingFile:
    """A head, the appended content, and a tail that marks the file as complete.

    The tail is written after each append and overwritten by the next one. So a reader always finds a complete file, and
    a process killed during an append loses that append only. An append costs only the bytes that it adds.
    """

    def __init__(self, path: Path, head: bytes, tail: bytes) -> None:
        """Create the file with an empty content.

        Args:
            path: An existing file is replaced.
            head: First bytes of the file.
            tail: Last bytes of the file at all times.

        Raises:
            StoreError: the file cannot be created or written.
        """
        self._path = path
        self._tail = tail
        self._last_tail = b""
        self._file = create_file(path)
        self._end = 0
        try:
            self.append(head)
        except StoreError:
            self._file.close()
            raise

    def append(self, content: bytes) -> None:
        """Insert ``content`` before the tail; the operating system has it when this returns.

        Raises:
            StoreError: it cannot be written; the file is then unchanged.
        """
        self._write(content, self._tail)

    def end_with(self, tail: bytes | None) -> None:
        """Replace the usual tail, until the next append.

        Args:
            tail: A valid end of the file; ``None`` restores the usual one.

        Raises:
            StoreError: it cannot be written; the file then has its usual tail.
        """
        self._write(b"", self._tail if tail is None else tail)

    def _write(self, content: bytes, tail: bytes) -> None:
        try:
            if len(self._last_tail) > len(content) + len(tail):
                os.ftruncate(self._file.fileno(), self._end)
            write_at(self._file.fileno(), content + tail, self._end)
            self._last_tail = tail
        except OSError as error:
            self._restore()
            raise StoreError(
                f"{self._path}: cannot be written ({error.strerror}); what was recorded before is kept"
            ) from error
        self._end += len(content)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _restore(self) -> None:
        """Remove a partial append; the few bytes of the tail fit where they were before."""
        try:
            os.ftruncate(self._file.fileno(), self._end)
            write_at(self._file.fileno(), self._tail, self._end)
            self._last_tail = self._tail
        except OSError:
            # Readers recover the complete part of a file without its tail.
            return


def write_at(descriptor: int, content: bytes | memoryview, position: int) -> None:
    """Write all of ``content`` at ``position``, in bytes from the file's start.

    Raises:
        OSError: for example the disk is full; a part may have been written.
    """
    rest = memoryview(content)
    while rest:
        num_written = os.pwrite(descriptor, rest, position)
        rest, position = rest[num_written:], position + num_written
