"""The RL trainer verl, recorded stage by stage. Not built yet: it registers, and says so when it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msprobe_core.hookspecs import hookimpl

if TYPE_CHECKING:
    import click

__version__ = "0.1.0"


@hookimpl
def msprobe_register_commands() -> Sequence[click.Command]:
    """Offer ``verl``, a group of commands."""
    from msprobe.verl._cli import verl

    return [verl]
