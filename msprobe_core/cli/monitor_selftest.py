"""``msprobe monitor selftest``: whether the monitor sees a training of the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import click

from msprobe_core.cli.show import show
from msprobe_core.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from msprobe_core.monitor.selftest import Checked, SelfTest
    from msprobe_core.monitoring.quantities import Quantity


@click.command()
@click.argument("training", metavar="FILE.py:FUNCTION")
@click.option("--micro-batches", default=1, show_default=True, type=click.IntRange(1), help="Micro-batches of a step.")
@click.option(
    "--skip", default="", help="Quantities that this training does not have, comma-separated, such as exp_avg_sq."
)
def selftest(*, training: str, micro_batches: int, skip: str) -> int:
    """Train two steps with everything monitored, and say what of it was seen and whether it is right.

    FUNCTION returns a model, its optimizer, and a function without arguments that runs one step. With torchrun each
    rank tests what it sees.

    Exit status: 0 if everything expected was seen and what was measured by other means agrees, 1 if a value is wrong, 2
    if less was seen than expected or the training cannot be monitored.
    """
    from msprobe_core.cli.main import EXIT_AGREES, EXIT_DIFFERENT, EXIT_FAILED
    from msprobe_core.confirm import load_model
    from msprobe_core.monitor.selftest import Verdict, run_selftest
    from msprobe_core.store.held_directory import temporary_directory

    skipped = _quantities_of(skip)
    given = load_model(training, argument="FILE.py:FUNCTION")
    with closing(temporary_directory("msprobe-selftest-")) as directory:
        result = run_selftest(given, directory.path, grad_acc_steps=micro_batches, not_expected=skipped)
    show(partial(_print, result), "redirect the output to a file")
    return {Verdict.GOOD: EXIT_AGREES, Verdict.WRONG: EXIT_DIFFERENT, Verdict.BLIND: EXIT_FAILED}[result.verdict]


def _quantities_of(text: str) -> list[Quantity]:
    from msprobe_core.monitoring.quantities import Quantity

    names = [name.strip() for name in text.split(",") if name.strip()]
    known = [each.value for each in Quantity]
    for name in names:
        if name not in known:
            raise ConfigError(f"--skip names {name!r}, which is no quantity; known: {', '.join(known)}")
    return [Quantity(name) for name in names]


def _print(result: SelfTest, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("quantity", "class", "expected", "seen", "finite", "checked", "verdict", box=None, pad_edge=False)
    for checked in result.quantities:
        for row in _rows_of(checked):
            table.add_row(*row)
    console.print(table)
    for checked in result.quantities:
        for place in checked.seen.missing:
            console.print(Text(f"  {checked.quantity.value}: nothing of {place}"))
        for wrong in checked.wrong:
            console.print(Text(f"  {checked.quantity.value} of {wrong}"))
    trainers = ", ".join(result.trainers) or "none besides a plain one"
    console.print(Text(f"Trainers that were recognised: {trainers}."))
    console.print(Text(_SENTENCES[result.verdict.value], style="bold"))


_SENTENCES = {
    "good": "GOOD: the monitor sees this training.",
    "wrong": "WRONG: values of the monitor differ from those that the self-test has measured.",
    "blind": "BLIND: the monitor sees less of this training than it should; if it has no such quantity, give --skip.",
}


def _rows_of(checked: Checked) -> Iterator[tuple[str, ...]]:
    seen = checked.seen
    expected = "any" if seen.expected is None else str(seen.expected)
    verdict = checked.verdict.value if checked.is_required else "skipped"
    total = (expected, str(seen.seen), str(seen.finite), str(checked.num_checked), verdict)
    yield checked.quantity.value, "all", *total
    for kind, count in seen.by_class.items():
        yield "", kind.value, str(count.expected), str(count.seen), str(count.finite), "", ""
