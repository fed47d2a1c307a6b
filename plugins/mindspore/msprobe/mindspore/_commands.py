"""``msprobe kernel-dump``: run a MindSpore program with its kernel dump enabled from the first line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

_UNKNOWN_COMMAND = 127
"""The exit status that shells use."""


@click.command("kernel-dump", context_settings={"ignore_unknown_options": True})
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def kernel_dump(config: Path, command: tuple[str, ...]) -> None:
    """Run a MindSpore program and dump the kernels of its static graphs, as CONFIG specifies (level L2).

    The program needs no change, and may start other programs: msprobe kernel-dump config.json -- msrun …
    """
    from msprobe.mindspore._kernel_dump import check_machine, set_variables, write_settings
    from msprobe_core.plugin import ConfigError, Level
    from msprobe_core.recording import kernel_options, load_config

    settings = load_config(config)
    if settings.level is not Level.L2:
        raise ConfigError(f"{config}: 'level' is {settings.level.value}, and kernels are dumped at level L2; set it")
    environment = dict(os.environ)
    options = kernel_options(settings)
    if settings.dump_enable:
        check_machine(options)
        set_variables(write_settings(options), environment)
        click.echo(f"msprobe: kernels are dumped to {options.directory}", err=True)
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606  # what the user has typed
    except OSError as error:
        click.echo(f"msprobe: {command[0]} cannot be run ({error.strerror})", err=True)
        sys.exit(_UNKNOWN_COMMAND)
