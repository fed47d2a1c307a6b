"""``msprobe overflow_check``: search a run for the first call that turned finite values into NaN or Inf."""

from __future__ import annotations

from pathlib import Path

import click

from msprobe_core.cli.incomplete import allow_incomplete_option, exit_status
from msprobe_core.cli.output_options import output_option, overwrite_option
from msprobe_core.cli.show import show


@click.command("overflow_check")
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@click.option("-i", "--input_path", type=click.Path(path_type=Path), help="The same as DIRECTORY.")
@output_option()
@overwrite_option
@allow_incomplete_option
def overflow_check(
    *, directory: Path | None, input_path: Path | None, output_path: Path, overwrites: bool, allows_incomplete: bool
) -> int:
    """Find the first calls, on all ranks, that turn finite values into NaN or Inf, and report what is to blame.

    DIRECTORY is that of a run, of a step with its ranks, or of a rank.

    Exit status: 0 if there is no harmful NaN or Inf, 1 if there is, 2 if it cannot be decided, also because a dump
    ended early, is damaged or missing.
    """
    if (directory is None) == (input_path is None):
        raise click.UsageError("give one directory: msprobe overflow_check DIRECTORY (or -i DIRECTORY)")
    path = directory or input_path
    assert path is not None
    # polars is not needed for --help.
    from msprobe_core.overflow import search
    from msprobe_core.overflow.report import OVERFLOW_RESULT, write_result
    from msprobe_core.overflow.terminal import print_result

    if not overwrites:
        OVERFLOW_RESULT.refuse_foreign(output_path)
    result = search(path)
    files = write_result(result, output_path)
    show(
        lambda console: print_result(result, files, console, allows_incomplete=allows_incomplete),
        f"it is in {files[-1]}",
    )
    return exit_status(
        is_wrong=result.first is not None, incomplete=result.incomplete, allows_incomplete=allows_incomplete
    )


nan_analyze = click.Command(
    "nan_analyze",
    params=overflow_check.params,
    callback=overflow_check.callback,
    help=overflow_check.help,
    short_help="The former name of overflow_check.",
    hidden=True,
)
