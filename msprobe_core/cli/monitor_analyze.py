"""``msprobe monitor analyze``: what moved first in a training, by the monitor's files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from msprobe_core.cli.incomplete import exit_status
from msprobe_core.cli.monitor_parts import (
    false_alarms_option,
    next_step,
    output_option,
    record_of,
    shown_place,
    steps_of,
)
from msprobe_core.cli.show import show
from msprobe_core.console import print_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from msprobe_core.findings import Finding
    from msprobe_core.monitoring.anomalies import Anomalies
    from msprobe_core.monitoring.history import Monitored

_RESULT = "anomaly_analyse.json"


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@output_option(_RESULT)
@click.option("-k", "--top_k", default=8, show_default=True, type=click.IntRange(1), help="Anomalies to list.")
@click.option("-s", "--step", "steps", default="[]", help="Steps to list anomalies of, such as [3,4]; all by default.")
@false_alarms_option("a healthy training of this length has any anomaly")
def analyze(*, directory: Path, output_path: Path | None, top_k: int, steps: str, false_alarms: float) -> int:
    """Find what moved first in the training whose monitor wrote to DIRECTORY.

    Each value is compared with its own past, and with the same value of other ranks: rank, quantity, layer and step
    that are unusual are listed in the order of computation, then what to record to look closer at the first.

    Exit status: 0 if nothing is unusual, 1 if something is, 2 if the files cannot be read or are too few to judge.
    """
    from msprobe_core.findings import each_once
    from msprobe_core.monitoring.anomalies import anomalies_of_ranks  # imports polars, which --help does not need
    from msprobe_core.monitoring.files import monitored_directory, read_ranks
    from msprobe_core.store.atomic_file import write_json

    chosen = steps_of(steps)
    path = monitored_directory(directory)
    notes: list[Finding] = []

    def runs() -> Iterator[Monitored]:
        for run in read_ranks(path):
            notes.extend(run.notes)
            yield run

    result = anomalies_of_ranks(runs(), false_alarms=false_alarms, most=top_k, steps=chosen)
    if output_path is not None:
        write_json(output_path / _RESULT, _content(result))
    for note in each_once(notes):
        click.echo(f"note: {note.text}", err=True)

    show(partial(_print, result), "give -o to write it to a file")
    return exit_status(is_wrong=bool(result.num_found), is_judged=bool(result.num_judged))


def _print(result: Anomalies, console: Console) -> None:
    print_lines(console, _lines(result))


def _lines(result: Anomalies) -> Iterator[Text]:
    from rich.text import Text

    if not result.num_found and not result.num_judged:
        yield Text("UNDECIDED: no value has enough of a past to be judged.", style="bold yellow")
    elif not result.num_found:
        yield Text(f"USUAL: {result.num_judged:,} values follow from their past.", style="bold green")
    else:
        yield Text(f"UNUSUAL: first {shown_place(result.found[0])}.", style="bold red")
        for anomaly in result.found:
            yield Text(f"  {shown_place(anomaly)}: {anomaly.finding.text}")
        if result.num_found > len(result.found):
            yield Text(f"  … and {result.num_found - len(result.found):,} more")
        yield Text(f"To look closer at the first, {next_step(result.found[0]).text}", style="dim")


def _content(result: Anomalies) -> object:
    return [record_of(each) | {"statistic": each.statistic} for each in result.found]
