"""``msprobe rl``: commands for recorded runs of RL trainers of any kind."""

from __future__ import annotations

import click

from msprobe_core.cli.rl_check import rl_check
from msprobe_core.cli.rl_compare import rl_compare


@click.group()
def rl() -> None:
    """Compare what an RL trainer has recorded, stage by stage: weights, log-probs, modules, batches, rewards."""


rl.add_command(rl_check)
rl.add_command(rl_compare)
