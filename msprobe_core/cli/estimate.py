"""``msprobe estimate``: measure what recording a training program will cost."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from msprobe_core.cli.output_options import overwrite_option
from msprobe_core.cli.show import show
from msprobe_core.errors import EstimateError, StoreError

if TYPE_CHECKING:
    from msprobe_core.estimate import Case, CaseResult
    from msprobe_core.estimate.engine import EstimateProgress

_LEVELS = ("L0", "L1", "mix")


def _listed(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list, each once."""
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not names:
        raise click.BadParameter("give at least one name")
    return names


# Options end at the script: all later arguments belong to the script.
@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("target", metavar="SCRIPT|MODULE:FUNCTION")
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--levels", default=",".join(_LEVELS), show_default=True, callback=_listed, help="Levels, comma-separated."
)
@click.option(
    "--modes",
    default="statistics,tensor",
    show_default=True,
    callback=_listed,
    help="What is kept, comma-separated: tensor, or values of summary_mode such as md5.",
)
@click.option("--steps", type=click.IntRange(min=1), default=3, show_default=True, help="Number of measured steps.")
@click.option("--warmup", type=click.IntRange(min=1), default=1, show_default=True, help="Number of steps before them.")
@click.option("--ranks", type=click.IntRange(min=1), default=1, help="Report the disk space for this number of ranks …")
@click.option("--train-steps", type=click.IntRange(min=1), default=1, help="… and of recorded steps.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=1800.0,
    show_default=True,
    help="Time limit of one case, in seconds.",
)
@click.option(
    "--scratch",
    type=click.Path(path_type=Path),
    help="Directory on the disk to measure, for the dumps; they are removed.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all numbers to this file.")
@overwrite_option
def estimate(
    *,
    target: str,
    arguments: tuple[str, ...],
    levels: tuple[str, ...],
    modes: tuple[str, ...],
    steps: int,
    warmup: int,
    ranks: int,
    train_steps: int,
    timeout: float,
    scratch: Path | None,
    json_path: Path | None,
    overwrites: bool,
) -> int:
    """Run a few steps of a training, bare and recorded, and report what recording costs.

    SCRIPT is a training script that uses PrecisionDebugger, with any settings; it is terminated after the last measured
    step. MODULE:FUNCTION trains one step each time it is called, or yields after each, and returns the model.

    Each level and mode is measured in a separate process.

    Exit status: 0 if everything was measured, 2 if not.
    """
    # Not needed for --help.
    from msprobe_core.cli.main import EXIT_AGREES
    from msprobe_core.estimate import Request, Scale, check_json, print_estimate, write_json
    from msprobe_core.estimate import estimate as run

    request = Request(
        target=target,
        arguments=arguments,
        cases=_cases(levels, modes),
        num_warmup=warmup,
        num_steps=steps,
        timeout_s=timeout,
        scratch=scratch,
    )
    if request.is_function and arguments:
        raise click.UsageError(f"a function takes no arguments; options come before {target}")
    if json_path is not None and not json_path.absolute().parent.is_dir():
        raise StoreError(
            f"{json_path}: there is no directory {json_path.absolute().parent}; make it, or choose another"
        )
    if json_path is not None and not overwrites:
        check_json(json_path)
    with _progress() as progress:
        result = run(request, progress)
    scale = Scale(num_ranks=ranks, num_steps=train_steps)
    if json_path is not None:
        write_json(result, scale, json_path)
    if result.bare.problem is None:
        advice = "give --json to keep it" if json_path is None else f"it is in {json_path}"
        show(lambda console: print_estimate(result, scale, console), advice)
    _complain([result.bare, *result.cases])
    return EXIT_AGREES


def _complain(results: Iterable[CaseResult]) -> None:
    """Raise an error for cases that were not measured, after the program's own last output."""
    failed = [result for result in results if result.problem is not None]
    if not failed:
        return
    if failed[0].last_lines:
        click.echo(failed[0].last_lines, err=True)
    others = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    raise EstimateError(f"{failed[0].case.label}{others}: {failed[0].problem}")


def _cases(levels: Iterable[str], modes: Iterable[str]) -> list[Case]:
    from msprobe_core.estimate import Case
    from msprobe_core.plugins import registry

    known = {"tensor", *registry().processors()}
    for what, names, allowed in (("level", levels, _LEVELS), ("mode", modes, sorted(known))):
        for name in names:
            if name not in allowed:
                raise click.UsageError(f"the {what} '{name}' cannot be measured; allowed: {', '.join(allowed)}")
    return [Case(level=level, mode=mode) for mode in modes for level in levels]


@contextmanager
def _progress() -> Generator[EstimateProgress, None, None]:
    """Provide a callback that draws a bar on a terminal, or prints a line for each case elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task: Any = bar.add_task("")
        shown = -1

        def progress(done: int, total: int, case: Case, num_steps: int, seconds: float) -> None:
            nonlocal shown
            bar.update(task, completed=done, total=total, description=_state(case, num_steps, seconds))
            if shown < done and not console.is_terminal:
                click.echo(f"measuring {case.label} ({done + 1} of {total})", err=True)
            shown = done

        yield progress


def _state(case: Case, num_steps: int, seconds: float) -> str:
    steps = f"{num_steps} steps done" if num_steps else "before the first step"
    return f"{case.label}: {steps}, {seconds:.0f} s"
