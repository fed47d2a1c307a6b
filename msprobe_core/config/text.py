"""Read files that users write by hand: small text files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msprobe_core.errors import ConfigError, MalformedConfigError, UnreadableConfigError
from msprobe_core.untrusted.files import TooLargeError, read_plain
from msprobe_core.untrusted.malformed import MalformedError
from msprobe_core.untrusted.yaml_text import load_yaml

MAX_BYTES = 16 << 20
"""Default size limit of such a file."""


def given_path(text: str, where: str) -> Path:
    """Return a path given by a user, absolute, with ``~`` and ``~name`` expanded.

    Args:
        text: As written.
        where: Name of the setting, for messages.

    Raises:
        ConfigError: the home directory is unknown, or the working directory does not exist any more.
    """
    try:
        return Path(text).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"{where} is {text!r}, which leads nowhere ({error}); give an absolute path") from error


def is_directory(path: Path) -> bool:
    """Whether there is an accessible directory."""
    try:
        return path.is_dir()
    except (OSError, ValueError):  # ValueError: a null character
        return False


def read_json(path: Path, *, kind: str, advice: str) -> object:
    """Return the content of a JSON file; the arguments are those of `read_text`.

    Raises:
        ConfigError: it cannot be read, or is no JSON.
    """
    text = read_text(path, kind=kind, advice=advice)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedConfigError(f"{path}: is not valid JSON ({error})") from error


def read_yaml(
    path: Path, *, kind: str, advice: str, max_bytes: int = MAX_BYTES, has_types: bool = True, fault: str = "is no yaml"
) -> Any:
    """Return the content of a YAML file.

    The arguments are those of `read_text` and `load_yaml`; ``fault`` is what the message says of a file that is none.

    Raises:
        ConfigError: it cannot be read, or is no YAML.
    """
    text = read_text(path, kind=kind, advice=advice, max_bytes=max_bytes)
    try:
        return load_yaml(text, has_types=has_types)
    except MalformedError as error:
        raise MalformedConfigError(f"{path}: {fault} ({error})") from error


def read_text(path: Path, *, kind: str, advice: str, max_bytes: int = MAX_BYTES, where: str | None = None) -> str:
    """Return the content of a file, without a byte order mark.

    Args:
        path: The file.
        kind: What it should be, with its article: ``a file of limits``.
        advice: What to give instead of a file that cannot be read: ``give a YAML file``.
        max_bytes: Size limit; a larger file is rejected.
        where: Prefix of every message; by default the path.

    Raises:
        ConfigError: it is missing, cannot be read, is too large or is not UTF-8 text.
    """
    where = where or str(path)
    try:
        return read_plain(path, max_bytes).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UnreadableConfigError(f"{where}: cannot be read: it is not UTF-8 text; save it as UTF-8") from error
    except TooLargeError as error:
        raise UnreadableConfigError(f"{where}: larger than {max_bytes >> 20} MiB; this is not {kind}") from error
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnreadableConfigError(f"{where}: cannot be read ({reason}); {advice}") from error
