"""Options for the output directory and for replacing files, and how a command gets several options at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def with_options(*options: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """Return a decorator that adds options and arguments to a command, in this order."""

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def output_option(help_text: str = "Directory for the results.") -> Callable[[Any], Any]:
    """Return the option ``-o``, ``--output_path``, which a command receives as a path; default ``output``."""
    return click.option(
        "-o",
        "--output_path",
        type=click.Path(path_type=Path),
        default=Path("output"),
        show_default=True,
        help=help_text,
    )


def overwrite_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--overwrite`` to a command, which receives it as ``overwrites``."""
    return click.option(
        "--overwrite",
        "overwrites",
        is_flag=True,
        help="Replace a file of the result's name even if msprobe has not written it.",
    )(command)
