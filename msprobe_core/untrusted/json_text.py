"""Bound how deeply JSON is nested: decoders differ in what they take, and so do releases of Python."""

from __future__ import annotations

import re
from typing import Any, cast

from msprobe_core.untrusted.malformed import MalformedError

MAX_NESTING = 128
"""Lists and objects within each other in one record; what is recorded has 64 of its own and a few of the format's."""

_AROUND_RECORDS = 8
"""Lists and objects that a record stands in, and some more."""

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
    """Return the error of a value that is nested too deeply."""
    return MalformedError(f"its values are nested more than {MAX_NESTING} deep")


def without_depth(content: bytes) -> bytes:
    """Return JSON with a null in the place of each value that is nested so deeply that decoders give up.

    What is left of such a value is still nested more deeply than `check_nesting` takes. Content that is cut off, or no
    JSON, stays so.
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
