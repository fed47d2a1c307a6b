"""``msprobe monitor analyze``: what moved first in a training, by the monitor's files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from msprobe_core.cli.show import show
from msprobe_core.errors import ConfigError, DumpError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from msprobe_core.findings import Finding
    from msprobe_core.monitoring.anomalies import Anomalies, Anomaly
    from msprobe_core.monitoring.history import Monitored

_RESULT = "anomaly_analyse.json"


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("-o", "--output_path", type=click.Path(path_type=Path), help=f"Directory for {_RESULT}.")
@click.option("-k", "--top_k", default=8, show_default=True, type=click.IntRange(1), help="Anomalies to list.")
@click.option("-s", "--step", "steps", default="[]", help="Steps to list anomalies of, such as [3,4]; all by default.")
@click.option(
    "--false-alarms",
    default=1e-3,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Probability that a healthy training of this length has any anomaly.",
)
def analyze(*, directory: Path, output_path: Path | None, top_k: int, steps: str, false_alarms: float) -> int:
    """Find what moved first in the training whose monitor wrote to DIRECTORY.

    Each value is compared with its own past, and with the same value of other ranks: rank, quantity, layer and step
    that are unusual are listed in the order of computation, then what to record to look closer at the first.

    Exit status: 0 if nothing is unusual, 1 if something is, 2 if the files cannot be read or are too few to judge.
    """
    from msprobe_core.cli.main import EXIT_AGREES, EXIT_DIFFERENT, EXIT_FAILED
    from msprobe_core.findings import each_once
    from msprobe_core.monitoring.anomalies import anomalies_of_ranks  # imports polars, which --help does not need
    from msprobe_core.monitoring.files import read_ranks

    chosen = steps_of(steps)
    path = _found(directory)
    notes: list[Finding] = []

    def runs() -> Iterator[Monitored]:
        for run in read_ranks(path):
            notes.extend(run.notes)
            yield run

    result = anomalies_of_ranks(runs(), false_alarms=false_alarms, most=top_k, steps=chosen)
    if output_path is not None:
        write_json(_content(result), output_path, _RESULT)
    for note in each_once(notes):
        click.echo(f"note: {note.text}", err=True)

    show(partial(_print, result), "give -o to write it to a file")
    if result.num_found:
        return EXIT_DIFFERENT
    return EXIT_AGREES if result.num_judged else EXIT_FAILED


def monitored(directory: Path) -> Monitored:
    """Return what a monitor has written, and print what was left out.

    Raises:
        DumpError: there is nothing of a monitor, or a file cannot be read.
    """
    from msprobe_core.monitoring.files import read_monitored

    run = read_monitored(_found(directory))
    for note in run.notes:
        click.echo(f"note: {directory}: {note.text}", err=True)
    return run


def _found(directory: Path) -> Path:
    from msprobe_core.monitoring.files import find_monitored

    path = find_monitored(directory)
    if path is None:
        raise DumpError(f"{directory}: holds nothing of a monitor; give the directory that MONITOR_OUTPUT_DIR named")
    return path


def steps_of(text: str) -> Sequence[int]:
    """Return the steps that an option lists.

    Raises:
        ConfigError: it is no list of numbers.
    """
    import msgspec

    try:
        return msgspec.json.decode(text, type=list[int])
    except msgspec.DecodeError as error:
        raise ConfigError(f"--step is {text!r}; give a list of numbers such as [3,4]") from error


def _print(result: Anomalies, console: Console) -> None:
    for line in _lines(result):
        console.print(line)


def _lines(result: Anomalies) -> Iterator[Text]:
    from rich.text import Text

    if not result.num_found and not result.num_judged:
        yield Text("UNDECIDED: no value has enough of a past to be judged.", style="bold yellow")
    elif not result.num_found:
        yield Text(f"USUAL: {result.num_judged:,} values follow from their past.", style="bold green")
    else:
        yield Text(f"UNUSUAL: first {_place(result.found[0])}.", style="bold red")
        for anomaly in result.found:
            yield Text(f"  {_place(anomaly)}: {anomaly.finding.text}")
        if result.num_found > len(result.found):
            yield Text(f"  … and {result.num_found - len(result.found):,} more")
        yield Text(f"To look closer at the first, {_zoom(result.found[0]).text}", style="dim")


def _place(anomaly: Anomaly) -> str:
    place = anomaly.place
    micro_step = "" if place.micro_step is None else f", micro-batch {place.micro_step}"
    return f"{place.quantity} of {place.shown} on rank {anomaly.rank} at step {anomaly.step}{micro_step}"


def _zoom(anomaly: Anomaly) -> Finding:
    from msprobe_core.locate.commands import zoom_in

    return zoom_in(anomaly.place, anomaly.step, anomaly.rank)


def write_json(content: object, directory: Path, name: str) -> None:
    """Write a result.

    Raises:
        StoreError: it cannot be written.
    """
    from msprobe_core.store.atomic_file import whole_file
    from msprobe_core.store.layout import make_directory
    from msprobe_core.untrusted.paths import encode_json

    make_directory(directory)
    with whole_file(directory / name) as file:
        file.write(encode_json(content, indent=2) + b"\n")


def _content(result: Anomalies) -> object:
    from msprobe_core.findings import content_of

    return [
        {
            "rank": each.rank,
            "step": each.step,
            "quantity": each.place.quantity,
            "vpp_stage": each.place.stage or 0,
            "name": each.place.name,
            "micro_step": each.place.micro_step,
            "statistic": each.statistic,
            "message": each.finding.text,
            "finding": content_of(each.finding),
            "next": content_of(_zoom(each)),
        }
        for each in result.found
    ]
