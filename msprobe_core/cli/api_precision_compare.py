"""``msprobe api_precision_compare``: is a device as accurate as a golden one, by two tables of acc_check."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from msprobe_core.cli.incomplete import exit_status
from msprobe_core.cli.show import show
from msprobe_core.errors import clip, printable

if TYPE_CHECKING:
    from rich.console import Console

    from msprobe_core.compat.ratio_compare import RatioResult

_MAX_SHOWN = 10


@click.command("api_precision_compare")
@click.option(
    "-npu",
    "--npu_csv_path",
    "target",
    type=click.Path(path_type=Path),
    required=True,
    help="accuracy_checking_details_*.csv of the device under test.",
)
@click.option(
    "-gpu",
    "--gpu_csv_path",
    "golden",
    type=click.Path(path_type=Path),
    required=True,
    help="accuracy_checking_details_*.csv of the golden device.",
)
@click.option(
    "-o",
    "--out_path",
    type=click.Path(path_type=Path),
    default=Path(),
    show_default="current directory",
    help="Directory for the results.",
)
def api_precision_compare(*, target: Path, golden: Path, out_path: Path) -> int:
    """Compare the errors of a device with those of a golden device, by their tables of acc_check.

    A metric passes if it is within a limit times that of the golden device; the limit depends on the API, and
    docs/standards.md lists it. Tables may be of msprobe or of mindstudio-probe. The result is two tables,
    api_precision_compare_result_*.csv and api_precision_compare_details_*.csv.

    Exit status: 0 if every row that was compared passes, 1 if one does not, 2 if the tables cannot be read or no row
    could be compared.
    """
    # polars is not needed for --help.
    from msprobe_core.compat.ratio_compare import compare_published_tables, write_ratio_tables
    from msprobe_core.report.files import time_stamp

    result = compare_published_tables(target, golden)
    results, details = write_ratio_tables(result, out_path, time_stamp())
    for names, where in ((result.missing, golden), (result.unused, target)):
        if names:
            rest = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
            click.echo(f"warning: {where} has no row {printable(clip(names[0]))}{rest}; not compared", err=True)
    show(partial(_print, result, results, details), f"it is in {details}")
    return exit_status(is_wrong=result.count("error") > 0, is_judged=result.is_judged)


def _print(result: RatioResult, results: Path, details: Path, console: Console) -> None:
    from rich.text import Text

    wrong = [row for row in result.rows if row.status == "error"]
    wrong.sort(key=lambda row: -(row.excess or 0.0))
    console.print(
        Text(
            f"{len(result.rows):,} rows of {len(result.apis):,} APIs: {result.count('pass'):,} pass, {len(wrong):,} "
            f"do not, {result.count('SKIP'):,} skipped, {len(result.missing) + len(result.unused):,} in one table only"
        )
    )
    for row in wrong[:_MAX_SHOWN]:
        of = "" if row.excess is None else f", {row.excess:.3g} times its limit"
        reason = row.message.strip().replace("\n", "; ")
        console.print(Text(f"  {clip(row.name)}{of}: {reason}"), soft_wrap=True)
    if len(wrong) > _MAX_SHOWN:
        console.print(Text(f"  … and {len(wrong) - _MAX_SHOWN:,} more"))
    for word, path in (("Results", results), ("Details", details)):
        console.print(Text(f"{word}: {path}"), soft_wrap=True)
    if not result.is_judged:
        console.print(Text("UNDECIDED: no row could be compared."))
    elif wrong:
        console.print(Text(f"WORSE: {len(wrong):,} rows are over the limits of their standards."))
    else:
        console.print(Text("AGREE: every row that was compared is within its limits."))
