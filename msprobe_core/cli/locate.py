"""``msprobe locate``: find where two runs diverge first, and whether by a fault or by rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from msprobe_core.cli.incomplete import allow_incomplete_option
from msprobe_core.cli.output_options import output_option, overwrite_option
from msprobe_core.cli.pairing import Pairing, noise_given, noise_option, pairing_options
from msprobe_core.cli.progress import progress_bar
from msprobe_core.cli.reports import report_option, say_written
from msprobe_core.cli.show import show

if TYPE_CHECKING:
    from msprobe_core.locate.engine import LocateOptions


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.argument("golden", type=click.Path(path_type=Path))
@output_option("Directory for locate.json.")
@overwrite_option
@noise_option
@pairing_options
@allow_incomplete_option
@report_option
@click.option("--confirm", "confirms", is_flag=True, help="Replay the calls of the first suspects: who is wrong?")
@click.option(
    "--model",
    metavar="FILE.py:FUNCTION",
    help="With --confirm: your function that returns the model, to replay modules with; it is run.",
)
def locate(**given: Any) -> int:
    """Find where the run in TARGET first diverges from the trusted run in GOLDEN.

    Both name a dump, a rank's directory, a step's directory (ranks are paired by number), or a run's directory, whose
    steps are examined in order until one has a fault.

    Exit status: 0 if rounding explains every difference, 1 if there is a fault, 2 if that cannot be decided, also
    because a dump ended early, is damaged or missing.
    """
    asked = Asked(**given)
    # polars and numpy are not needed for --help.
    from msprobe_core.cli.main import EXIT_AGREES, EXIT_DIFFERENT, EXIT_FAILED
    from msprobe_core.locate import LocateVerdict
    from msprobe_core.locate import locate as search
    from msprobe_core.report.locate_file import LOCATE_RESULT, location_content, write_location
    from msprobe_core.report.locate_text import print_location
    from msprobe_core.report.offered import report_formats, write_location_reports
    from msprobe_core.store.layout import check_place

    formats = report_formats(asked.reports)
    check_place(asked.output_path)
    if not asked.overwrites:
        LOCATE_RESULT.refuse_foreign(asked.output_path)
    with progress_bar("looked at") as progress:
        result = search(asked.target, asked.golden, options_of(asked), progress)
    file = write_location(result, asked.output_path)
    show(lambda console: print_location(result, file, console), f"it is in {file}")
    if formats:
        say_written(write_location_reports(formats, location_content(result), asked.output_path))
    return {
        LocateVerdict.AGREE: EXIT_AGREES,
        LocateVerdict.FAULT: EXIT_DIFFERENT,
        LocateVerdict.INSUFFICIENT: EXIT_FAILED,
    }[result.verdict]


@dataclass(frozen=True, kw_only=True)
class Asked(Pairing):
    """The arguments and options, as click gives them."""

    target: Path
    golden: Path
    output_path: Path
    noise: str
    confirms: bool
    model: str | None
    allows_incomplete: bool
    overwrites: bool
    reports: Sequence[str] = ()


def options_of(asked: Asked) -> LocateOptions:
    """Return the options of the search."""
    from msprobe_core.compare import CompareOptions
    from msprobe_core.confirm import load_model
    from msprobe_core.locate.engine import LocateOptions

    return LocateOptions(
        compare=CompareOptions(
            limits=asked.limit_table,
            matching=asked.matching,
            layouts=asked.layout_rules,
            noise=noise_given(asked.noise, asked.golden),
        ),
        chosen=asked.chosen,
        confirms=asked.confirms or asked.model is not None,
        model=None if asked.model is None else load_model(asked.model),
        allows_incomplete=asked.allows_incomplete,
        executor=asked.executor_name,
        workers=asked.executor_options,
    )
