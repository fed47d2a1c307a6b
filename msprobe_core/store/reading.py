"""Find the reader of a dump, and read it."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

from msprobe_core.errors import DumpError, MissingPathError, MsprobeError, PluginError
from msprobe_core.interrupts import raise_if_interrupted
from msprobe_core.plugins import registry
from msprobe_core.protocols.storage import Dump, Reader
from msprobe_core.store.ending import sentence_of_empty

_logger = logging.getLogger(__name__)


def read_dump(path: Path) -> Dump:
    """Return the dump at ``path``, read by the first reader that recognises it.

    Raises:
        DumpError: it cannot be read.
        CompareError: no reader recognises it.
        KeyboardInterrupt: an interrupt arrived during reading.
    """
    raise_if_interrupted()
    check_exists(path)
    reader = _reader_of(path)
    if reader is None and (empty := sentence_of_empty(path)) is not None:
        raise DumpError(empty)
    if reader is None:
        raise MissingPathError(
            f"{path}: is no dump that is known here; give a dump.json, a rank's directory or a step's"
        )
    try:
        dump = reader.read(path)
    except PluginError as error:
        raise_if_interrupted()
        raise DumpError(f"{path}: {error}") from error
    except MsprobeError:
        raise_if_interrupted()
        raise
    raise_if_interrupted()
    return dump


def format_of_plugin(path: Path) -> str | None:
    """Return the name of the format of a dump that a plugin reads; ``None`` for any other."""
    reader = _reader_of(path)
    is_plugins = reader is not None and registry().provider_of("msprobe_register_readers", reader.name) is not None
    return reader.name if reader is not None and is_plugins else None


def is_dump(path: Path) -> bool:
    """Whether ``path`` is a single dump: a file, or a directory that a reader recognises."""
    return path.is_file() or _reader_of(path) is not None


def check_exists(path: Path) -> None:
    """Raise if nothing exists at ``path``, or if it is a directory without read permission.

    Raises:
        CompareError: it does not exist, is not a valid path, or lacks permissions.
    """
    try:
        exists, is_directory = path.exists(), path.is_dir()
    except PermissionError as error:
        raise MissingPathError(f"{path}: cannot be read ({error.strerror}); change the permissions") from error
    except (OSError, ValueError) as error:  # a name that is too long, or contains a null character
        reason = error.strerror if isinstance(error, OSError) else error  # the whole error repeats the long name
        raise MissingPathError(f"{path}: is no path ({reason})") from error
    if not exists:
        raise MissingPathError(f"{path}: does not exist")
    if is_directory and not os.access(path, os.R_OK | os.X_OK):
        raise MissingPathError(f"{path}: cannot be read ({os.strerror(errno.EACCES)}); change the permissions")


def _reader_of(path: Path) -> Reader | None:
    for reader in registry().readers():
        try:
            if reader.recognises(path):
                return reader
        except MsprobeError as error:  # noqa: PERF203  # a plugin's reader must not affect files of other formats
            _logger.warning("%s: %s", path, error)
    return None
