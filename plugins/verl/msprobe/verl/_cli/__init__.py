"""``msprobe verl``: commands for recorded runs of verl; imports neither torch nor verl."""

from __future__ import annotations

import click

from msprobe.verl._cli.doctor import doctor
from msprobe_core.comparison import rl_check, rl_compare

__all__ = ["verl"]


@click.group()
def verl() -> None:
    """Compare what the verl plugin has recorded, stage by stage, and show what it can record."""


verl.add_command(rl_check)
verl.add_command(rl_compare)
verl.add_command(doctor)
