"""Remove our modes from PyTorch's stacks when a thread ends.

``stop`` on another thread cannot access these stacks. PyTorch empties them after Python has released the thread. It
needs the interpreter for that, and aborts the process if the interpreter is shutting down by then.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable


def at_thread_end(sweep: Callable[[], None]) -> None:
    """Call a function when this thread ends, while it can still run Python; once per function."""
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
