"""A file that grows at its end, is whole after every append, and of which nothing is ever written twice."""

from __future__ import annotations

import os
from pathlib import Path

from msprobe_core.errors import StoreError
from msprobe_core.store.layout import create_file


class GrowingFile:
    """A head, then what was appended, then a tail that says that nothing is missing.

    The tail is written behind each append and overwritten by the next one, so a reader always finds a whole file, and
    a process killed in the middle of an append loses that append only. An append costs the bytes that it adds.
    """

    def __init__(self, path: Path, head: bytes, tail: bytes) -> None:
        """Create the file with nothing between head and tail.

        Args:
            path: Replaced if it is there.
            head: What the file begins with.
            tail: What it ends with at all times.

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
        """Put ``content`` between what is there and the tail; the operating system has it when this returns.

        Raises:
            StoreError: it cannot be written; the file is then as it was before.
        """
        self._write(content, self._tail)

    def end_with(self, tail: bytes | None) -> None:
        """Put another tail in the place of the usual one, until the next append.

        Args:
            tail: Ends a whole file, as the usual one does; ``None`` puts that back.

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
        """Cut off a half-written append; the few bytes of the tail fit where they were before."""
        try:
            os.ftruncate(self._file.fileno(), self._end)
            write_at(self._file.fileno(), self._tail, self._end)
            self._last_tail = self._tail
        except OSError:
            # Readers recover what is whole from a file without its tail.
            return


def write_at(descriptor: int, content: bytes | memoryview, position: int) -> None:
    """Write all of ``content`` at ``position``, in bytes from the file's start.

    Raises:
        OSError: the disk is full, or the like; a part may have been written.
    """
    rest = memoryview(content)
    while rest:
        num_written = os.pwrite(descriptor, rest, position)
        rest, position = rest[num_written:], position + num_written
