"""``msprobe monitor compare``: where a monitored training departs from a trusted one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from msprobe_core.cli.incomplete import exit_status
from msprobe_core.cli.monitor_parts import (
    false_alarms_option,
    monitored,
    next_step,
    output_option,
    record_of,
    shown_place,
)
from msprobe_core.cli.show import show
from msprobe_core.console import print_lines
from msprobe_core.errors import NothingInCommonError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from msprobe_core.findings import Finding
    from msprobe_core.monitoring.departure import Comparison
    from msprobe_core.monitoring.divergence import Divergence

_RESULT = "monitor_compare.json"


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.argument("golden", type=click.Path(path_type=Path))
@click.option(
    "--noise", multiple=True, type=click.Path(path_type=Path), help="A healthy repetition of GOLDEN; may be repeated."
)
@output_option(_RESULT)
@click.option("-k", "--top_k", default=8, show_default=True, type=click.IntRange(1), help="Departures to list.")
@false_alarms_option("a healthy training departs anywhere")
def compare(
    *, target: Path, golden: Path, noise: tuple[Path, ...], output_path: Path | None, top_k: int, false_alarms: float
) -> int:
    """Find where the training whose monitor wrote to TARGET departs from the trusted one, GOLDEN.

    The first rank, step, layer and quantity are listed in the order of computation. How far apart healthy trainings are
    is taken from repetitions if they are given, otherwise from the earlier steps of the two.

    Exit status: 0 if the two agree, 1 if they depart, 2 if the files cannot be read or are too few to judge.
    """
    from msprobe_core.monitoring.departure import compare_monitored
    from msprobe_core.store.atomic_file import write_json

    own, other, *repetitions = [monitored(path) for path in (target, golden, *noise)]
    result = compare_monitored(own, other, repetitions, false_alarms=false_alarms, most=top_k)
    if not result.num_shared:
        raise NothingInCommonError(f"{target} and {golden} have no value of a rank and step in common")
    if output_path is not None:
        write_json(output_path / _RESULT, _content(result))
    show(partial(_print, result), "give -o to write it to a file")
    return exit_status(is_wrong=bool(result.num_departures), is_judged=bool(result.num_judged))


def _print(result: Comparison, console: Console) -> None:
    print_lines(console, _lines(result))


def _lines(result: Comparison) -> Iterator[Text]:
    from rich.text import Text

    if result.num_departures:
        yield Text(f"DEPARTED: first {shown_place(result.departures[0])}.", style="bold red")
    elif result.first_difference is None:
        yield Text(f"EQUAL: {result.num_shared:,} values are equal to the last digit.", style="bold green")
    elif result.num_judged:
        yield Text(f"AGREE: {result.num_judged:,} values are as near as by chance.", style="bold green")
    else:
        yield Text("UNDECIDED: how near healthy trainings are is not known; give --noise.", style="bold yellow")
    for departure in result.departures:
        yield Text(f"  {shown_place(departure)}: {departure.finding.text}")
        yield Text(f"    to look closer, {next_step(departure).text}", style="dim")
    if result.num_departures > len(result.departures):
        yield Text(f"  … and {result.num_departures - len(result.departures):,} more")
    if result.first_difference is not None:
        yield Text(f"  {_of_any_size(result.first_difference).text}")
    for finding in result.lacking:
        yield Text(f"  {finding.text}", style="yellow")


def _of_any_size(first: Divergence) -> Finding:
    from msprobe_core.findings import Finding
    from msprobe_core.monitoring.monitoring_codes import DepartureCode

    return Finding(
        DepartureCode.FIRST_DIFFERENCE,
        fields={
            "relative": 100 * first.relative,
            "statistic": first.statistic,
            "quantity": first.place.quantity,
            "name": first.place.shown,
            "rank": first.ranks[0],
            "step": first.step,
        },
    )


def _content(result: Comparison) -> object:
    from msprobe_core.findings import content_of

    first = result.first_difference
    return {
        "departed": bool(result.num_departures),
        "noise": result.basis.value,
        "judged": result.num_judged,
        "count": result.num_departures,
        "departures": [record_of(each) for each in result.departures],
        "first_difference": None if first is None else content_of(_of_any_size(first)),
        "lacking": [content_of(each) for each in result.lacking],
    }
