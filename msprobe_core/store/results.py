"""Result files have fixed names. A command replaces its own earlier result, and no other file unless forced."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from msprobe_core.errors import StoreError
from msprobe_core.untrusted.files import open_plain, read_plain

_MAX_BYTES = 256 << 20
"""Results are far smaller, because they have no rows."""
_HEAD_BYTES = 1 << 14


def refuse_foreign_json(path: Path, command: str, members: Collection[str]) -> None:
    """Raise if there is a file that a command's JSON result must not replace.

    Args:
        path: Path of the result.
        command: The command that writes it, for example ``msprobe compare``.
        members: Top-level members that every release has written.

    Raises:
        StoreError: there is a file that is not a result of this command.
    """
    if not _is_there(path):
        return
    try:
        if path.is_file() and path.stat().st_size <= _MAX_BYTES:
            found = msgspec.json.decode(read_plain(path), type=dict[str, msgspec.Raw])
            if found.keys() >= {*members}:
                return
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        pass
    raise refusal(path, command)


def refuse_foreign_text(path: Path, command: str, mark: bytes) -> None:
    """Raise if there is a file that a command's result must not replace.

    Args:
        path: Path of the result.
        command: The command that writes it.
        mark: Text near the beginning of the file that every release has written.

    Raises:
        StoreError: there is a file that is not a result of this command.
    """
    if not _is_there(path):
        return
    try:
        if path.is_file():
            with open_plain(path) as file:
                if mark in file.read(_HEAD_BYTES):
                    return
    except OSError:
        pass
    raise refusal(path, command)


def _is_there(path: Path) -> bool:
    try:
        return path.exists() or path.is_symlink()
    except (OSError, ValueError):  # the writer reports it in more detail
        return False


def refusal(path: Path, command: str) -> StoreError:
    """Return the error that says why a file is not replaced, and how to replace it."""
    return StoreError(
        f"{path}: exists, and `{command}` has not written it, so it is not replaced; move it away, choose another "
        "place, or give --overwrite"
    )
