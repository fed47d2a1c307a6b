"""``msprobe free_benchmark bisect``: which module explains a value of a training step."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from msprobe_core.cli.output_options import output_option, overwrite_option
from msprobe_core.cli.show import show_lines

if TYPE_CHECKING:
    from msprobe_core.free_benchmark.bisect import BisectResult


@click.command("bisect")
@click.argument("step", metavar="FILE.py:STEP")
@click.option(
    "--target",
    metavar="NAME",
    help="What is to be explained: gradients, grad_norm, loss, or a value that STEP returns by name. By default the "
    "gradients, which tell modules apart best, or the loss of a step without any.",
)
@click.option(
    "--reference",
    type=click.Choice(["fp32", "fp64"]),
    help="Format to raise modules to; by default fp32 for a training in half precision, else fp64.",
)
@click.option(
    "--pairs", type=click.IntRange(1), help="Maximum number of pairs of steps; one module among 200 takes 9, several "
    "that share a difference take more.",
)  # fmt: skip
@click.option("-n", "--number", type=click.IntRange(1), default=10, show_default=True, help="Number of rows to print.")
@output_option("Directory for bisect.json and bisect.csv.")
@overwrite_option
def bisect(
    *,
    step: str,
    target: str | None,
    reference: str | None,
    pairs: int | None,
    number: int,
    output_path: Path,
    overwrites: bool,
) -> int:
    """Find which module, raised in precision, explains the gradients or the loss of a training step.

    STEP is a function without arguments that runs one step on one batch and returns the loss; model and optimizer are
    found among the variables of its file. Or it returns a model, its optimizer and such a function. The step runs with
    half of the modules in a finer format, then with the other half, and so on.

    Exit status: 0 if raising everything changes nothing, 1 if modules explain a difference, 2 if the step cannot be
    repeated.
    """
    from msprobe_core.cli.main import EXIT_AGREES, EXIT_DIFFERENT, EXIT_FAILED
    from msprobe_core.confirm import load_function
    from msprobe_core.free_benchmark.bisect import BisectVerdict
    from msprobe_core.free_benchmark.bisect import bisect as run
    from msprobe_core.free_benchmark.bisect_files import BISECT_RESULT, write_bisect
    from msprobe_core.free_benchmark.step_function import training_step
    from msprobe_core.store.layout import check_place

    check_place(output_path)
    if not overwrites:
        BISECT_RESULT.refuse_foreign(output_path)
    found = run(
        training_step(load_function(step, argument="FILE.py:STEP"), step), target=target, reference=reference,
        pairs=pairs, progress=_say_progress,
    )  # fmt: skip
    paths = write_bisect(found, output_path)
    show_lines(_lines(found, number), f"it is in {paths[0]}")
    click.echo(f"Results: {', '.join(map(str, paths))}; `msprobe view {paths[0]}` shows them")
    statuses = {BisectVerdict.NO_DIFFERENCE: EXIT_AGREES, BisectVerdict.NOT_REPEATED: EXIT_FAILED}
    return statuses.get(found.verdict, EXIT_DIFFERENT)


def _say_progress(num_pairs: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\rpairs of steps: {num_pairs} ", nl=False, err=True)


def _lines(found: BisectResult, number: int) -> Iterator[str]:
    yield found.headline.text
    yield (
        f"{found.target}: {found.value:.8g} unchanged, {found.raised_value:.8g} with everything in "
        f"{found.reference.value}; {found.repeat_difference:.3g} apart when repeated"
    )
    yield (
        f"{found.num_modules:,} modules, {found.num_pairs} pairs of steps, {found.seconds:.1f} s; noise: "
        f"{100 * found.noise:.3g} %"
    )
    yield from (f"note: {note.text}" for note in found.notes)
    if found.loss is not None and found.raised_loss is not None and found.target != "loss":
        yield f"loss: {found.loss:.8g} unchanged, {found.raised_loss:.8g} with everything in {found.reference.value}"
    if found.measured:
        yield f"{'share %':>9}  {'x noise':>9}  {'loss':>11}  modules"
    for part in found.parts[:number] if found.measured else ():
        mark = " (inferred)" if part.is_inferred else ", only together" if part.is_joint else ""
        loss = "" if part.loss is None else f"{part.loss:.8g}"
        yield f"{100 * part.share:>9.3g}  {part.times:>9.3g}  {loss:>11}  {part.label}{mark}"
    if len(found.parts) > number:
        yield f"and {len(found.parts) - number} more"
