"""Paths on disk, and creation of files: for their owner only, never through a symbolic link.

::

    {dump_path}/step{K}/rank{R}/      in a job of several processes
    {dump_path}/step{K}/proc{PID}/    otherwise
        dump.json  stack.json  construct.json  dump_tensor_data/
        dump.arrow  stack.arrow  construct.arrow        with writer arrow, instead of the .json
        debug.json                                      instead of the three, at level debug
        dump_tensor_data/{name}.pt, .npy                or shard-{N}.safetensors
        manifest.json                                   in the first step that a process records
        data_rows.json                                  in later ones
        live_checks.jsonl                               what live checks have found, if anything
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from msprobe_core.errors import DumpError, MissingDumpError, StoreError

DUMP_FILE = "dump.json"
DEBUG_FILE = "debug.json"
STACK_FILE = "stack.json"
CONSTRUCT_FILE = "construct.json"
ARROW_DUMP_FILE = "dump.arrow"
ARROW_STACK_FILE = "stack.arrow"
ARROW_CONSTRUCT_FILE = "construct.arrow"
MANIFEST_FILE = "manifest.json"
DATA_ROWS_FILE = "data_rows.json"
LIVE_CHECKS_FILE = "live_checks.jsonl"
TENSOR_DIRECTORY = "dump_tensor_data"
SHARD_SUFFIX = ".safetensors"

RECORD_FILES = (DUMP_FILE, ARROW_DUMP_FILE, DEBUG_FILE)
"""Files with the records of a rank's directory; one of them exists."""

_DUMP_FILES = (
    DUMP_FILE, DEBUG_FILE, STACK_FILE, CONSTRUCT_FILE, ARROW_DUMP_FILE, ARROW_STACK_FILE, ARROW_CONSTRUCT_FILE,
    MANIFEST_FILE, DATA_ROWS_FILE, LIVE_CHECKS_FILE,
)  # fmt: skip

_RANK = re.compile(r"rank(0|[1-9]\d*)", re.ASCII)
_PROCESS = re.compile(r"proc(\d+)|rank()", re.ASCII)  # older tools write "rank" without a number
_STEP = re.compile(r"step(0|[1-9]\d*)", re.ASCII)

_MAX_FILE_NAME_BYTES = 255
_UNSAFE = re.compile(r"[^\w.+\-=@]", re.ASCII)


def unit_directory(root: Path, step: int, rank: int | None) -> Path:
    """Return the directory of one step of this process; ``rank`` is ``None`` outside of a job."""
    return root / f"step{step}" / (f"proc{os.getpid()}" if rank is None else f"rank{rank}")


def place_of(path: Path) -> str:
    """Return the step and rank of a dump in words, from its directories; its path if they do not show it."""
    if whole := _STEP.fullmatch(path.name):
        return f"step {whole[1]}"
    unit = path if is_unit(path.name) else path.parent
    step = _STEP.fullmatch(unit.parent.name)
    rank, process = _RANK.fullmatch(unit.name), _PROCESS.fullmatch(unit.name)
    if step is None or (rank is None and process is None):
        return str(path)
    number = rank or process
    assert number is not None
    whose = f" of {'rank' if rank else 'process'} {number[1]}" if number[1] else ""
    return f"step {step[1]}{whose}"


def is_unit(name: str) -> bool:
    """Whether this is the name of the directory of a rank or process."""
    return bool(_RANK.fullmatch(name) or _PROCESS.fullmatch(name))


def make_directory(path: Path, below: Path | None = None) -> None:
    """Create ``path`` and missing directories above it, for the owner only.

    Args:
        path: The directory.
        below: The directory chosen by the user, including symbolic links in its path. Everything between it and
            ``path`` is ours: a link there would lead to files of others, which would be replaced.

    Raises:
        StoreError: it cannot be created, something else has that name, or there is a symbolic link under ``below``.
    """
    if below is not None:
        refuse_links(path, below)
    missing = [path]
    try:
        while not missing[-1].exists() and missing[-1].parent != missing[-1]:
            missing.append(missing[-1].parent)
        # `mkdir(parents=True)` would give the parents the default mode.
        for directory in reversed(missing):
            directory.mkdir(mode=0o700, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a null character
        reason = error.strerror if isinstance(error, OSError) else error
        raise StoreError(f"{path}: cannot be created ({reason}); choose another directory") from error


def check_place(path: Path) -> None:
    """Raise if a new directory cannot be created here; nothing is created.

    Raises:
        StoreError: something else has that name or one above it, or the permissions are missing.
    """
    there = path
    try:
        while not there.exists() and there.parent != there:
            there = there.parent
        reason = None if there.is_dir() else f"{there} is no directory"
    except OSError as error:
        reason = str(error)
    if "\0" in str(path):
        reason = "a path holds no null character"
    if reason is None and not os.access(there, os.W_OK | os.X_OK):
        reason = f"{there} cannot be written to"
    if reason is not None:
        raise StoreError(f"{path}: cannot be created ({reason}); choose another directory")


def refuse_links(path: Path, below: Path) -> None:
    """Raise if there is a symbolic link between a directory chosen by the user and ours in it.

    Raises:
        StoreError: there is one.
    """
    place = path
    while place not in (below, place.parent):
        try:
            is_link = place.is_symlink()
        except (OSError, ValueError):  # the caller reports it in more detail
            return
        if is_link:
            raise StoreError(f"{place}: is a symbolic link, which is not followed; remove it, or choose another place")
        place = place.parent


def make_unit_directory(path: Path) -> None:
    """Create the directory of a rank of a step in a run; see `make_directory`.

    Raises:
        StoreError: it cannot be created, something else has that name, or the directory of the rank, the step or the
            tensors is a symbolic link.
    """
    refuse_links(path / TENSOR_DIRECTORY, below=path.parents[1])
    make_directory(path)


def create_file(path: Path) -> BinaryIO:
    """Open a new file for writing, for the owner only; an existing file is replaced.

    Raises:
        StoreError: it cannot be created.
    """
    try:
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except OSError as error:
        raise StoreError(f"{path}: cannot be created ({error.strerror}); check the directory's permissions") from error
    return os.fdopen(descriptor, "wb")


def remove_dump(directory: Path) -> None:
    """Remove the files of a dump in any of the core's formats, so that only the next one exists.

    Raises:
        StoreError: one of them cannot be removed.
    """
    for name in _DUMP_FILES:
        path = directory / name
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(
                f"{path}: is of an earlier run and cannot be removed ({error.strerror}); choose another directory"
            ) from error


def tensor_path(dump: Path, file_name: str) -> Path:
    """Return the path of a stored tensor.

    Args:
        dump: The dump's file.
        file_name: As in its record.

    Raises:
        DumpError: ``file_name`` is outside of the dump's directory.
    """
    if Path(file_name).name != file_name:
        raise DumpError(f"{dump}: the tensor file name {file_name!r} leads out of {TENSOR_DIRECTORY}")
    return dump.parent / TENSOR_DIRECTORY / file_name


def shard_file_name(number: int) -> str:
    """Return the file name of a shard; shards count from 0."""
    return f"shard-{number:05}{SHARD_SUFFIX}"


def shard_reference(shard: str, key: str) -> str:
    """Return the record's reference to a tensor in a shard: the shard's file name and the tensor's key."""
    return f"{shard}#{key}"


def shard_member(file_name: str) -> tuple[str, str] | None:
    """Return file name and key of a reference into a shard; ``None`` if it is a plain file name."""
    shard, mark, key = file_name.partition(f"{SHARD_SUFFIX}#")
    return (shard + SHARD_SUFFIX, key) if mark else None


def tensor_file_name(stem: str, suffix: str) -> str:
    """Return a file name for a tensor: ``stem`` with problematic characters replaced, truncated to 255 bytes.

    A name that had to be changed ends in a hash of the original, so that two names never share a file.
    """
    safe = _UNSAFE.sub("_", stem)
    room = _MAX_FILE_NAME_BYTES - len(suffix)
    if safe != stem or len(safe) > room:
        mark = "-" + hashlib.blake2b(stem.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
        safe = safe[: room - len(mark)] + mark
    return safe + suffix


@dataclass(frozen=True, slots=True)
class Unit:
    """One rank's directory of one step.

    ``rank`` is ``None`` for a process outside of a job.
    """

    directory: Path
    rank: int | None

    @property
    def label(self) -> str:
        """Name of the unit in reports: the directory's name."""
        return self.directory.name


def find_steps(run_directory: Path) -> dict[int, Path]:
    """Return the step directories of a run by number; empty if there are none.

    Raises:
        DumpError: ``run_directory`` is not a directory, or cannot be read.
    """
    directories = _directories_in(run_directory)
    found = {int(m.group(1)): path for path in directories if (m := _STEP.fullmatch(path.name))}
    return dict(sorted(found.items()))


def _directories_in(directory: Path) -> list[Path]:
    """Return the subdirectories of a directory, by name.

    Raises:
        DumpError: it is not a directory, or cannot be read.
    """
    try:
        return [path for path in sorted(directory.iterdir()) if path.is_dir()]
    except (OSError, ValueError) as error:  # ValueError: a null character
        reason = error.strerror if isinstance(error, OSError) else error
        raise DumpError(f"{directory}: cannot be read ({reason})") from error


def holds_units(directory: Path) -> bool:
    """Whether a directory is a run with steps, or a step with ranks or processes."""
    patterns = (_STEP, _RANK, _PROCESS)
    try:
        return any(
            path.is_dir() and any(each.fullmatch(path.name) for each in patterns) for path in directory.iterdir()
        )
    except OSError:
        return False


def find_units(step_directory: Path) -> list[Unit]:
    """Return the ranks of a step directory by number or, if there are none, its processes.

    Raises:
        DumpError: ``step_directory`` is not a directory or has neither.
    """
    children = _directories_in(step_directory)
    ranks = [(int(m.group(1)), path) for path in children if (m := _RANK.fullmatch(path.name))]
    if ranks:
        return [Unit(path, rank) for rank, path in sorted(ranks)]
    processes = [path for path in children if _PROCESS.fullmatch(path.name)]
    if processes:
        return [Unit(path, None) for path in processes]
    steps = [path.name for path in children if _STEP.fullmatch(path.name)]
    if steps:
        raise DumpError(
            f"{step_directory}: holds whole steps ({', '.join(steps[:5])}{', …' if len(steps) > 5 else ''}); "
            f"give one of them, for example {step_directory / steps[0]}"
        )
    raise MissingDumpError(
        f"{step_directory}: holds no dump; expected {DUMP_FILE}, or directories named rank0, rank1, … or proc1234"
    )
