"""``msprobe migrate``: what files of the established tool mean here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from msprobe_core.cli.show import printing
from msprobe_core.errors import ExistsError, printable

if TYPE_CHECKING:
    from msprobe_core.migrate import MigratedFile

_STYLES = {"same": "green", "different": "yellow", "refused": "red"}
_SUFFIX = ".msprobe.json"
_ADVICE = "redirect it to a file"


@click.command()
@click.argument("path", metavar="FILE|DIR", type=click.Path(path_type=Path))
@click.option("--write", "writes", is_flag=True, help=f"Write configurations for msprobe beside: NAME{_SUFFIX}.")
@click.option("--overwrite", "overwrites", is_flag=True, help="With --write: replace such a file.")
def migrate(path: Path, *, writes: bool, overwrites: bool) -> int:
    """Say what configurations and mappings that were written for mindstudio-probe or mstt mean here, field by field.

    FILE is a config.json of the debugger, of the monitor, of acc_check or of op_generate, a compare.json, or a mapping;
    of DIR every such file is looked at. Nothing in them is executed.

    Exit status: 0 if every field means the same, 1 if one is understood differently or refused or a file of DIR cannot
    be read, 2 if PATH cannot be read or holds nothing of these kinds.
    """
    from msprobe_core.cli.main import EXIT_AGREES, EXIT_DIFFERENT
    from msprobe_core.migrate import migrated
    from msprobe_core.migrate.files import MOST_NAMED

    found = migrated(path)
    for each in found.files:
        with printing(_ADVICE):
            _show(each)
        if writes and each.kind.endswith("debugger"):
            _write(each, overwrites=overwrites)
    for text in found.unreadable[:MOST_NAMED]:
        click.echo(printable(text), err=True)
    if (num_more := len(found.unreadable) - MOST_NAMED) > 0:
        click.echo(f"{num_more} more JSON and YAML files cannot be read", err=True)
    if found.num_others:
        click.echo(f"{found.num_others} other JSON and YAML files were passed over", err=True)
    return EXIT_AGREES if found.is_same else EXIT_DIFFERENT


def _show(file: MigratedFile) -> None:
    click.echo(printable(f"{file.path}: {file.kind}, for {file.used_by}"))
    same = [each.field for each in file.meanings if each.standing.value == "same"]
    if same:
        click.echo(f"  {_styled('same')} {printable(', '.join(same))}")
    for each in file.meanings:
        if each.standing.value != "same":
            text = f"{each.field}: {each.text}" if each.field else each.text
            click.echo(f"  {_styled(each.standing.value)} {printable(text)}")


def _styled(standing: str) -> str:
    return click.style(f"{standing:9}", fg=_STYLES[standing])


def _write(file: MigratedFile, *, overwrites: bool) -> None:
    from msprobe_core.store.atomic_file import write_json

    if file.content is None:
        click.echo("  not written: choose a task first, as the line on 'task' says", err=True)
        return
    path = file.path.with_name(f"{file.path.stem}{_SUFFIX}")
    if path.exists() and not overwrites:
        raise ExistsError(f"{path} exists; give --overwrite to replace it, or move it away")
    write_json(path, dict(file.content))
    with printing(_ADVICE):
        click.echo(printable(f"  written   {path}"))
