"""Losses and gradient norms of a training stage: ``updates.json`` next to its dump."""

from __future__ import annotations

from pathlib import Path

import msgspec

from msprobe_core.store.struct_files import load_struct, save_struct

UPDATES_FILE = "updates.json"


class MicroLoss(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The loss of one micro-batch, as computed by the trainer; ``None`` if it is not finite."""

    mini: int
    micro: int
    loss: float | None


class Update(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One optimizer step: norm of the gradients before clipping; ``None`` if it is not finite."""

    mini: int
    grad_norm: float | None


class StageUpdates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``updates.json``."""

    version: int = 1
    updates: tuple[Update, ...] = ()
    losses: tuple[MicroLoss, ...] = ()


def save_updates(directory: Path, updates: StageUpdates) -> None:
    """Write ``updates.json`` into the directory of a rank.

    Raises:
        StoreError: it cannot be written.
    """
    save_struct(directory / UPDATES_FILE, updates)


def load_updates(directory: Path) -> StageUpdates:
    """Return the content of ``updates.json`` in the directory of a rank.

    Raises:
        DumpError: it is missing or invalid.
    """
    return load_struct(directory / UPDATES_FILE, StageUpdates)
