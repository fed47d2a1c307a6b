"""``msprobe export``: export what `msprobe view` shows, for other viewers."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from msprobe_core.cli.incomplete import allow_incomplete_option
from msprobe_core.cli.output_options import output_option
from msprobe_core.cli.pairing import pairing_options
from msprobe_core.cli.view import Asked, built, status_of_page, subject_options
from msprobe_core.errors import CompareError
from msprobe_core.plugins import registry
from msprobe_core.protocols.presentation import Page

if TYPE_CHECKING:
    from msprobe_core.protocols.presentation import Export


class _Exporting(click.Command):
    """A command with a flag for each export that plugins offer."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        flags = [
            click.Option([f"--{export.name}", _flag(export)], is_flag=True, help=export.summary)
            for export in registry().exports().values()
        ]
        own = super().get_params(ctx)
        return [*own[:-1], *flags, own[-1]]  # --help stays the last


def _flag(export: Export) -> str:
    return f"export_{export.name.replace('-', '_')}"


@click.command(cls=_Exporting)
@subject_options
@output_option("Directory for the files.")
@pairing_options
@allow_incomplete_option
def export(**given: Any) -> int:
    """Write what `msprobe view` shows of SUBJECT, or of SUBJECT against GOLDEN, as files for other viewers.

    Exit status: 0 if all files are written, 2 if not, or if a dump ended early, is damaged or missing.
    """
    allows_incomplete = given.pop("allows_incomplete")
    exports = registry().exports()
    wanted = [export for export in exports.values() if given.pop(_flag(export))]
    if not wanted:
        *others, last = (f"--{name}" for name in exports)
        raise click.UsageError(f"say for what: {', '.join(others)} or {last}")
    asked = Asked(**given, has_maps=False)
    from msprobe_core.view.inputs import subject_of
    from msprobe_core.view.stored_graphs import StoredGraphs

    subject = subject_of(asked.subject, asked.golden)
    stem = f"{'build' if subject.golden is None else 'compare'}_{time.strftime('%Y%m%d%H%M%S')}"
    with closing(StoredGraphs()) as graphs:
        data = built(subject, asked, graphs)
        if not data.units and any(export.needs_graphs for export in wanted):
            without = [f"--{export.name}" for export in exports.values() if not export.needs_graphs]
            raise CompareError(
                f"{subject.target}: is what a monitor has written, which has no graphs; "
                f"{', '.join(without)} writes its statistics"
            )
        page = Page(data, graphs, asked.output_path, stem)
        written = [path for export in wanted for path in export.write(page)]
    for path in written:
        click.echo(path)
    return status_of_page(data, allows_incomplete=allows_incomplete)
