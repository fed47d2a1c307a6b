"""Open foreign files: with their size, and their first bytes."""

from __future__ import annotations

import math
import os
from collections.abc import Generator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np

from msprobe_core.errors import DumpError
from msprobe_core.store.tensor_source import MAX_DIMS, Storage, StoredTensor, c_strides
from msprobe_core.store.tensor_values import DTYPES
from msprobe_core.tensor_files.files_codes import FilesCode
from msprobe_core.tensor_files.problems import ProblemError
from msprobe_core.untrusted.files import open_plain

HEAD_BYTES = 1 << 16
"""How much of a file is read to recognise it."""


class Opened(NamedTuple):
    """An opened file.

    Attributes:
        path: The file.
        file: Positioned anywhere.
        size: Its size when it was opened, in bytes.
        head: Its first bytes.
    """

    path: Path
    file: FileIO
    size: int
    head: bytes

    def read(self, begin: int, num_bytes: int) -> bytes:
        """Return a range of bytes.

        Raises:
            ProblemError: the file ends before.
        """
        if begin + num_bytes > self.size:
            raise ProblemError(FilesCode.CUT_OFF, begin, needed=begin + num_bytes, size=self.size)
        if begin + num_bytes <= len(self.head):
            return self.head[begin : begin + num_bytes]
        self.file.seek(begin)
        content = bytearray()
        while len(content) < num_bytes:
            part = self.file.read(num_bytes - len(content))
            if not part:
                raise ProblemError(FilesCode.CUT_OFF, begin, needed=begin + num_bytes, size=begin + len(content))
            content += part
        return bytes(content)


@contextmanager
def opened(path: Path) -> Generator[Opened, None, None]:
    """Open a regular file and read its first bytes.

    Raises:
        DumpError: it cannot be opened or read.
    """
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            yield Opened(path, file, size, file.read(min(size, HEAD_BYTES)) or b"")
    except DumpError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null character
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DumpError(f"{path}: cannot be read ({reason})") from error


def stored_range(
    path: Path, name: str, begin: int, num_bytes: int, dtype: str, shape: tuple[int, ...], size: int
) -> StoredTensor:
    """Return the tensor whose elements are a range of bytes of a file, in C order.

    Args:
        path: The file.
        name: Name of the tensor, for messages.
        begin: Position of its first byte.
        num_bytes: Number of its bytes.
        dtype: Its dtype, one of those in ``DTYPES``.
        shape: Its shape.
        size: Size of the file.

    Raises:
        ProblemError: the range is not within the file, or its size is not that of the shape.
    """
    if begin < 0 or num_bytes < 0:
        raise ProblemError(FilesCode.NUMBER, max(begin, 0), name=name)
    if begin + num_bytes > size:
        raise ProblemError(FilesCode.CUT_OFF, begin, needed=begin + num_bytes, size=size)
    stored = np.dtype(DTYPES[dtype])
    if len(shape) > MAX_DIMS or min((*shape, 0)) < 0 or math.prod(shape) * stored.itemsize != num_bytes:
        raise ProblemError(FilesCode.SIZE, begin, dtype=dtype, shape=str(list(shape[: MAX_DIMS + 1])), found=num_bytes)
    return StoredTensor(
        name=Path(f"{path}#{name}"),
        storage=Storage(file=path, begin=begin, num_bytes=num_bytes),
        stored=stored,
        dtype=dtype,
        shape=shape,
        strides=c_strides(shape),
    )


def refuse_overlaps(ranges: list[tuple[int, int, str]]) -> dict[str, ProblemError]:
    """Return an error for each tensor whose bytes another one has too.

    Args:
        ranges: Begin, end and name of each tensor's bytes.
    """
    found: dict[str, ProblemError] = {}
    last_end, last_name = 0, ""
    for begin, end, name in sorted(ranges):
        if begin < end and begin < last_end:
            for one, other in ((name, last_name), (last_name, name)):
                found.setdefault(one, ProblemError(FilesCode.OVERLAP, begin, other=other))
        if end > last_end:
            last_end, last_name = end, name
    return found
