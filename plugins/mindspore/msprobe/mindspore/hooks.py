"""MindSpore, dynamic graph and static-graph Cell dump. Not built yet: it registers, and says so when it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msprobe_core.hookspecs import hookimpl

if TYPE_CHECKING:
    import click

__version__ = "0.1.0"


@hookimpl
def msprobe_register_commands() -> Sequence[click.Command]:
    """Offer ``kernel-dump``."""
    from msprobe.mindspore._commands import kernel_dump

    return [kernel_dump]
