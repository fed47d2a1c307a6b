"""``msprobe monitor alarms``: the first of the alarms that were raised while a training ran.

It is the program ``python -m msprobe.core.monitor.anomaly_processor`` of the established tool too.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from msprobe_core.cli.monitor_parts import steps_of
from msprobe_core.errors import printable

_RESULT = "anomaly_analyse.json"


@click.command()
@click.option("-d", "--data_path", "directory", required=True, type=click.Path(path_type=Path), help="Its alarms.")
@click.option(
    "-o", "--out_path", type=click.Path(path_type=Path), help=f"Directory for {_RESULT}; that of -d if absent."
)
@click.option("-k", "--topk", default=8, show_default=True, type=click.IntRange(1), help="Alarms to list.")
@click.option("-s", "--step", "steps", default="[]", help="Steps to list alarms of, such as [3,4]; all by default.")
def alarms(*, directory: Path, out_path: Path | None, topk: int, steps: str) -> None:
    """List the first alarms of all ranks, in causal order, and write them to anomaly_analyse.json.

    A forward comes before the backward, then reduced gradients, moments and parameters.
    """
    from msgspec import to_builtins

    from msprobe_core.monitoring.alarm_files import first_alarms, read_alarms
    from msprobe_core.store.atomic_file import write_json

    found = read_alarms(directory)
    first = first_alarms(found, topk, steps_of(steps))
    place = directory if out_path is None else out_path
    write_json(place / _RESULT, [to_builtins(alarm) for alarm in first])
    for alarm in first:
        click.echo(printable(alarm.message))
    click.echo(f"{len(first)} of {len(found):,} alarms are in {place / _RESULT}")


def main() -> None:
    """Run as a program, with the same options."""
    from msprobe_core.cli.main import main

    main(["monitor", "alarms", *sys.argv[1:]])


if __name__ == "__main__":
    main()
