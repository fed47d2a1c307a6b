"""``msprobe locate``: find where two runs part first, and whether by a fault or by rounding."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from msprobe_core.cli.compare import limits_given, noise_given, numbers_given
from msprobe_core.cli.show import show

if TYPE_CHECKING:
    from msprobe_core.compare import CompareOptions
    from msprobe_core.locate.engine import LocateOptions, LocateProgress


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.argument("golden", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output_path",
    type=click.Path(path_type=Path),
    default=Path("output"),
    show_default=True,
    help="Directory for locate.json.",
)
@click.option(
    "--noise",
    type=click.Choice(["auto", "measured", "closed", "off"]),
    default="auto",
    show_default=True,
    help="What rounding explains: as measured by `msprobe calibrate` if it was, by a formula, or limits by dtype.",
)
@click.option("-f", "-fm", "--fuzzy_match", is_flag=True, help="Pair calls also where their order differs.")
@click.option("-dm", "--data_mapping", metavar="YAML", help="Row names that belong together.")
@click.option(
    "-cm", "--cell_mapping", metavar="[YAML]", is_flag=False, flag_value="", help="Modules that belong together."
)
@click.option("-am", "--api_mapping", metavar="[YAML]", is_flag=False, flag_value="", help="APIs that belong together.")
@click.option(
    "-lm", "--layer_mapping", metavar="[YAML]", is_flag=False, flag_value="", help="Layers that belong together."
)
@click.option(
    "--layout",
    "layouts",
    metavar="YAML|auto",
    help="How tensors and ranks of the two sides lie differently; auto: as recorded.",
)
@click.option(
    "--limit",
    "limits",
    nargs=2,
    multiple=True,
    metavar="PATTERN LIMIT",
    help="Another limit for rows of that name, for example '.*lm_head.*' 'rel<=1e-2'; may be repeated.",
)
@click.option("--limits", "limits_file", type=click.Path(path_type=Path), help="File of limits, laid over ours.")
@click.option("--confirm", "confirms", is_flag=True, help="Make the first suspects' calls again: who is wrong?")
@click.option(
    "--model",
    metavar="FILE.py:FUNCTION",
    help="With --confirm: your function that returns the model, to replay modules with; it is run.",
)
@click.option("--steps", "--step", metavar="LIST", help="Of two runs: steps to look at, for example 0-3,10.")
@click.option("--ranks", "--rank", metavar="LIST", help="Ranks to look at, for example 0,2; all by default.")
@click.option("--executor", metavar="NAME", help="Where ranks are examined: inline, processes or ray.")
@click.option("--workers", type=click.IntRange(1), help="How many at a time; one per core by default.")
@click.option("--ray-address", metavar="HOST:PORT", help="Of a Ray cluster; implies --executor ray.")
def locate(**given: Any) -> int:
    """Find where the run in TARGET first parts from the trusted run in GOLDEN.

    Both name a dump, a rank's directory, a step's directory, whose ranks are then paired by number, or a run's
    directory, whose steps are looked at in turn until one has a fault.

    Exit status: 0 if rounding explains every difference, 1 if there is a fault, 2 if that cannot be said.
    """
    asked = _Asked(**given)
    # polars and numpy are not needed to say --help.
    from msprobe_core.cli.main import EXIT_AGREES, EXIT_DIFFERENT, EXIT_FAILED
    from msprobe_core.locate import LocateVerdict
    from msprobe_core.locate import locate as search
    from msprobe_core.report.locate_file import write_location
    from msprobe_core.report.locate_text import print_location

    with _progress_bar() as progress:
        result = search(asked.target, asked.golden, _options(asked), progress)
    file = write_location(result, asked.output_path)
    show(lambda console: print_location(result, file, console), f"it is in {file}")
    return {
        LocateVerdict.AGREE: EXIT_AGREES,
        LocateVerdict.FAULT: EXIT_DIFFERENT,
        LocateVerdict.INSUFFICIENT: EXIT_FAILED,
    }[result.verdict]


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The arguments and options, as click gives them."""

    target: Path
    golden: Path
    output_path: Path
    noise: str
    fuzzy_match: bool
    data_mapping: str | None
    cell_mapping: str | None
    api_mapping: str | None
    layer_mapping: str | None
    layouts: str | None
    limits: tuple[tuple[str, str], ...]
    limits_file: Path | None
    confirms: bool
    model: str | None
    steps: str | None
    ranks: str | None
    executor: str | None
    workers: int | None
    ray_address: str | None


def _options(asked: _Asked) -> LocateOptions:
    from msprobe_core.compare import Chosen
    from msprobe_core.confirm import load_model
    from msprobe_core.locate.engine import LocateOptions
    from msprobe_core.model import ExecutorOptions

    return LocateOptions(
        compare=_compare_options(asked),
        chosen=Chosen(numbers_given(asked.steps, "--steps"), numbers_given(asked.ranks, "--ranks")),
        confirms=asked.confirms or asked.model is not None,
        model=None if asked.model is None else load_model(asked.model),
        executor="ray" if asked.ray_address and asked.executor is None else asked.executor,
        workers=ExecutorOptions(workers=asked.workers, address=asked.ray_address),
    )


def _compare_options(asked: _Asked) -> CompareOptions:
    from msprobe_core.compare import CompareOptions
    from msprobe_core.compare.mapping_files import read_matching

    layouts = None
    if asked.layouts is not None:
        from msprobe_core.compare.layouts.rules import LayoutRules, load_layouts  # takes time, and few need it

        layouts = LayoutRules() if asked.layouts == "auto" else load_layouts(asked.layouts)
    return CompareOptions(
        limits=limits_given(asked.limits_file, asked.limits),
        matching=read_matching(
            is_fuzzy=asked.fuzzy_match,
            data_mapping=asked.data_mapping,
            cell_mapping=asked.cell_mapping,
            api_mapping=asked.api_mapping,
            layer_mapping=asked.layer_mapping,
        ),
        layouts=layouts,
        noise=noise_given(asked.noise, asked.golden),
    )


@contextmanager
def _progress_bar() -> Generator[LocateProgress, None, None]:
    """Give a callback that draws a bar on the terminal, if there is one."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task: Any = bar.add_task("looking", total=None)

        def show_done(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=f"looked at {label}")

        yield show_done
