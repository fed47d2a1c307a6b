"""Calls that are not recorded: those inside a call that is being recorded, and our own."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from msprobe_core.interception import Inside

inside = Inside()
"""One per process: many patches of a debugger share it, and calls that they make internally are not the user's."""

hidden = Inside()
"""What a monitor, which has a state of its own, does not record either: our own work, and what a compiler runs."""


@contextmanager
def unseen() -> Generator[None, None, None]:
    """Record no call within the block, which may build a graph."""
    was_inside, inside.value = inside.value, True
    try:
        yield
    finally:
        inside.value = was_inside


@contextmanager
def unseen_by_all() -> Generator[None, None, None]:
    """Record no call within the block, by a monitor neither."""
    was_hidden, hidden.value = hidden.value, True
    try:
        with unseen():
            yield
    finally:
        hidden.value = was_hidden
