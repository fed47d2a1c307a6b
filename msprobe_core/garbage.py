"""Pauses of the garbage collector where much is made that stays: it would walk over all of it, again and again."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def paused_collection() -> Generator[None, None, None]:
    """Look for no cycles within the block, unless another thread switches the collector on again."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()
