"""``msprobe check``: look at recorded dumps with the checks of plugins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from msprobe_core.cli.incomplete import allow_incomplete_option, exit_status, say_incomplete
from msprobe_core.cli.output_options import output_option, overwrite_option
from msprobe_core.cli.show import show_lines

if TYPE_CHECKING:
    from msprobe_core.custom_checks.dumps import CheckedRun

CHECK_FILE = "check.json"
_MAX_SHOWN = 20


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--only", multiple=True, metavar="NAME", help="A check; may be given several times. All if left out.")
@output_option(f"Directory for {CHECK_FILE}.")
@overwrite_option
@allow_incomplete_option
def check(
    *, run: Path, only: Sequence[str], output_path: Path, overwrites: bool, allows_incomplete: bool
) -> int:  # fmt: skip
    """Look at every dump of RUN with the checks that plugins offer.

    RUN is the directory of a run, with or without stages, of a step or of a rank, or a dump.

    Exit status: 0 if no check finds more than notes, 1 if one does, 2 if a check fails, or a dump ended early, is
    damaged or missing.
    """
    # polars is not needed for --help.
    from msprobe_core.custom_checks.dumps import check_run
    from msprobe_core.findings import text_and_content
    from msprobe_core.store.atomic_file import write_json
    from msprobe_core.store.layout import check_place, make_directory
    from msprobe_core.store.results import refuse_foreign_json

    check_place(output_path)
    file = output_path / CHECK_FILE
    if not overwrites:
        refuse_foreign_json(file, "msprobe check", ("run", "checks", "dumps"))
    result = check_run(run, only)
    make_directory(output_path)
    content = {
        "run": str(result.path),
        "checks": dict(result.checks),
        "dumps": [
            {"label": unit.label, "path": str(unit.path), **text_and_content("findings", unit.findings)}
            for unit in result.units
        ],
        **text_and_content("incomplete", result.incomplete),
    }
    write_json(file, content)
    show_lines(_lines(result, file), f"it is in {file}")
    say_incomplete([finding.text for finding in result.incomplete])
    return exit_status(is_wrong=result.is_wrong, incomplete=result.incomplete, allows_incomplete=allows_incomplete)


def _lines(result: CheckedRun, file: Path) -> Iterator[str]:
    found = [(unit.label, finding) for unit in result.units for finding in unit.findings]
    for label, finding in found[:_MAX_SHOWN]:
        yield f"{finding.level.value:<8} {label + ': ' if label else ''}{finding.text}"
    if len(found) > _MAX_SHOWN:
        yield f"{len(found) - _MAX_SHOWN:,} more"
    verdict = "WRONG" if result.is_wrong else "INCOMPLETE" if result.incomplete else "NOTHING FOUND"
    names = ", ".join(result.checks)
    yield f"{verdict}: {len(result.units)} dumps, checked by {names}; {file}"
