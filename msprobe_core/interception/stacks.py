"""Call stacks: frames as text, formatted once per call site."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from inspect import currentframe
from pathlib import Path
from types import CodeType, FrameType

_Site = tuple[int, ...]
"""Id of each code object and offset in it, alternately; hashing a code object itself would hash all its content."""

_PACKAGE = str(Path(__file__).parent.parent)


class StackCache:
    """Formats the current stack as frame strings; the same call site returns the same tuple."""

    def __init__(self, hidden: Iterable[str] = ()) -> None:
        """Begin empty.

        Args:
            hidden: Directories whose frames are omitted, besides the core's own.
        """
        self._hidden = (_PACKAGE, *hidden)
        self._formatted: dict[_Site, tuple[str, ...]] = {}
        self._codes: dict[int, CodeType] = {}  # keeps the objects alive, so that their ids are not reused

    def capture(self) -> tuple[str, ...]:
        r"""Return the frames above the caller, innermost first, as ``File {path}, line {n}, in {func}, \n {line}``."""
        # Frames of the core, including this one, are dropped by the formatting. This frame must not refer to itself
        # when
        # it ends: the cycle would keep all outer frames and their tensors alive until a garbage collection.
        frame = currentframe()
        key: list[int] = []
        while frame is not None:
            # Code object and offset determine the line; resolve it only for new sites.
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
