"""``msprobe bisect-steps``: at which step of two long trainings the first fault is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from msprobe_core.cli.output_options import output_option, overwrite_option
from msprobe_core.cli.show import show
from msprobe_core.console import print_lines
from msprobe_core.errors import CompareError, printable

if TYPE_CHECKING:
    from rich.console import Console

    from msprobe_core.bisect_steps.journal import Journal
    from msprobe_core.bisect_steps.replays import Replays, Trainings
    from msprobe_core.bisect_steps.search import Answer


@click.command("bisect-steps")
@click.option("--target", required=True, metavar="'COMMAND …'", help="Runs the target from {checkpoint}.")
@click.option("--golden", required=True, metavar="'COMMAND …'", help="Runs the golden training from {checkpoint}.")
@click.option(
    "--target-checkpoints", metavar="PATTERN", help="The target's checkpoints, such as 'target/checkpoint-{step}'."
)
@click.option("--golden-checkpoints", metavar="PATTERN", help="The golden ones.")
@click.option(
    "--end", type=click.IntRange(1), help="Number of steps of the trainings; by default that of the last checkpoint."
)
@click.option(
    "--windows",
    "num_windows",
    type=click.IntRange(2),
    default=4,
    show_default=True,
    help="Windows that one replay records.",
)
@click.option(
    "--repeats",
    "num_repeats",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Golden replays with other last digits, which measure rounding where both sides are not equal bit by bit; 0: "
    "by a formula.",
)
@output_option("Directory for the windows, the journal and the results.")
@overwrite_option
def bisect_steps(
    *,
    target: str,
    golden: str,
    target_checkpoints: str | None,
    golden_checkpoints: str | None,
    end: int | None,
    num_windows: int,
    num_repeats: int,
    output_path: Path,
    overwrites: bool,
) -> int:
    """Find the step at which two trainings begin to differ by more than rounding, then the layer and the call.

    The commands run the trainings again; both begin with a golden checkpoint. In a command {checkpoint} stands for its
    path (an empty text at the beginning), {step} for its step, {end} for the step after the last window. In each step
    the trainings call start(), stop() and step() of a PrecisionDebugger; they end by themselves after the last window.

    First the existing checkpoints of both sides are compared, then windows between the last that agrees and the first
    that is apart. A search that was ended goes on where it was, if it is started again.

    Exit status: 0 if rounding explains every difference, 1 if a step has a fault, 2 if that cannot be decided.
    """
    from msprobe_core.bisect_steps.answer_report import STEPS_RESULT, write_result
    from msprobe_core.bisect_steps.journal import Journal
    from msprobe_core.bisect_steps.replays import Replays
    from msprobe_core.bisect_steps.search import Outcome, Search
    from msprobe_core.cli.main import EXIT_AGREES, EXIT_DIFFERENT, EXIT_FAILED
    from msprobe_core.report.locate_file import LOCATE_RESULT
    from msprobe_core.store.layout import check_place

    trainings = _trainings(target, golden, target_checkpoints, golden_checkpoints)
    steps = sorted(trainings.target_checkpoints.keys() & trainings.golden_checkpoints.keys())
    if target_checkpoints is not None and not steps:
        raise CompareError("the two sides have no checkpoint of the same step; give other patterns")
    if end is None and not steps:
        raise click.UsageError("give checkpoints of both sides, or --end")
    end = end or steps[-1]
    check_place(output_path)
    if not overwrites:
        STEPS_RESULT.refuse_foreign(output_path)
        LOCATE_RESULT.refuse_foreign(output_path)
    settings = [trainings, end, num_windows, num_repeats]
    journal = Journal(output_path, settings, overwrites=overwrites)
    replays = Replays(trainings, journal, output_path, num_repeats)
    answer = Search(replays, steps, end, num_windows, _say).run()
    path = write_result(answer, end, journal, output_path)
    show(lambda console: _print(answer, end, journal, replays, output_path, console), f"it is in {path}")
    click.echo(f"Results: {path}; decisions: {journal.path}")
    statuses = {Outcome.AGREE: EXIT_AGREES, Outcome.NOT_REPEATED: EXIT_FAILED}
    return statuses.get(answer.outcome, EXIT_DIFFERENT)


def _trainings(target: str, golden: str, target_checkpoints: str | None, golden_checkpoints: str | None) -> Trainings:
    from msprobe_core.bisect_steps.checkpoint_pairs import checkpoints_of
    from msprobe_core.bisect_steps.replays import Trainings

    if (target_checkpoints is None) != (golden_checkpoints is None):
        raise click.UsageError("give --target-checkpoints and --golden-checkpoints, or neither")
    found = [
        {} if pattern is None else {step: str(path) for step, path in checkpoints_of(pattern).items()}
        for pattern in (target_checkpoints, golden_checkpoints)
    ]
    return Trainings(target=target, golden=golden, target_checkpoints=found[0], golden_checkpoints=found[1])


def _say(sentence: str) -> None:
    click.echo(f"msprobe: {printable(sentence)}", err=True)


def _print(answer: Answer, end: int, journal: Journal, replays: Replays, directory: Path, console: Console) -> None:
    from msprobe_core.bisect_steps.answer_report import cost_in_words, cost_of, headline_of, rows_of, table_lines
    from msprobe_core.report.locate_file import write_location
    from msprobe_core.report.locate_text import print_location

    place = answer.place
    if place is not None:
        found = replays.examine(place.begin, place.steps, place.step, is_measured=place.is_measured)
        print_location(found, write_location(found, directory), console)
    cost, headline = cost_in_words(cost_of(journal)), headline_of(answer, end)
    print_lines(console, [*table_lines(rows_of(journal)), cost.text, headline.text])
