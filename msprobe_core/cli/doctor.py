"""``msprobe doctor``: what is installed here, what would be recorded, and what hinders that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from msprobe_core.cli.show import printing
from msprobe_core.errors import printable

if TYPE_CHECKING:
    from msprobe_core.doctor import Section
    from msprobe_core.protocols.checkups import Condition

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}


@click.command()
@click.option("-c", "--config", type=click.Path(path_type=Path), help="Configuration to check, with its dump_path.")
@click.option("-d", "--dump_path", type=click.Path(path_type=Path), help="Directory that runs are to be recorded to.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def doctor(*, config: Path | None, dump_path: Path | None, as_json: bool) -> int:
    """Examine this installation: what is installed, what would be recorded, and what hinders that.

    Run it where the training runs, in its environment and directory. Nothing is changed.

    Exit status: 0 if nothing hinders recording and comparing, 1 if something does, 2 if that cannot be said.
    """
    from msprobe_core.cli.main import EXIT_AGREES, EXIT_DIFFERENT, EXIT_FAILED
    from msprobe_core.config.load import load_config
    from msprobe_core.doctor import examine
    from msprobe_core.doctor.examination import FAILED
    from msprobe_core.protocols.checkups import Health

    place = load_config(config).directory if dump_path is None else dump_path
    sections = examine(place)
    every = [condition for section in sections for condition in section.conditions]
    hindering = [each for each in every if each.health in (Health.WARNING, Health.ERROR)]
    with printing("redirect it to a file"):
        if as_json:
            click.echo(_json_of(sections))
        else:
            _show(sections)
            click.echo(f"\n{_verdict(len(hindering))}")
    if any(each.code == FAILED for each in every):
        return EXIT_FAILED
    return EXIT_DIFFERENT if hindering else EXIT_AGREES


def _verdict(num_hindering: int) -> str:
    if not num_hindering:
        return "nothing hinders recording and comparing"
    return "1 thing hinders" if num_hindering == 1 else f"{num_hindering} things hinder"


def _show(sections: Sequence[Section]) -> None:
    for section in sections:
        click.echo(section.name)
        for condition in section.conditions:
            _show_condition(condition)


def _show_condition(condition: Condition) -> None:
    health = condition.health.value
    click.echo(f"  {click.style(f'{health:8}', fg=_STYLES[health])} {printable(condition.state)}  [{condition.code}]")
    for title, text in (("why", condition.why), ("do", condition.advice)):
        if text:
            click.echo(f"           {title + ':':4} {printable(text)}")


def _json_of(sections: Sequence[Section]) -> str:
    import msgspec

    from msprobe_core._version import __version__

    conditions = [
        {
            "section": section.name,
            "code": each.code,
            "health": each.health.value,
            "state": each.state,
            "why": each.why,
            "advice": each.advice,
        }
        for section in sections
        for each in section.conditions
    ]
    content = {"version": 1, "msprobe": __version__, "conditions": conditions}
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode()
