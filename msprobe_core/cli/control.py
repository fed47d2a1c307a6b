"""``msprobe control``: switch the recording of a running job on and off, and change what it records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from msprobe_core.errors import ConfigError

if TYPE_CHECKING:
    from msprobe_core.config import Config
    from msprobe_core.config.edit import Edit

_SWITCH = "dump_enable"


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("action", type=click.Choice(["on", "off", "set", "status"]))
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]…")
def control(*, config: Path, action: str, settings: tuple[str, ...]) -> None:
    """Change the configuration file CONFIG of a running job, which then records accordingly from its next step on.

    \b
    on, off   set dump_enable to true or false
    set       set fields: control config.json set level=mix step='["10-12"]' statistics.list='["layers.3"]'
    status    change nothing; print the current settings

    The file is checked first and replaced as a whole. A job follows it if it said dump_enable when the job started.
    """  # noqa: D301  # click's mark for lines that must not be joined
    from msprobe_core.config.edit import edit_config

    changes = _changes(settings)
    if action == "set" and not changes:
        raise click.UsageError("set what? For example: msprobe control config.json set level=mix")
    if action != "set" and changes:
        raise click.UsageError(f"'{action}' takes no KEY=VALUE; use 'set'")
    if action in {"on", "off"}:
        changes = {_SWITCH: action == "on"}
    edit = edit_config(config, changes)
    if edit.lost_comments:
        click.echo(f"{config} was rewritten: its comments are lost", err=True)
    click.echo(_describe(edit.config))
    click.echo(_say_who_follows(edit, has_changed=bool(changes)))


def _changes(settings: tuple[str, ...]) -> dict[str, Any]:
    from msprobe_core.config.edit import parse_value

    changes: dict[str, Any] = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key:
            raise ConfigError(f"{setting!r} is no KEY=VALUE; write for example level=mix")
        changes[key] = parse_value(value)
    return changes


def _describe(config: Config) -> str:
    from msprobe_core.config.ranges import format_ranges

    if not config.dump_enable:
        return "recording is off"
    options = config.options
    parts = [f"task {config.task.value}", f"level {config.level.value}"]
    if config.task.value != "structure":
        parts.append(f"summary_mode {options.summary_mode}")
    parts += [f"{name} {', '.join(format_ranges(getattr(config, name))) or 'all'}" for name in ("step", "rank")]
    parts += [f"{name} {', '.join(getattr(options, name))}" for name in ("scope", "list") if getattr(options, name)]
    return f"recording is on: {'; '.join(parts)}; to {config.dump_path}"


def _say_who_follows(edit: Edit, *, has_changed: bool) -> str:
    if edit.before:
        what = "takes this over" if has_changed else "does this"
        return f"a running job that reads this file {what} at its next step"
    if edit.config.is_live:
        return (
            f"jobs that start from now on follow this file; one that runs already does not, because the file had no "
            f"'{_SWITCH}' when it started"
        )
    return f"no job follows this file while it runs, because it has no '{_SWITCH}'; add it before the job starts"
