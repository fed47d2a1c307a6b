"""TRL's `GRPOTrainer`, recorded stage by stage."""

from __future__ import annotations

from typing import Any

__all__ = ["RecordedGRPOTrainer"]


def __getattr__(name: str) -> Any:
    if name == "RecordedGRPOTrainer":  # on first use: finding this plugin must not import TRL
        from msprobe_trl._trainer import RecordedGRPOTrainer

        return RecordedGRPOTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
