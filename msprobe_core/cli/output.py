"""The option that says where a command writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def output_option(help_text: str = "Directory for the results.") -> Callable[[Any], Any]:
    """Return the option ``-o``, ``--output_path``, which a command gets as a path; ``output`` if it is left out."""
    return click.option(
        "-o",
        "--output_path",
        type=click.Path(path_type=Path),
        default=Path("output"),
        show_default=True,
        help=help_text,
    )
