"""``msprobe twin``: compare two trainings while both run, or a step with its own repetitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from msprobe_core.cli.incomplete import allow_incomplete_option, exit_status
from msprobe_core.cli.locate import Asked, options_of
from msprobe_core.cli.output_options import output_option, overwrite_option
from msprobe_core.cli.pairing import noise_option, pairing_options
from msprobe_core.cli.show import show
from msprobe_core.errors import printable

if TYPE_CHECKING:
    from msprobe_core.locate.result import LocateResult
    from msprobe_core.twin.repeats import StepRepeats
    from msprobe_core.twin.watch import StepReport


_MOST_SHOWN = 4


@click.group()
def twin() -> None:
    """Compare two trainings while both run, or the repetitions of one step."""


@twin.command()
@click.argument("target", metavar="FOLLOWER", type=click.Path(path_type=Path))
@click.argument("golden", metavar="LEADER", type=click.Path(path_type=Path))
@click.option(
    "--offset", type=int, default=0, show_default=True, help="The leader's step that is step 0 of the follower."
)
@click.option(
    "--wait",
    "patience_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="End when nothing has been written for so many seconds.",
)
@output_option("Directory for locate.json.")
@overwrite_option
@noise_option
@pairing_options
@allow_incomplete_option
def watch(*, offset: int, patience_s: float, **given: Any) -> int:
    """Name the first call in which the run in FOLLOWER disagrees with the trusted run in LEADER, while both record.

    Each step is judged like `msprobe locate` as soon as both have finished it on all ranks. Neither directory has to
    exist yet. The command ends with the first disagreement, or when nothing has been written for a while.

    Exit status: 0 if rounding explains every difference, 1 if there is a disagreement, 2 if that cannot be decided,
    also because a step is missing on one side or ended early.
    """
    asked = Asked(**given, confirms=False, model=None, reports=())
    from msprobe_core.locate.result import LocateVerdict
    from msprobe_core.report.locate_file import LOCATE_RESULT, write_location
    from msprobe_core.report.locate_text import print_location
    from msprobe_core.store.layout import check_place
    from msprobe_core.twin.watch import Watch

    check_place(asked.output_path)
    if not asked.overwrites:
        LOCATE_RESULT.refuse_foreign(asked.output_path)
    found = _Found()
    for report in Watch(asked.target, asked.golden, options_of(asked), offset, patience_s).reports():
        found.take(report)
        result = report.result
        if result is not None and result.verdict is LocateVerdict.FAULT:
            file = write_location(result, asked.output_path)
            show(lambda console: print_location(result, file, console), f"it is in {file}")  # noqa: B023
            break
    return found.told(asked.target, asked.golden, allows_incomplete=asked.allows_incomplete)


@twin.command()
@click.argument("run", type=click.Path(path_type=Path))
def repeats(*, run: Path) -> int:
    """Name the first call of a step that gives two results for one input.

    RUN holds a step that was recorded inside of `repeats`, with its repetitions. Each step and rank is compared bit by
    bit, in execution order.

    Exit status: 0 if all repetitions are the same, 1 if one differs, 2 if that cannot be decided.
    """
    from msprobe_core.twin.repeats import read_repeats

    found = list(read_repeats(run))
    for one in found:
        for line in _lines_on(one):
            click.echo(printable(line))
    return exit_status(
        is_wrong=any(one.first is not None or one.lone for one in found),
        is_judged=bool(found) and not any(one.incomplete for one in found),
    )


def _lines_on(one: StepRepeats) -> Iterator[str]:
    where, first = f"step {one.step}, {one.unit}", one.first
    if first is None:
        yield f"{where}: {one.num_calls:,} calls are bitwise the same in {one.num_runs} runs"
    elif first.inputs:
        before = f"after {one.before}" if one.before else "before the first call"
        yield (
            f"{where}: the first difference is an input of {first.entry} ({', '.join(first.inputs)}): it already "
            f"differed, and no recorded call made it; look at what runs {before}, or record level mix"
        )
    else:
        yield (
            f"{where}: {first.entry} gives several results for one input in {one.num_runs} runs "
            f"({', '.join(first.outputs)}); its inputs are bitwise the same"
        )
    if others := [entry for entry in one.causes if first is None or entry != first.entry]:
        yield (
            f"  {'other ' if one.first and not one.first.inputs else ''}calls that give several results for one input, "
            f"modules around others included: {len(others)}: {', '.join(others[:_MOST_SHOWN])}"
        )
    if one.lone:
        yield f"  {len(one.lone)} calls are made in some of the runs only, first {one.lone[0]}"
    for path in one.incomplete:
        yield f"  {path} ended early"


@dataclass
class _Found:
    """What the reports on all steps come to."""

    num_agreeing: int = 0
    num_undecided: int = 0
    first_undecided: str = ""
    fault: LocateResult | None = None

    def take(self, report: StepReport) -> None:
        """Count a step, and print a line on it."""
        from msprobe_core.locate.result import LocateVerdict

        step = f"step {report.step}" + (f" (leader: {report.leader_step})" * (report.leader_step != report.step))
        result = report.result
        if result is not None and result.verdict is LocateVerdict.AGREE:
            self.num_agreeing += 1
            line = f"{step}: agrees, {result.num_nodes:,} calls"
        elif result is not None and result.verdict is LocateVerdict.FAULT:
            self.fault = result
            line = f"{step}: {result.suspects[0].entry} disagrees"
        else:
            why = report.problem
            if result is not None:
                why = next((each.text for each in (*result.incomplete, *result.notes)), "nothing was judged")
            line = f"{step}: not judged: {why}"
            self.num_undecided += 1
            self.first_undecided = self.first_undecided or line
        click.echo(printable(line))

    def told(self, target: Path, golden: Path, *, allows_incomplete: bool) -> int:
        """Print the verdict, and return the exit status."""
        from msprobe_core.cli.main import EXIT_AGREES, EXIT_DIFFERENT, EXIT_FAILED

        if self.fault is not None:
            return EXIT_DIFFERENT
        if not self.num_agreeing:
            nothing = self.first_undecided or f"{target} and {golden} have no finished step in common"
            click.echo(printable(f"COULD NOT JUDGE: {nothing}"))
            return EXIT_FAILED
        click.echo(f"AGREE: {self.num_agreeing:,} steps; {self.num_undecided:,} not judged")
        return EXIT_FAILED if self.num_undecided and not allows_incomplete else EXIT_AGREES
