"""The option ``--report``: reports on a result in formats that plugins offer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click


def report_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--report`` to a command, which receives the names as ``reports``."""
    return click.option(
        "--report",
        "reports",
        multiple=True,
        metavar="NAME",
        help="Also write a report in a format that a plugin offers; may be given several times.",
    )(command)


def say_written(paths: Sequence[Path]) -> None:
    """Print where reports are."""
    for path in paths:
        click.echo(path)
