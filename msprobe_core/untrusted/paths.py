r"""File names as text. They may contain any bytes; bytes that are not UTF-8 must survive display, storage and look-up.

Python represents such a byte as half of a surrogate pair, which no terminal, JSON or text column accepts. It is written
as ``\xff``, and looked up as that byte if there is no file with the literal name.
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
    r"""Return a text that can be encoded: bytes of a file name that are not UTF-8 become ``\xff``."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half a pair that does not represent a byte, from a dump
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


def path_of(text: str) -> Path:
    """Return the path for a text written by `shown`.

    Raises:
        ValueError: it contains a null character.
    """
    path = Path(text)
    if not _ESCAPED.search(text) or path.exists():
        return path
    content = _ESCAPED.sub(lambda found: chr(0xDC00 + int(found[1], 16)), text)
    return Path(content)


def source_of(path: Path) -> Path | io.BytesIO:
    """Return an argument for a library that requires paths to be text: the path, or the file's content.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return io.BytesIO(read_plain(path))
    return path


def encode_json(content: Any, *, indent: int | None = None) -> bytes:
    """Return content as JSON, with every text converted by `shown`.

    Args:
        content: Anything that msgspec can encode.
        indent: Spaces per level; ``None`` for a single line.
    """
    try:
        encoded = msgspec.json.encode(content)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(all_shown(msgspec.to_builtins(content)))
    return encoded if indent is None else msgspec.json.format(encoded, indent=indent)


def all_shown(value: Any) -> Any:
    """Return builtin content with every text converted by `shown`."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, dict):
        return {all_shown(key): all_shown(part) for key, part in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [all_shown(part) for part in cast("list[Any]", value)]
    return value
