"""Options for the output directory and for replacing files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


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
