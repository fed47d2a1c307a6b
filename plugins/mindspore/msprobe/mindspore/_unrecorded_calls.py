"""Calls that are not recorded: those inside a call that is being recorded, and our own."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager

from msprobe_core.interception import Inside

inside = Inside()
"""One per process: many patches of a debugger share it, and calls that they make internally are not the user's."""

hidden = Inside()
"""What a monitor, which has a state of its own, does not record either: our own work, and what a compiler runs."""


def unseen() -> AbstractContextManager[None]:
    """Record no call within the block, which may build a graph."""
    return held(inside, value=True)


@contextmanager
def unseen_by_all() -> Generator[None, None, None]:
    """Record no call within the block, by a monitor neither."""
    with held(hidden, value=True), unseen():
        yield


@contextmanager
def held(switch: Inside, *, value: bool) -> Generator[None, None, None]:
    """Give a switch a value within the block."""
    was, switch.value = switch.value, value
    try:
        yield
    finally:
        switch.value = was
