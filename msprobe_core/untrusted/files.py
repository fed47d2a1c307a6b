"""The one way in which files that others wrote are opened.

Only plain files are read. A pipe would make its reader wait for ever, a device may give bytes without end, and either
may stand where a dump is expected. Nothing is allocated on the word of a file's content: what its content unfolds to,
in memory or in steps, is bounded by `most_unfolded` of the bytes that it has.

Errors are `OSError` with a reason in ``strerror``, so that callers say where and what to do as for any other file that
cannot be read.
"""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from pathlib import Path

MAX_BYTES = 10 << 30
"""Largest file that is read as a whole, in bytes."""

_FLOOR_BYTES = 64 << 20
_MOST_PER_BYTE = 256

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


class TooLargeError(OSError):
    """A file is larger than anything that it could hold."""


def most_unfolded(num_bytes: int) -> int:
    """Return how many bytes ``num_bytes`` of a file may unfold to: 256 for each, and 64 MiB in any case.

    What is unfolded are compressed parts, texts that many rows refer to, and elements that a view repeats. Columns of
    equal values, the most compressible that recordings and tables have, are compressed to a hundredth.
    """
    return _FLOOR_BYTES + _MOST_PER_BYTE * num_bytes


def open_plain(path: Path) -> FileIO:
    """Open a plain file for reading, without a buffer; a symbolic link is followed.

    Raises:
        OSError: it cannot be opened, or is something else; ``strerror`` says what.
    """
    # Before it is opened, because opening a device may do something, and again after it: it may have been replaced.
    _check_plain(path, path.stat())
    # Not blocking: opening a pipe would wait for somebody who writes to it.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        _check_plain(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return FileIO(descriptor, "rb")


def read_plain(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a plain file: as many bytes as it has when it is opened.

    Args:
        path: The file.
        max_bytes: A larger file is refused.

    Raises:
        TooLargeError: it is larger.
        OSError: it cannot be read, or is no plain file; ``strerror`` says what.
        MemoryError: its content does not fit into memory.
    """
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise TooLargeError(errno.EFBIG, f"it is larger than {_shown(max_bytes)}", str(path))
        # Files of the kernel's say that they have 0 bytes, and some of those wait when they are read.
        return file.readall()[:size] if size else b""


def _check_plain(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "no file")
    raise OSError(errno.EISDIR if kind == "a directory" else errno.EINVAL, f"it is {kind}, not a file", str(path))


def _shown(num_bytes: int) -> str:
    return f"{num_bytes >> 30} GiB" if num_bytes >= 1 << 30 else f"{num_bytes >> 20} MiB"
