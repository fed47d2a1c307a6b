"""The directory of a run: the configured one, or one next to it if another job is writing there.

Until its recording ends, each rank of a job holds a lock on its own file ``.rank{R}.lock``, which contains the identity
of its run. The system releases the lock when the process ends in any way, and children of ``fork`` do not inherit it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from msprobe_core.capture.identity import own_identity
from msprobe_core.config.ranges import format_ranges
from msprobe_core.errors import DumpError, InUseError, StoreError
from msprobe_core.model import RunIdentity
from msprobe_core.store import layout
from msprobe_core.store.runs import Recorder, are_of_one_run, described, recorder_of
from msprobe_core.untrusted.files import read_plain

try:
    import fcntl
except ImportError:  # Windows; nothing is checked there
    fcntl = None

_logger = logging.getLogger(__name__)

_LOCK = re.compile(r"\.rank(0|[1-9]\d*)\.lock", re.ASCII)
_TRIES, _PAUSE_S = 5, 0.02
"""Attempts to take a lock, and the pause between them: another rank may be testing the lock at the moment."""
_MAX_LOOKED_AT = 64
"""Number of existing steps that are checked for an earlier run."""
_MAX_BYTES = 1 << 16
"""Maximum size of a lock file's content."""


class RunPlace:
    """The directory of one session's run, and the locks held there."""

    def __init__(self, asked: Path) -> None:
        """Begin without locks.

        Args:
            asked: The configured directory.
        """
        self._asked = asked
        self._chosen: Path | None = None
        self._locks: dict[Path, int] = {}

    def directory(self, rank: int | None) -> Path:
        """Return the directory of the run, claimed for ``rank`` by the first call with that rank.

        Processes outside of a job always have their own directories.

        Raises:
            StoreError: it cannot be created, or other jobs write there and to the directory next to it.
        """
        if self._chosen is None:
            identity = own_identity()
            self._chosen = self._asked if rank is None else self._choose(rank, identity)
            if not rank:
                _say_what_is_left(self._chosen, identity)
        elif rank is not None and self._path(self._chosen, rank) not in self._locks:
            self._claim(self._chosen, rank, own_identity())
        return self._chosen

    def close(self) -> None:
        """Release the directory."""
        for path, descriptor in self._locks.items():
            with suppress(OSError):
                path.unlink()
            os.close(descriptor)
        self._locks.clear()

    def abandon(self) -> None:
        """Drop the locks without releasing them: they belong to the parent process."""
        self._locks.clear()

    def _choose(self, rank: int, identity: RunIdentity) -> Path:
        holder = self._holder(self._asked, rank, identity)
        if holder is None:
            return self._asked
        beside = self._asked.with_name(f"{self._asked.name}-{_tag(identity, holder)}")
        _logger.warning(
            "%s: another job is recording there (%s), so this one is recorded to %s; give each job its own 'dump_path'",
            self._asked, _named(holder), beside,
        )  # fmt: skip
        self._claim(beside, rank, identity)
        return beside

    def _claim(self, directory: Path, rank: int, identity: RunIdentity) -> None:
        if (holder := self._holder(directory, rank, identity)) is not None:
            raise InUseError(
                f"{directory}: another job is recording rank {rank} there ({_named(holder)}); give each job its own "
                "'dump_path'"
            )

    @staticmethod
    def _path(directory: Path, rank: int) -> Path:
        return directory / f".rank{rank}.lock"

    def _holder(self, directory: Path, rank: int, identity: RunIdentity) -> RunIdentity | None:
        """Return the other run that writes to a directory; if there is none, claim it and return ``None``."""
        if fcntl is None:
            return None
        layout.make_directory(directory)
        first = min((int(m[1]) for path in directory.iterdir() if (m := _LOCK.fullmatch(path.name))), default=rank)
        if first != rank:
            holder = _said_by(self._path(directory, first))
            if holder is not None and holder.job != identity.job and _is_locked(self._path(directory, first)):
                return holder
        path = self._path(directory, rank)
        for attempt in range(_TRIES):
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
            except OSError as error:
                raise StoreError(f"{path}: cannot be created ({error.strerror}); choose another directory") from error
            if _lock(descriptor) and _is_at(descriptor, path):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, msgspec.json.encode(identity))
                self._locks[path] = descriptor
                return None
            os.close(descriptor)
            if attempt < _TRIES - 1:
                time.sleep(_PAUSE_S)
        return _said_by(path) or RunIdentity(job="", host="", process=0, started=0.0)


def _lock(descriptor: int) -> bool:
    """Take a lock; false if another process has it. On a file system without locks, always true."""
    assert fcntl is not None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        _logger.debug("locks are not available: %s", error)
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one at ``path``: its previous owner may have just removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False


def _is_locked(path: Path) -> bool:
    assert fcntl is not None
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return False
    try:
        return not _lock(descriptor)
    finally:
        os.close(descriptor)


def _said_by(path: Path) -> RunIdentity | None:
    try:
        return msgspec.json.decode(read_plain(path, _MAX_BYTES), type=RunIdentity)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _tag(identity: RunIdentity, holder: RunIdentity) -> str:
    """Return the directory's suffix, equal on all ranks of a job as far as their environment identifies the job."""
    name = identity.job if identity.job != holder.job else f"{identity.job} {identity.host} {os.getppid()}"
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def _named(holder: RunIdentity) -> str:
    return f"process {holder.process} on {holder.host}{', ' if holder.job else ''}{holder.job}"


def _say_what_is_left(directory: Path, identity: RunIdentity) -> None:
    """Warn about steps of an earlier run: this run keeps those that it does not overwrite."""
    own = Recorder(identity, time.time())
    try:
        steps = list(layout.find_steps(directory).items())[-_MAX_LOOKED_AT:]
    except DumpError:  # the directory does not exist yet
        return
    left: dict[int, Recorder] = {}
    for number, step in steps:
        with suppress(DumpError):
            recorder = recorder_of(layout.find_units(step)[0].directory)
            if recorder.ended and not are_of_one_run(recorder, own):
                left[number] = recorder
    if left:
        _logger.warning(
            "%s: holds step%s %s of an earlier run (%s); what is not written again stays, and commands leave it out",
            directory, "s" * (len(left) > 1), ", ".join(format_ranges(left)), described(left[max(left)]),
        )  # fmt: skip
