r"""Names of files as text: they may hold any bytes, and what is no UTF-8 must be shown, written and found again.

Python has such a byte as half of a surrogate pair, which no terminal, JSON or column of text takes. It is written
as ``\xff``, and looked for as that byte where there is no file of the name as it stands.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any, cast

import msgspec

from msprobe_core.untrusted.files import read_plain

_ESCAPED = re.compile(r"\\x([89a-f][0-9a-f])")


def shown(text: str) -> str:
    r"""Return a text that can be encoded: bytes of a file's name that are no UTF-8 as ``\xff``."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half a pair that stands for no byte, out of a dump
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


def path_of(text: str) -> Path:
    """Return the path that a text written by `shown` stands for.

    Raises:
        ValueError: it holds a null character.
    """
    path = Path(text)
    if not _ESCAPED.search(text) or path.exists():
        return path
    content = _ESCAPED.sub(lambda found: chr(0xDC00 + int(found[1], 16)), text)
    return Path(content)


def source_of(path: Path) -> Path | io.BytesIO:
    """Return what a library that wants paths to be text can read: the path, or else what the file holds.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return io.BytesIO(read_plain(path))
    return path


def encode_json(content: Any, *, indent: int | None = None) -> bytes:
    """Return content as JSON, with every text in it as it is `shown`.

    Args:
        content: What msgspec can encode.
        indent: Spaces for each level; ``None`` for everything in one line.
    """
    try:
        encoded = msgspec.json.encode(content)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(_all_shown(msgspec.to_builtins(content)))
    return encoded if indent is None else msgspec.json.format(encoded, indent=indent)


def _all_shown(value: Any) -> Any:
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, dict):
        return {_all_shown(key): _all_shown(part) for key, part in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_all_shown(part) for part in cast("list[Any]", value)]
    return value
