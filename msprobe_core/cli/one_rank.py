"""The one dump that a command is about, if a run or a step of one rank was given."""

from __future__ import annotations

from pathlib import Path

import click

from msprobe_core.errors import CompareError


def one_rank(path: Path) -> Path:
    """Return the only dump in a run or a step.

    Raises:
        CompareError: it has several.
    """
    from msprobe_core.store.reading import check_exists, is_dump
    from msprobe_core.store.runs import steps_of_run, units_of_step

    check_exists(path)
    if is_dump(path):
        return path
    steps, _ = steps_of_run(path)
    if len(steps) > 1:
        raise CompareError(f"{path}: has {len(steps)} steps; give the directory of one rank of one of them")
    step = next(iter(steps.values()), path)
    units, notes = units_of_step(step)
    for note in notes:
        click.echo(f"note: {note}", err=True)
    if len(units) > 1:
        raise CompareError(f"{step}: has {len(units)} ranks; give the directory of one of them")
    return units[0].directory
