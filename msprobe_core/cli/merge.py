"""``msprobe merge_result``: put the results of several ranks side by side."""

from __future__ import annotations

from pathlib import Path

import click

from msprobe_core.cli.incomplete import allow_incomplete_option, exit_status, say_incomplete


@click.command("merge_result")
@click.option(
    "-i",
    "--input_dir",
    type=click.Path(path_type=Path),
    required=True,
    help="Directory of a comparison, with a table for each rank: compare_result_rank0_….csv or .xlsx.",
)
@click.option("-o", "--output_dir", type=click.Path(path_type=Path), required=True, help="Directory for the result.")
@click.option(
    "-config",
    "--config",
    "--config-path",
    "config",
    type=click.Path(path_type=Path),
    required=True,
    help="YAML with api: [parts of names] and, optionally, compare_index: [columns].",
)
@allow_incomplete_option
def merge_result(*, input_dir: Path, output_dir: Path, config: Path, allows_incomplete: bool) -> int:
    """Put the tables of several ranks side by side in one spreadsheet.

    It has one sheet for each index, a row for each value of the APIs named in the YAML, and a column for each rank.

    Exit status: 0 if all of it is there, 2 if not, or if summary.json next to the tables says that a dump ended early,
    is damaged or missing.
    """
    # polars is not needed for --help.
    from msprobe_core.compat.merge import merge_results, read_request

    merged = merge_results(input_dir, output_dir, read_request(config))
    for api in merged.unknown:
        click.echo(f"no row of any rank is of {api!r}", err=True)
    click.echo(
        f"Merged {merged.num_rows:,} rows of {len(merged.ranks):,} ranks, {len(merged.indices)} sheets: {merged.path}"
    )
    say_incomplete(merged.incomplete)
    return exit_status(is_wrong=False, incomplete=merged.incomplete, allows_incomplete=allows_incomplete)
