"""``msprobe verl compare``: whether training and rollout of recorded RL runs agree, and where they do not."""

from __future__ import annotations

import click


@click.group()
def compare() -> None:
    """Compare stages of a recorded RL run with each other, or two runs.

    Exit status: 0 if they agree, 1 if they differ, 2 if they could not be compared.
    """
