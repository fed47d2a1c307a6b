"""``msprobe gradients``: compare the gradients of two trainings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from msprobe_core.cli.incomplete import exit_status
from msprobe_core.cli.output_options import output_option, overwrite_option
from msprobe_core.cli.show import show_lines

if TYPE_CHECKING:
    from rich.text import Text

    from msprobe_core.gradients.similarity import GradientComparison, Problem

_MOST_SHOWN = 8


@click.group()
def gradients() -> None:
    """Compare the gradients of two trainings."""


@gradients.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.argument("golden", type=click.Path(path_type=Path))
@output_option()
@overwrite_option
def compare(*, target: Path, golden: Path, output_path: Path, overwrites: bool) -> int:
    """Find where the gradients recorded in TARGET stop resembling those of the trusted training, GOLDEN.

    Both are directories of the task grad_probe, of this or an older tool, or of a training monitor that keeps sketches
    of gradients. Similarity is the share of elements with equal signs; at level L0 norms are compared.

    Exit status: 0 if the gradients agree, 1 if they do not, 2 if they cannot be compared, or some of them cannot.
    """
    from msprobe_core.gradients.compare import compare_gradients  # imports NumPy
    from msprobe_core.report.gradients import refuse_foreign_results, write_comparison

    result = compare_gradients(target, golden)
    if not overwrites:
        refuse_foreign_results(output_path, result.ranks)
    write_comparison(result, output_path)
    show_lines(_lines(result, output_path), "the results are in the files")
    return exit_status(is_wrong=bool(result.problems), is_judged=result.is_whole)


def _lines(result: GradientComparison, output: Path) -> Iterator[Text]:
    from rich.text import Text

    from msprobe_core.gradients.similarity import Basis

    if result.problems:
        first = result.problems[0].agreement
        yield Text(f"DIFFERENT: first in layer {first.layer}, step {first.step}, rank {first.rank}.", style="bold red")
        for problem in result.problems[:_MOST_SHOWN]:
            yield Text(f"  {_said(problem)}")
        if len(result.problems) > _MOST_SHOWN:
            yield Text(f"  … and {len(result.problems) - _MOST_SHOWN:,} more")
    elif not result.is_whole:
        number = f"{len(result.agreements):,}"
        yield Text(f"UNDECIDED: {number} gradients agree, and others cannot be compared.", style="bold yellow")
    else:
        yield Text(f"AGREE: {len(result.agreements):,} gradients are as similar as they should be.", style="bold green")
    yield from map(Text, _of_norms(result) if result.basis is Basis.NORMS else _of_signs(result))
    for finding in result.lacking:
        yield Text(f"  {finding.text}", style="yellow")
    yield Text(f"  written: {output}")


def _of_signs(result: GradientComparison) -> Iterator[str]:
    for rank in result.ranks:
        counted = result.counted_summary(rank)
        step, worst = min(counted.items(), key=lambda each: each[1])
        yield f"  rank {rank}: {100 * worst:.4g} % of the signs that count agree in step {step}, the worst"
    yield f"  by the published rule: {len(result.published_problems):,} problems"


def _of_norms(result: GradientComparison) -> Iterator[str]:
    for rank in result.ranks:
        worst = max(result.of_rank(rank), key=lambda each: each.norm_apart)
        times = f"{worst.norm_ratio:.4g} times the golden norm in step {worst.step}, the worst"
        yield f"  rank {rank}: {worst.parameter} has {times}"


def _said(problem: Problem) -> str:
    found = problem.agreement
    return f"{found.parameter} (step {found.step}, rank {found.rank}): {problem.finding.text}"
