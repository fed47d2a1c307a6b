"""``msprobe monitor``: what the monitor's files say of a training."""

from __future__ import annotations

import click

from msprobe_core.cli.monitor_analyze import analyze
from msprobe_core.cli.monitor_compare import compare
from msprobe_core.cli.monitor_export import to_db, to_tensorboard
from msprobe_core.cli.monitor_first_alarms import alarms
from msprobe_core.cli.monitor_norms import norms
from msprobe_core.cli.monitor_reduction import reduction_check
from msprobe_core.cli.monitor_selftest import selftest


@click.group()
def monitor() -> None:
    """Analyze the files that a training monitor has written."""


for _command in (alarms, analyze, compare, norms, reduction_check, selftest, to_db, to_tensorboard):
    monitor.add_command(_command)
