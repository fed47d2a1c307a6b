"""``msprobe monitor norms``: norms over all ranks, from the files of each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from msprobe_core.cli.monitor_parts import output_option
from msprobe_core.cli.show import show_lines
from msprobe_core.errors import DumpError

if TYPE_CHECKING:
    from msprobe_core.monitoring.whole_norms import WholeNorms

_RESULT = "whole_norms.csv"


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@output_option(_RESULT)
def norms(*, directory: Path, output_path: Path | None) -> int:
    """Put the norms of sharded gradients, moments and parameters together, and print the gradient's norm of each step.

    Exit status: 0, or 2 if the files of DIRECTORY cannot be read or have no norms.
    """
    from msprobe_core.cli.main import EXIT_AGREES
    from msprobe_core.monitoring.files import monitored_directory, read_monitored
    from msprobe_core.monitoring.whole_norms import layouts_of, whole_norms

    path = monitored_directory(directory)
    run = read_monitored(path)
    if "norm" not in run.statistics:
        raise DumpError(f"{path}: has no norms; monitor with the operation norm")
    result = whole_norms(run, layouts_of(path))
    if output_path is not None:
        _write(result, output_path)
    for note in run.notes:
        click.echo(f"note: {note.text}", err=True)
    show_lines(_lines(result), "give -o to write it to a file")
    return EXIT_AGREES


def _lines(result: WholeNorms) -> Iterator[str]:
    if not result.gradient.height:
        yield "No reduced gradients were monitored."
    for step, norm in result.gradient.rows():
        yield f"step {step}: {'parts of it are missing' if norm is None else f'{norm:.6g}'}"


def _write(result: WholeNorms, directory: Path) -> None:
    from msprobe_core.store.atomic_file import whole_file
    from msprobe_core.store.layout import make_directory

    make_directory(directory)
    with whole_file(directory / _RESULT) as file:
        file.write(result.names.write_csv().encode())
