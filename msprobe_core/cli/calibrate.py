"""``msprobe calibrate``: measure how far apart healthy repetitions of a golden run are."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from msprobe_core.cli.incomplete import allow_incomplete_option, exit_status, say_incomplete
from msprobe_core.cli.output_options import overwrite_option
from msprobe_core.cli.progress import progress_bar
from msprobe_core.cli.show import show_lines
from msprobe_core.model import PerturbMode, RoundingUnit

if TYPE_CHECKING:
    from msprobe_core.calibrate import Calibration

_MAX_MISSING = 10


@click.command()
@click.argument("golden", type=click.Path(path_type=Path))
@click.argument("repeats", metavar="[REPEAT]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="The profile; by default noise_profile.parquet in GOLDEN."
)
@overwrite_option
@click.option(
    "--run", "command", metavar="'COMMAND …'", help="Record the repetitions first, by running the golden program again."
)
@click.option(
    "-k",
    "number",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Number of repetitions that --run records.",
)
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in PerturbMode]),
    default=PerturbMode.EVERYWHERE.value,
    show_default=True,
    help="What --run perturbs: the results of all operations, or only the inputs.",
)
@click.option(
    "--dtype",
    type=click.Choice([unit.value for unit in RoundingUnit]),
    help="Format whose rounding --run uses, if it is coarser than a tensor's own.",
)
@click.option("--perturbation", metavar="TEXT", default="", help="How the repetitions differ, shown in reports.")
@click.option(
    "--executor", metavar="NAME", help="What compares ranks: inline, processes, ray; chosen by size by default."
)
@click.option(
    "--workers", type=click.IntRange(1), help="How many ranks are compared at a time; one per core by default."
)
@allow_incomplete_option
def calibrate(
    *,
    golden: Path,
    repeats: tuple[Path, ...],
    output: Path | None,
    overwrites: bool,
    command: str | None,
    number: int,
    mode: str,
    dtype: str | None,
    perturbation: str,
    executor: str | None,
    workers: int | None,
    allows_incomplete: bool,
) -> int:
    """Measure the noise of a golden run from repetitions of it.

    GOLDEN is the directory of a run, which holds its steps. Each REPEAT is another recording of the same program that
    differs only by rounding; by default those in GOLDEN/calibration/run1, run2 and so on. Three are enough. With --run
    the golden program is run again with perturbed last digits, and its repetitions are recorded there.

    The profile is written next to the golden run, where `msprobe compare --noise auto` finds it.

    Exit status: 0 if every step and rank was measured, 1 if some were not, 2 if none could be, or if a dump ended early
    or is damaged: what it lacks is not measured.
    """
    # Not needed for --help.
    from msprobe_core.calibrate import calibrate as measure
    from msprobe_core.calibrate.running import run_repetitions
    from msprobe_core.compare.run import RunOptions
    from msprobe_core.errors import CompareError
    from msprobe_core.model import ExecutorOptions

    if command is not None:
        if repeats:
            raise CompareError("--run records repetitions, and some are named; leave one of the two away")
        unit = None if dtype is None else RoundingUnit(dtype)
        repeats = tuple(run_repetitions(golden, shlex.split(command), number, mode=PerturbMode(mode), dtype=unit))
        perturbation = perturbation or f"last digits changed, {mode}" + (f", as of {dtype}" if dtype else "")
    run = RunOptions(executor=executor, workers=ExecutorOptions(workers=workers))
    with progress_bar("measuring") as progress:
        result = measure(
            golden,
            repeats,
            output=output,
            perturbation=perturbation,
            overwrites=overwrites,
            run=run,
            progress=progress,
        )
    show_lines(_lines(result), f"the profile is in {result.path}")
    say_incomplete(result.incomplete)
    return exit_status(is_wrong=bool(result.missing), incomplete=result.incomplete, allows_incomplete=allows_incomplete)


def _lines(result: Calibration) -> Iterator[str]:
    total: Counter[str] = Counter()
    floors: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for dump in result.dumps:
        for name in ("num_nodes", "num_rows", "num_measured", "num_varying", "num_flips"):
            total[name] += getattr(dump, name)
        for dtype, floor in dump.floors.items():
            floors[dtype].append(floor)
    dumps = "dump" if len(result.dumps) == 1 else "dumps"
    yield (
        f"Noise of {len(result.dumps):,} {dumps} from {len(result.repeats)} repetitions: "
        f"{total['num_nodes']:,} calls, {total['num_rows']:,} tensors of floats."
    )
    yield (
        f"Measured: {total['num_measured']:,} ({_percent(total['num_measured'], total['num_rows'])}); the same in "
        f"all repetitions: {total['num_measured'] - total['num_varying']:,}."
    )
    for dtype, found in floors.items():
        number = sum(count for _, count in found)
        median = sorted(found)[len(found) // 2][0]
        yield f"Median distance of {dtype}: {median:.2g} of the norm ({number:,} tensors)."
    if total["num_flips"]:
        yield (
            f"Values that must be equal and were not in some repetition, which is no error from now on: "
            f"{total['num_flips']:,}."
        )
    yield from (f"Not measured: {line}." for line in result.missing[:_MAX_MISSING])
    if len(result.missing) > _MAX_MISSING:
        yield f"Not measured: {len(result.missing) - _MAX_MISSING:,} more."
    yield f"Took {result.seconds:.1f} s; profile: {result.path} ({result.path.stat().st_size:,} bytes)."
    yield "Compare with it: msprobe compare -tp TARGET -gp GOLDEN --noise auto"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "none"
