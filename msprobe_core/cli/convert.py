"""``msprobe convert``: convert runs from one format to another."""

from __future__ import annotations

from pathlib import Path

import click

from msprobe_core.cli.incomplete import allow_incomplete_option, exit_status, say_incomplete
from msprobe_core.cli.progress import progress_bar
from msprobe_core.errors import printable


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("destination", type=click.Path(path_type=Path))
@click.option(
    "--to", type=click.Choice(["json", "arrow"]), help="Target format; by default the one that SOURCE does not have."
)
@click.option(
    "--from",
    "kind",
    type=click.Choice(["auto", "atb", "adump", "sglang", "flashinfer", "npz", "pt", "msnpy"]),
    help="SOURCE holds tensors that another program wrote: convert files of this format, or of any.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing run in DESTINATION.")
@click.option(
    "--tensors",
    type=click.Choice(["copy", "link"]),
    default="copy",
    show_default=True,
    help="Copy the files of whole tensors, or link to them, which needs no space.",
)
@allow_incomplete_option
def convert(
    *, source: Path, destination: Path, to: str | None, kind: str | None, overwrite: bool, tensors: str,
    allows_incomplete: bool,
) -> int:  # fmt: skip
    """Convert the dumps in SOURCE from json to arrow, or back, into DESTINATION.

    SOURCE is the directory of a rank, of a step, or of a run with its steps; DESTINATION gets the same structure. With
    --from, SOURCE is a file or directory of tensors that another program wrote, and DESTINATION gets a dump of them
    with steps and ranks, which compare, locate and view read. DESTINATION appears when it is complete, and SOURCE is
    not changed.

    Exit status: 0 if everything is converted, 1 if some foreign tensors are damaged or refused, 2 if nothing is
    converted, or if a dump ended early or is damaged: its existing records are converted all the same, and DESTINATION
    is marked as incomplete.
    """
    if kind is not None:
        return _convert_foreign(source, destination, kind, to, overwrite=overwrite)
    from msprobe_core.store import convert as conversion  # imports polars, which --help does not need

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


_MAX_SHOWN = 10


def _convert_foreign(source: Path, destination: Path, kind: str, to: str | None, *, overwrite: bool) -> int:
    from msprobe_core.cli.main import EXIT_AGREES, EXIT_DIFFERENT
    from msprobe_core.store.convert import Format
    from msprobe_core.tensor_files.as_dump import SourceKind, convert_foreign

    with progress_bar("converting") as progress:
        done = convert_foreign(
            source, destination, SourceKind(kind), to=Format(to or "json"), overwrite=overwrite, progress=progress
        )
    for note in done.notes[:_MAX_SHOWN]:
        click.echo(f"note: {printable(note)}", err=True)
    for damage in done.damage[:_MAX_SHOWN]:
        click.echo(f"left out: {printable(damage)}", err=True)
    if len(done.damage) > _MAX_SHOWN:
        click.echo(f"left out: {len(done.damage) - _MAX_SHOWN:,} more", err=True)
    steps, ranks = ({unit[i] for unit in done.units} for i in (0, 1))
    formats = ", ".join(form.value for form in done.formats)
    click.echo(
        f"converted {_count(done.num_tensors, 'tensor')} from {formats}: {_count(len(steps), 'step')}, "
        f"{_count(len(ranks), 'rank')}; they are in {destination}"
    )
    return EXIT_DIFFERENT if done.damage else EXIT_AGREES


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
