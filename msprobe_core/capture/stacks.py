"""Where a call came from: frames as text, formatted once per call site."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from inspect import currentframe
from pathlib import Path
from types import CodeType, FrameType

_Site = tuple[int, ...]
"""Identities of code objects and offsets in them, by turns: a code object's own hash goes through all that it holds."""

_PACKAGE = str(Path(__file__).parent.parent)


class StackCache:
    """Turns the running stack into frame strings; the same call site gives the same tuple."""

    def __init__(self, hidden: Iterable[str] = ()) -> None:
        """Begin empty.

        Args:
            hidden: Directories whose frames are left out, besides the core's own.
        """
        self._hidden = (_PACKAGE, *hidden)
        self._formatted: dict[_Site, tuple[str, ...]] = {}
        self._codes: dict[int, CodeType] = {}  # keeps them, so that an identity is not given to another one

    def capture(self) -> tuple[str, ...]:
        r"""Return the frames above the caller, innermost first, as ``File {path}, line {n}, in {func}, \n {line}``."""
        # The frames of the core, this one among them, are hidden when they are formatted. Nothing in this frame may
        # name it when it ends: all frames above would live on, with every tensor in them, until garbage is collected.
        frame = currentframe()
        key: list[int] = []
        while frame is not None:
            # The code object and the offset name the line; looking the line up is left to the first sight.
            key.append(id(frame.f_code))
            key.append(frame.f_lasti)
            frame = frame.f_back
        site = tuple(key)
        frames = self._formatted.get(site)
        if frames is None:
            frames = self._formatted[site] = self._format(currentframe())
        return frames

    def _format(self, frame: FrameType | None) -> tuple[str, ...]:
        frames: list[str] = []
        while frame is not None:
            code, offset = frame.f_code, frame.f_lasti
            self._codes[id(code)] = code
            if not code.co_filename.startswith(self._hidden):
                line = _line_of(code, offset)
                source = linecache.getline(code.co_filename, line).strip()
                frames.append(f"File {code.co_filename}, line {line}, in {code.co_name}, \n {source}")
            frame = frame.f_back
        return tuple(frames)


def _line_of(code: CodeType, offset: int) -> int:
    for start, end, line in code.co_lines():
        if line is not None and start <= offset < end:
            return line
    return code.co_firstlineno
