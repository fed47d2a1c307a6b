"""Directories that a process needs while it runs, and that the next one removes if the process was killed.

A process holds such a directory by a lock on it, which the kernel releases however the process ends. Names of hosts and
numbers of processes tell less: containers that share a directory have the same ones. Where directories cannot be
locked, as on some network file systems, nothing is removed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on this system
    fcntl = None

SUFFIX = ".held"
"""Ending of the names of such directories; only those are ever removed."""

_SETTLED_S = 60.0
"""Age in seconds from which a directory that no process holds is a leftover: a younger one may not be held yet."""


class HeldDirectory:
    """A directory that this process holds.

    Attributes:
        path: The directory.
    """

    def __init__(self, path: Path) -> None:
        """Hold an existing directory."""
        self.path = path
        self._lock = _opened(path)
        if self._lock is not None and not _is_locked(self._lock, is_shared=True):
            os.close(self._lock)
            self._lock = None

    def release(self) -> None:
        """Hold it no more; it stays."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()

    close = remove


_swept: set[tuple[Path, str]] = set()


def temporary_directory(prefix: str) -> HeldDirectory:
    """Return a new private directory for temporary files, after removing those that killed processes left.

    Args:
        prefix: Beginning of its name.

    Raises:
        OSError: it cannot be created.
    """
    parent = Path(tempfile.gettempdir())
    if (parent, prefix) not in _swept:  # once is enough: a directory of temporary files may be long
        _swept.add((parent, prefix))
        for each in leftovers(parent, prefix):
            shutil.rmtree(each, ignore_errors=True)
    return HeldDirectory(Path(tempfile.mkdtemp(prefix=prefix, suffix=SUFFIX, dir=parent)))


def leftovers(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield the directories of killed processes with names that begin so; each is held by this process meanwhile."""
    now = time.time()
    try:
        with os.scandir(parent) as entries:
            names = [each.name for each in entries if each.name.startswith(prefix) and each.name.endswith(SUFFIX)]
    except OSError:
        return
    for name in names:
        path = parent / name
        lock = _opened(path)
        if lock is None:
            continue
        try:
            status = os.fstat(lock)
            is_own = not hasattr(os, "getuid") or status.st_uid == os.getuid()
            if is_own and now - status.st_mtime > _SETTLED_S and _is_locked(lock, is_shared=False):
                yield path
        finally:
            os.close(lock)


def _opened(path: Path) -> int | None:
    with suppress(OSError):  # not there any more, or no directory
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    return None


def _is_locked(descriptor: int, *, is_shared: bool) -> bool:
    """Lock a directory; return whether that was possible."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
