"""``msprobe monitor``: what the monitor's files say of a training; each subcommand is a module ``monitor_…``."""

from __future__ import annotations

import click

from msprobe_core.cli.monitor_alarms import alarms
from msprobe_core.cli.monitor_analyze import analyze
from msprobe_core.cli.monitor_compare import compare


@click.group()
def monitor() -> None:
    """Analyze the files that a training monitor has written."""


for _command in (alarms, analyze, compare):
    monitor.add_command(_command)
