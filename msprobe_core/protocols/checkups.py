"""What `msprobe doctor` says of a framework or a trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum


class Health(str, Enum):
    """What a condition means for recording and comparing."""

    OK = "ok"
    NOTE = "note"
    """Something is not here, which is only missed by who wants it."""
    WARNING = "warning"
    """It works, but slower, less, or not as expected."""
    ERROR = "error"
    """Something does not work."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One line of `msprobe doctor`.

    Attributes:
        code: Identifies the condition; stable between releases, such as ``pytorch.version``.
        health: What it means.
        state: What is the case, in one clause.
        why: Why that matters; empty only if all is well.
        advice: What to do; empty if there is nothing to do.
    """

    code: str
    health: Health
    state: str
    why: str = ""
    advice: str = ""


@dataclass(frozen=True)
class Checkup:
    """An examination of this machine by a plugin.

    Attributes:
        name: Name of the framework or the trainer, for example ``pytorch``.
        examine: Returns what was found. Called by ``msprobe doctor``; may import the framework, must leave no files and
            reports what is not installed as a condition.
    """

    name: str
    examine: Callable[[], Sequence[Condition]]
