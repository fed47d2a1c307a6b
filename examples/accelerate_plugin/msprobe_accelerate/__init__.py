"""Trainings that use accelerate, recorded stage by stage."""

from __future__ import annotations

from typing import Any

__all__ = ["record"]


def __getattr__(name: str) -> Any:
    if name == "record":  # on first use: finding this plugin must not import accelerate
        from msprobe_accelerate._record import record

        return record
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
