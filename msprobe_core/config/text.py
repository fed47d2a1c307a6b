"""Read the files that users write by hand: small, and text."""

from __future__ import annotations

from pathlib import Path

from msprobe_core.errors import ConfigError
from msprobe_core.untrusted.files import TooLargeError, read_plain

MAX_BYTES = 16 << 20
"""Largest file that is read where nobody says otherwise."""


def given_path(text: str, where: str) -> Path:
    """Return a path that a user has written, absolute, with ``~`` and ``~name`` in their places.

    Args:
        text: As written.
        where: Which setting it is, for messages.

    Raises:
        ConfigError: nobody knows the home directory, or the working directory is gone.
    """
    try:
        return Path(text).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"{where} is {text!r}, which leads nowhere ({error}); give an absolute path") from error


def is_directory(path: Path) -> bool:
    """Whether there is a directory that can be looked at."""
    try:
        return path.is_dir()
    except (OSError, ValueError):  # ValueError: a null character
        return False


def read_text(path: Path, *, kind: str, advice: str, max_bytes: int = MAX_BYTES, where: str | None = None) -> str:
    """Return the content of a file, without a byte order mark.

    Args:
        path: The file.
        kind: What it should be, with its article: ``a file of limits``.
        advice: What to give instead of a file that cannot be read: ``give a YAML file``.
        max_bytes: Size from which on it cannot be what it should be.
        where: Begins every message; the path if not given.

    Raises:
        ConfigError: it is missing, cannot be read, is too large or no UTF-8 text.
    """
    where = where or str(path)
    try:
        return read_plain(path, max_bytes).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: cannot be read: it is not UTF-8 text; save it as UTF-8") from error
    except TooLargeError as error:
        raise ConfigError(f"{where}: larger than {max_bytes >> 20} MiB; this is not {kind}") from error
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{where}: cannot be read ({reason}); {advice}") from error
