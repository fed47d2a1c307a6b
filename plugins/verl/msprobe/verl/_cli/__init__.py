"""``msprobe verl``: commands for recorded runs of verl; imports neither torch nor verl."""

from __future__ import annotations

import click

from msprobe.verl._cli.check import check
from msprobe.verl._cli.compare import compare
from msprobe.verl._cli.doctor import doctor

__all__ = ["verl"]


@click.group()
def verl() -> None:
    """Compare what the verl plugin has recorded, stage by stage, and show what it can record."""


verl.add_command(check)
verl.add_command(compare)
verl.add_command(doctor)
