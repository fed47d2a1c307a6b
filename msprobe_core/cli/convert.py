"""``msprobe convert``: turn runs in one format into another."""

from __future__ import annotations

from pathlib import Path

import click

from msprobe_core.cli.incomplete import allow_incomplete_option, exit_status, say_incomplete
from msprobe_core.cli.progress import progress_bar
from msprobe_core.errors import printable


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("destination", type=click.Path(path_type=Path))
@click.option("--to", type=click.Choice(["json", "arrow"]), help="Format to make; by default the one SOURCE is not in.")
@click.option("--overwrite", is_flag=True, help="Replace a run that is in DESTINATION.")
@click.option(
    "--tensors",
    type=click.Choice(["copy", "link"]),
    default="copy",
    show_default=True,
    help="Copy the files of whole tensors, or link to them without needing room.",
)
@allow_incomplete_option
def convert(
    *, source: Path, destination: Path, to: str | None, overwrite: bool, tensors: str, allows_incomplete: bool
) -> int:
    """Convert the dumps in SOURCE from json to arrow, or back, into DESTINATION.

    SOURCE is the directory of a rank, of a step, or of a run with its steps; DESTINATION is made alike. It appears when
    all of it is there, and SOURCE stays as it is.

    Exit status: 0 if all of it is converted, 2 if not, or if a dump ended early or is damaged: what is there of it is
    converted all the same, and DESTINATION says that it is not whole.
    """
    from msprobe_core.store import convert as conversion  # brings polars, which --help does without

    with progress_bar("converting") as progress:
        done = conversion.convert(
            source,
            destination,
            to=None if to is None else conversion.Format(to),
            overwrite=overwrite,
            tensors=conversion.TensorFiles(tensors),
            progress=progress,
        )
    for note in done.notes:
        click.echo(f"note: {printable(note)}", err=True)
    before, after = done.to.other.value, done.to.value
    dumps = "1 dump" if done.num_units == 1 else f"{done.num_units} dumps"
    click.echo(
        f"converted {dumps} from {before} to {after}: {done.size_before:,} bytes became "
        f"{done.size_after:,}; they are in {destination}"
    )
    say_incomplete(done.incomplete)
    return exit_status(is_wrong=False, incomplete=done.incomplete, allows_incomplete=allows_incomplete)
