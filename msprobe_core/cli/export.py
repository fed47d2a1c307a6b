"""``msprobe export``: what `msprobe view` shows, for other viewers."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from msprobe_core.cli.incomplete import allow_incomplete_option
from msprobe_core.cli.output import output_option
from msprobe_core.cli.pairing import pairing_options
from msprobe_core.cli.view import Asked, built, status_of_page, subject_options
from msprobe_core.errors import CompareError


@click.command()
@subject_options
@output_option("Directory for the files.")
@pairing_options
@click.option("--model-explorer", "has_graphs", is_flag=True, help="Graphs, node data and mappings, in JSON.")
@click.option("--perfetto", "has_trace", is_flag=True, help="A trace of the order of calls, with communication.")
@click.option("--tensorboard", "has_events", is_flag=True, help="Statistics over steps as event files.")
@click.option("--tb-database", "has_database", is_flag=True, help="SQLite with tb_nodes, tb_stack and tb_config.")
@allow_incomplete_option
def export(**given: Any) -> int:
    """Write what `msprobe view` shows of SUBJECT, or of SUBJECT against GOLDEN, as files for other viewers.

    Exit status: 0 if all files are written, 2 if not, or if a dump ended early, is damaged or missing.
    """
    allows_incomplete = given.pop("allows_incomplete")
    wanted = {name: given.pop(name) for name in ("has_graphs", "has_trace", "has_events", "has_database")}
    if not any(wanted.values()):
        raise click.UsageError("say for what: --model-explorer, --perfetto, --tensorboard or --tb-database")
    asked = Asked(**given, has_maps=False)
    from msprobe_core.view.graph_cache import Spool
    from msprobe_core.view.inputs import subject_of

    subject = subject_of(asked.subject, asked.golden)
    place = asked.output_path
    with closing(Spool()) as spool:
        data = built(subject, asked, spool)
        if not data.units and (wanted["has_graphs"] or wanted["has_trace"] or wanted["has_database"]):
            raise CompareError(
                f"{subject.target}: is what a monitor has written, which has no graphs; "
                "--tensorboard writes its statistics"
            )
        written: list[Path] = []
        if wanted["has_graphs"]:
            from msprobe_core.view.exports.model_explorer import write_model_explorer

            written += write_model_explorer(data, spool, place / "model_explorer")
        if wanted["has_trace"]:
            from msprobe_core.view.exports.perfetto import write_perfetto

            written += write_perfetto(data, spool, place / "perfetto")
        if wanted["has_events"]:
            from msprobe_core.view.exports.tensorboard import write_tensorboard

            written += write_tensorboard(data, place / "tensorboard")
        if wanted["has_database"]:
            from msprobe_core.view.exports.database import write_database

            stem = "build" if subject.golden is None else "compare"
            written.append(write_database(data, spool, place / f"{stem}_{time.strftime('%Y%m%d%H%M%S')}.vis.db"))
    for path in written:
        click.echo(path)
    return status_of_page(data, allows_incomplete=allows_incomplete)
