"""``msprobe monitor to-tensorboard``, ``to-db`` and ``msprobe data2db``: files of monitors, and dumps, for viewers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from msprobe_core.cli.progress import progress_bar
from msprobe_core.errors import DumpError, MissingDumpError, printable

_OF_DUMPS = (
    "is no directory of a monitor; `msprobe data2db` makes a database of a dump, `msprobe view DIR` shows its "
    "statistics over steps, and `msprobe export DIR --tensorboard` writes them as event files"
)
_OF_NEITHER = "holds neither files of a monitor nor a dump; give the directory of a training"

_mapping = click.option(
    "--mapping", type=click.Path(path_type=Path), help="JSON file with parts of names and what replaces them."
)


def _micro_step(*, default: bool) -> Callable[..., Any]:
    return click.option(
        "--micro_step", "by_micro_step", type=bool, default=default, show_default=True,
        help="Count micro-batches as steps.",
    )  # fmt: skip


@click.command(name="to-tensorboard")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("-o", "--output_path", type=click.Path(path_type=Path), help="Where to write; by default in DIRECTORY.")
@click.option("--time_start", help="When the first training to convert began, such as Nov21_05-57-08.")
@click.option("--time_end", help="When the last one began.")
def to_tensorboard(*, directory: Path, output_path: Path | None, time_start: str | None, time_end: str | None) -> None:
    """Write the files of a monitor in DIRECTORY as event files for TensorBoard."""
    from msprobe_core.exports.monitor_events import csv2tensorboard_by_step  # imports polars

    found = csv2tensorboard_by_step(directory, time_start, time_end, output_dirpath=output_path)
    click.echo(f"event files: {found}")


@click.command(name="to-db")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("-o", "--output_path", type=click.Path(path_type=Path), help="Where to write; by default in DIRECTORY.")
@_mapping
@_micro_step(default=False)
def to_db(*, directory: Path, output_path: Path | None, mapping: Path | None, by_micro_step: bool) -> None:
    """Write the files of a monitor in DIRECTORY as a database of trends, monitor_data.trend.db."""
    _write(directory, output_path or directory, mapping, by_micro_step=by_micro_step)


@click.command()
@click.option("--db", "output_path", required=True, type=click.Path(path_type=Path), help="Where to write.")
@click.option(
    "--data",
    "directory",
    required=True,
    type=click.Path(path_type=Path),
    help="Directory of a monitor, or of a recorded run with its steps.",
)
@click.option("--format", "kind", default="auto", type=click.Choice(["auto", "dump", "monitor"]), help="Of the data.")
@_mapping
@_micro_step(default=True)
@click.option(
    "--process_num", type=click.IntRange(1), default=1, show_default=True, help="Number of dumps to read at a time."
)
def data2db(
    *, output_path: Path, directory: Path, kind: str, mapping: Path | None, by_micro_step: bool, process_num: int
) -> None:
    """Write the files of a monitor, or the statistics of a recorded run over steps, as a database of trends.

    The file is monitor_data.trend.db, as of `msprobe monitor to-db`, or dump_data.trend.db.
    """
    from msprobe_core.exports.trends_of_dumps import is_recorded_run  # imports polars
    from msprobe_core.monitoring.files import find_monitored

    is_dump = kind == "dump" or (kind == "auto" and find_monitored(directory) is None)
    if not is_dump:
        _write(directory, output_path, mapping, by_micro_step=by_micro_step)
    elif is_recorded_run(directory):
        _write_dumps(directory, output_path, mapping, process_num, by_micro_step=by_micro_step)
    else:
        raise MissingDumpError(f"{directory}: {_OF_NEITHER if kind == 'auto' else 'holds no dump'}")


def _write_dumps(directory: Path, output: Path, mapping: Path | None, process_num: int, *, by_micro_step: bool) -> None:
    from msprobe_core.exports.trend_database import read_mapping, write_trends
    from msprobe_core.exports.trends_of_dumps import FILE, METRICS, tags_of, trends_of_dumps

    names = read_mapping(mapping) if mapping else None
    with progress_bar("reading") as progress:
        run = trends_of_dumps(directory, process_num, progress)
    for note in run.notes:
        click.echo(f"note: {printable(note.text)}", err=True)
    path = output / FILE
    write_trends(run, path, mapping=names, by_micro_step=by_micro_step, metrics=METRICS, tags_of=tags_of)
    click.echo(f"database: {path}")


def _write(directory: Path, output: Path, mapping: Path | None, *, by_micro_step: bool) -> None:
    from msprobe_core.exports.trend_database import FILE, read_mapping, write_trends  # imports polars
    from msprobe_core.monitoring.files import find_monitored, read_monitored

    place = find_monitored(directory)
    if place is None:
        raise DumpError(f"{directory}: {_OF_DUMPS}")
    run = read_monitored(place)
    for note in run.notes:
        click.echo(f"note: {note.text}", err=True)
    path = output / FILE
    write_trends(run, path, mapping=read_mapping(mapping) if mapping else None, by_micro_step=by_micro_step)
    click.echo(f"database: {path}")
