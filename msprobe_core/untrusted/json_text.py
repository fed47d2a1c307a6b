"""Bound the nesting of JSON: limits differ between decoders and between releases of Python."""

from __future__ import annotations

import re
from typing import Any, cast

from msprobe_core.untrusted.malformed import MalformedError

MAX_NESTING = 128
"""Maximum nesting of lists and objects in one record. Recorded values have up to 64 levels, the format adds a few."""

_AROUND_RECORDS = 8
"""Levels of lists and objects around a record, with a margin."""

_TOKEN = re.compile(rb'[\[\]{}"]|\\.', re.DOTALL)


def check_nesting(value: Any, most: int = MAX_NESTING) -> None:
    """Raise if lists and objects are nested more deeply than ``most``.

    Raises:
        MalformedError: they are.
    """
    if isinstance(value, dict):
        parts = list(cast("dict[Any, Any]", value).values())
    elif isinstance(value, list):
        parts = cast("list[Any]", value)
    else:
        return
    if not most:
        raise too_deep()
    for part in parts:
        check_nesting(part, most - 1)


def too_deep() -> MalformedError:
    """Return the error for a value that is nested too deeply."""
    return MalformedError(f"its values are nested more than {MAX_NESTING} deep")


def without_depth(content: bytes) -> bytes:
    """Return JSON with every value that is nested too deeply for decoders replaced by null.

    The rest of such a value is still nested more deeply than `check_nesting` accepts. Truncated or invalid content
    stays truncated or invalid.
    """
    most = MAX_NESTING + _AROUND_RECORDS
    pieces: list[bytes] = []
    done = depth = begin = 0
    in_text = False
    for found in _TOKEN.finditer(content):
        token = found[0]
        if token == b'"':
            in_text = not in_text
        elif in_text or token[:1] == b"\\":
            continue
        elif token in b"[{":
            depth += 1
            if depth == most + 1:
                begin = found.start()
        elif depth:
            if depth == most + 1:
                pieces += [content[done:begin], b"null"]
                done = found.end()
            depth -= 1
    if depth > most:  # cut off within it
        return b"".join([*pieces, content[done:begin]])
    return b"".join([*pieces, content[done:]]) if pieces else content
