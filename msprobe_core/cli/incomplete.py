"""Dumps that ended early or are damaged: no command reports them as healthy unless the user allows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from msprobe_core.errors import printable

ALLOW_INCOMPLETE = "--allow-incomplete"

_MAX_SHOWN = 10


def allow_incomplete_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option to a command, which gets it as ``allows_incomplete``."""
    return click.option(
        ALLOW_INCOMPLETE,
        "allows_incomplete",
        is_flag=True,
        help="Exit with 0 even if a dump ended early, is damaged or missing, if the rest shows no difference.",
    )(command)


def exit_status(
    *, is_wrong: bool, is_judged: bool = True, incomplete: Sequence[object] = (), allows_incomplete: bool = False
) -> int:
    """Return the exit status of a command that judges.

    Args:
        is_wrong: Whether something is wrong in what could be judged.
        is_judged: Whether what is not wrong is right: enough of it could be judged.
        incomplete: What could not be judged, in words.
        allows_incomplete: Whether the user accepts that.
    """
    from msprobe_core.cli.main import EXIT_AGREES, EXIT_DIFFERENT, EXIT_FAILED

    if is_wrong:
        return EXIT_DIFFERENT
    return EXIT_FAILED if not is_judged or (incomplete and not allows_incomplete) else EXIT_AGREES


def say_incomplete(incomplete: Sequence[str]) -> None:
    """Print incomplete dumps to stderr, for commands without a verdict that could include them."""
    for line in incomplete[:_MAX_SHOWN]:
        click.echo(f"incomplete: {printable(line)}", err=True)
    if len(incomplete) > _MAX_SHOWN:
        click.echo(f"incomplete: {len(incomplete) - _MAX_SHOWN:,} more", err=True)
