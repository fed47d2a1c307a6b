"""How far the dump of another process has come, while that process writes it.

Only the last bytes of a file are read: a dump ends with an end mark; see `msprobe_core.store.ending`.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from msprobe_core.model import EndState
from msprobe_core.store import layout
from msprobe_core.untrusted.files import open_plain

_TAIL_BYTES = 1 << 14
_MARK = re.compile(rb'"state":"([a-z]+)","calls":\d+,"windows":\d+,"reason":')
_OVER = frozenset({EndState.COMPLETE.value, EndState.EARLY.value})


class Progress(Enum):
    """How far a dump has come."""

    MISSING = "missing"
    """There is no file yet."""
    GROWING = "growing"
    """Nothing says that its step has ended: it is being written, or its process was killed."""
    OVER = "over"
    """Its step has ended, or recording was given up in it."""


class Growth(NamedTuple):
    """State of a file: equal as long as nothing is written to it."""

    progress: Progress
    modified_ns: int = 0
    size: int = 0


def growth_of(directory: Path) -> Growth:
    """Return how far the dump in a rank's directory has come."""
    for name in layout.RECORD_FILES:
        path = directory / name
        try:
            status = path.stat()
        except OSError:
            continue
        is_over = _is_over(path, status.st_mtime_ns, status.st_size)
        return Growth(Progress.OVER if is_over else Progress.GROWING, status.st_mtime_ns, status.st_size)
    return Growth(Progress.MISSING)


@lru_cache(maxsize=1 << 12)
def _is_over(path: Path, modified_ns: int, size: int) -> bool:
    del modified_ns
    try:
        with open_plain(path) as file:
            file.seek(max(size - _TAIL_BYTES, 0))
            found = _MARK.findall(file.read(_TAIL_BYTES))
    except OSError:
        return False
    return bool(found) and found[-1].decode() in _OVER
