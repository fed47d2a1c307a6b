"""Replace a user's file atomically, one process at a time, keeping its owner, group, permissions and ACLs."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from msprobe_core.errors import StoreError
from msprobe_core.untrusted.files import reading

try:
    import fcntl
except ImportError:  # Windows; there files are not locked
    fcntl = None


@contextmanager
def locked(path: Path) -> Generator[None, None, None]:
    """Lock the file against other processes that call this; they wait until the block ends.

    Has no effect if the file system has no locks; see `stamp_of` for the second guard.
    """
    descriptor = _lock(path)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)  # which also unlocks


def _lock(path: Path) -> int | None:
    while True:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return None  # reading it will report why
        try:
            if fcntl is not None and stat.S_ISREG(os.fstat(descriptor).st_mode):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            is_current = os.path.samestat(os.fstat(descriptor), path.stat())
        except OSError:  # no locks here, or the file is gone
            is_current = True
        if is_current:
            return descriptor
        os.close(descriptor)  # another process has replaced the file while this one waited


def stamp_of(path: Path) -> tuple[int, int, int]:
    """Return a value that changes whenever the file is modified or replaced.

    Raises:
        StoreError: the file's status cannot be read.
    """
    with reading(path, StoreError):
        found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def write_whole(path: Path, text: str) -> None:
    """Replace the content of an existing file.

    Readers see either the old content or the new one. If the new file cannot be given to the owner of the old one, the
    old one is overwritten in place: a job that loses access to its configuration is worse than a short torn read.

    Raises:
        StoreError: it cannot be written.
    """
    data = text.encode()
    try:
        if not _replaced(path, data):
            with path.open("r+b") as file:
                _fill(file, data)
                file.truncate()
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror or error})") from error


def _replaced(path: Path, data: bytes) -> bool:
    """Replace the file by a new one; return whether the new file could be given the same owner and attributes."""
    old = path.stat()
    # In the same directory, so that renaming is atomic; with another suffix, so that no job reads it.
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _fill(file, data)
        if not _is_given(draft, old):
            return False
        shutil.copystat(path, draft)  # permissions, ACLs and other attributes
        os.utime(draft)  # but not the times, by which jobs detect that the file has changed
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return True


def _is_given(draft: Path, old: os.stat_result) -> bool:
    new = draft.stat()
    if (new.st_uid, new.st_gid) == (old.st_uid, old.st_gid):
        return True
    try:
        os.chown(draft, old.st_uid, old.st_gid)
    except PermissionError:
        return False
    return True


def _fill(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())
