"""``msprobe confirm``: decide which run is wrong at one call."""

from __future__ import annotations

from pathlib import Path

import click

from msprobe_core.cli.incomplete import allow_incomplete_option, exit_status, say_incomplete
from msprobe_core.cli.one_rank import one_rank
from msprobe_core.cli.output_options import overwrite_option
from msprobe_core.cli.show import show


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.argument("golden", type=click.Path(path_type=Path))
@click.argument("entry")
@click.option("--golden_entry", metavar="ENTRY", help="Name of the call in the golden run, if it differs.")
@click.option(
    "--model",
    metavar="FILE.py:FUNCTION",
    help="Your function that returns the model, to replay modules with; it is run. Or package.module:function.",
)
@click.option("-o", "--output_path", type=click.Path(path_type=Path), help="Directory for confirm.json.")
@overwrite_option
@allow_incomplete_option
def confirm(
    *,
    target: Path,
    golden: Path,
    entry: str,
    golden_entry: str | None,
    model: str | None,
    output_path: Path | None,
    overwrites: bool,
    allows_incomplete: bool,
) -> int:
    """Decide who is wrong at the call ENTRY: TARGET, GOLDEN, or neither.

    Both are dumps of one rank of one step with whole tensors. Each side's call is replayed with the inputs that this
    side recorded, in its own precision and in float64, and its recorded results are compared with these replays.

    Exit status: 0 if both are right, 1 if one or both are wrong, 2 if it cannot be decided, or if a dump ended early or
    is damaged.
    """
    # numpy and polars are not needed for --help.
    from msprobe_core.cli.main import EXIT_FAILED
    from msprobe_core.compare.incomplete import ends_of
    from msprobe_core.confirm import Verdict, load_model
    from msprobe_core.confirm import confirm as confirm_call
    from msprobe_core.report.confirm import CONFIRM_RESULT, print_confirmation, write_confirmation
    from msprobe_core.store.reading import read_dump

    if output_path is not None and not overwrites:
        CONFIRM_RESULT.refuse_foreign(output_path)
    dumps = read_dump(one_rank(target)), read_dump(one_rank(golden))
    incomplete = [finding.text for finding in ends_of(*dumps).findings]
    say_incomplete(incomplete)
    found = confirm_call(*dumps, entry, golden_entry=golden_entry, model=None if model is None else load_model(model))
    path = None if output_path is None else write_confirmation(found, output_path)
    show(lambda console: print_confirmation(found, path, console), "give -o to write it to a file")
    if found.verdict is Verdict.CANNOT_TELL:
        return EXIT_FAILED
    is_wrong = found.verdict not in {Verdict.NEITHER, Verdict.ILL_CONDITIONED}
    return exit_status(is_wrong=is_wrong, incomplete=incomplete, allows_incomplete=allows_incomplete)
