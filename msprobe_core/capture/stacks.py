"""Where a call came from: frames as text, formatted once per call site."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from inspect import currentframe
from pathlib import Path
from types import CodeType

_Site = tuple[object, ...]

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

    def capture(self) -> tuple[str, ...]:
        r"""Return the frames above the caller, innermost first, as ``File {path}, line {n}, in {func}, \n {line}``."""
        # The frames of the core, this one among them, are hidden when they are formatted.
        frame = currentframe()
        key: list[object] = []
        while frame is not None:
            # The code object and the offset name the line; looking the line up is left to the first sight.
            key += (frame.f_code, frame.f_lasti)
            frame = frame.f_back
        site = tuple(key)
        frames = self._formatted.get(site)
        if frames is None:
            frames = self._formatted[site] = self._format(site)
        return frames

    def _format(self, site: _Site) -> tuple[str, ...]:
        frames: list[str] = []
        for code, offset in zip(site[::2], site[1::2], strict=True):
            assert isinstance(code, CodeType)
            assert isinstance(offset, int)
            if not code.co_filename.startswith(self._hidden):
                line = _line_of(code, offset)
                source = linecache.getline(code.co_filename, line).strip()
                frames.append(f"File {code.co_filename}, line {line}, in {code.co_name}, \n {source}")
        return tuple(frames)


def _line_of(code: CodeType, offset: int) -> int:
    for start, end, line in code.co_lines():
        if line is not None and start <= offset < end:
            return line
    return code.co_firstlineno
