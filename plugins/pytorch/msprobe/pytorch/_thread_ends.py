"""What a thread has of ours on PyTorch's stacks of modes when it ends.

``stop`` on another thread cannot reach these stacks. PyTorch empties them when Python has let go of the thread, needs
the interpreter for it, and aborts the process if that is ending by then.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable


def at_thread_end(sweep: Callable[[], None]) -> None:
    """Call a function when this thread ends, while it still runs Python; once for each function."""
    if sweep not in _ending.sweepers:
        _ending.sweepers[sweep] = _Sweeper(sweep)


class _Sweeper:
    def __init__(self, sweep: Callable[[], None]) -> None:
        self._sweep = sweep

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._sweep()


class _Ending(threading.local):
    def __init__(self) -> None:
        self.sweepers: dict[Callable[[], None], _Sweeper] = {}


_ending = _Ending()
