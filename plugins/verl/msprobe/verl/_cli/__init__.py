"""``msprobe verl``: what is done to runs of verl; imports neither torch nor verl."""

from __future__ import annotations

import click

from msprobe.verl._cli.compare import compare
from msprobe.verl._cli.doctor import doctor

__all__ = ["verl"]


@click.group()
def verl() -> None:
    """Compare what the plugin for verl has recorded, stage by stage, and say what it can record."""


verl.add_command(compare)
verl.add_command(doctor)
