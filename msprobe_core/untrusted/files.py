"""Open files that others wrote. All such files are opened here.

Only regular files are read. A pipe would block its reader for ever, a device may return endless data, and either may
have the name of a dump. No allocation trusts a number in a file: the expansion of its content, in memory or in steps,
is bounded by `most_unfolded` of its size.

Errors are `OSError` with a reason in ``strerror``, so that callers report them like those of any other unreadable file,
as `reading` does.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from msprobe_core.errors import DumpError, MsprobeError

MAX_BYTES = 10 << 30
"""Largest file that is read whole, in bytes."""

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
    """A file is larger than any valid content."""


def most_unfolded(num_bytes: int) -> int:
    """Return the maximum expansion of ``num_bytes`` of a file: 256 bytes for each, plus 64 MiB.

    Content that expands is compressed parts, texts that many rows refer to, and elements that a view repeats. Columns
    of equal values, the most compressible content of real recordings and tables, are compressed to a hundredth.
    """
    return _FLOOR_BYTES + _MOST_PER_BYTE * num_bytes


def open_plain(path: Path) -> FileIO:
    """Open a regular file for reading, unbuffered; follows symbolic links.

    Raises:
        OSError: it cannot be opened, or is not a regular file; ``strerror`` says what it is.
    """
    # Check before opening, because opening a device may have an effect, and again after it: it may be another file.
    _check_plain(path, path.stat())
    # Non-blocking: opening a pipe would wait for a writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        _check_plain(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return FileIO(descriptor, "rb")


def read_plain(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file: as many bytes as it has when it is opened.

    Args:
        path: The file.
        max_bytes: A larger file is rejected.

    Raises:
        TooLargeError: it is larger.
        OSError: it cannot be read, or is not a regular file; ``strerror`` says why.
        MemoryError: its content does not fit into memory.
    """
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise TooLargeError(errno.EFBIG, f"it is larger than {_shown(max_bytes)}", str(path))
        # Files of the operating system's kernel report 0 bytes, and reading some of them blocks.
        return file.readall()[:size] if size else b""


@contextmanager
def reading(path: object, kind: type[MsprobeError] = DumpError, *, advice: str = "") -> Generator[None, None, None]:
    """Raise an error of ours if what is read inside cannot be read.

    Args:
        path: What is read, for the message.
        kind: Class of the error.
        advice: What to do about it, for the end of the message.

    Raises:
        MsprobeError: of that class.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{path}: cannot be read ({error.strerror or error}){advice}") from error


def _check_plain(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "no file")
    raise OSError(errno.EISDIR if kind == "a directory" else errno.EINVAL, f"it is {kind}, not a file", str(path))


def _shown(num_bytes: int) -> str:
    return f"{num_bytes >> 30} GiB" if num_bytes >= 1 << 30 else f"{num_bytes >> 20} MiB"
