"""Options of commands that compare two dumps: pairing, limits, and the selection of steps and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from msprobe_core.cli.output_options import with_options

if TYPE_CHECKING:
    from msprobe_core.compare import Chosen
    from msprobe_core.compare.layouts.rules import LayoutRules
    from msprobe_core.compare.mapping import Matching
    from msprobe_core.judge.limits import LimitTable
    from msprobe_core.judge.noise import NoiseModel
    from msprobe_core.model import ExecutorOptions

pairing_options = with_options(
    click.option("-f", "-fm", "--fuzzy_match", is_flag=True, help="Pair calls even if their order differs."),
    click.option("-dm", "--data_mapping", metavar="YAML", help="Row names that belong together."),
    click.option(
        "-cm", "--cell_mapping", metavar="[YAML]", is_flag=False, flag_value="", help="Modules that belong together."
    ),
    click.option(
        "-am", "--api_mapping", metavar="[YAML]", is_flag=False, flag_value="", help="APIs that belong together."
    ),
    click.option(
        "-lm", "--layer_mapping", metavar="[YAML]", is_flag=False, flag_value="", help="Layers that belong together."
    ),
    click.option(
        "--layout",
        "layouts",
        metavar="YAML|auto",
        help="Layouts of tensors and ranks that differ between the sides; auto: as recorded.",
    ),
    click.option(
        "--limit",
        "limits",
        nargs=2,
        multiple=True,
        metavar="PATTERN LIMIT",
        help="Another limit for rows whose name matches, for example '.*lm_head.*' 'rel<=1e-2'; may be repeated.",
    ),
    click.option("--limits", "limits_file", type=click.Path(path_type=Path), help="File of limits that override ours."),
    click.option("--steps", "--step", metavar="LIST", help="Steps to examine, for example 0-3,10; all by default."),
    click.option("--ranks", "--rank", metavar="LIST", help="Ranks to examine, for example 0,2; all by default."),
    click.option(
        "--executor", metavar="NAME", help="What processes ranks: inline, processes, ray; chosen by size by default."
    ),
    click.option(
        "--workers", type=click.IntRange(1), help="How many ranks are processed at a time; one per core by default."
    ),
    click.option("--ray-address", metavar="HOST:PORT", help="Address of a Ray cluster; implies --executor ray."),
)
"""Adds the options to a command, which receives them as the fields of `Pairing`."""


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """The options, as click provides them. Properties import what they need: ``--help`` needs none of it."""

    fuzzy_match: bool
    data_mapping: str | None
    cell_mapping: str | None
    api_mapping: str | None
    layer_mapping: str | None
    layouts: str | None
    limits: Sequence[tuple[str, str]]
    limits_file: Path | None
    steps: str | None
    ranks: str | None
    executor: str | None
    workers: int | None
    ray_address: str | None

    @property
    def matching(self) -> Matching:
        """Which rows belong together.

        Raises:
            CompareError: a mapping file is invalid.
        """
        from msprobe_core.compare.mapping_files import read_matching

        return read_matching(
            is_fuzzy=self.fuzzy_match,
            data_mapping=self.data_mapping,
            cell_mapping=self.cell_mapping,
            api_mapping=self.api_mapping,
            layer_mapping=self.layer_mapping,
        )

    @property
    def layout_rules(self) -> LayoutRules | None:
        """Layouts of tensors and ranks; ``None`` if not given.

        Raises:
            CompareError: the file is invalid.
        """
        if self.layouts is None:
            return None
        from msprobe_core.compare.layouts.rules import LayoutRules, load_layouts  # slow, and rarely needed

        return LayoutRules() if self.layouts == "auto" else load_layouts(self.layouts)

    @property
    def limit_table(self) -> LimitTable:
        """The effective limits.

        Raises:
            CompareError: the file or a limit is invalid.
        """
        from msprobe_core.judge.limits import conventional, load_limits, parse_limit

        table = conventional() if self.limits_file is None else load_limits(self.limits_file)
        return table.with_overrides([parse_limit(pattern, limit) for pattern, limit in self.limits])

    @property
    def chosen(self) -> Chosen:
        """Selected steps and ranks."""
        from msprobe_core.compare import Chosen

        return Chosen(numbers_given(self.steps, "--steps"), numbers_given(self.ranks, "--ranks"))

    @property
    def executor_name(self) -> str | None:
        """The executor for ranks; ``None`` lets the command choose."""
        return "ray" if self.ray_address and self.executor is None else self.executor

    @property
    def executor_options(self) -> ExecutorOptions:
        """Number of workers, and address of the cluster."""
        from msprobe_core.model import ExecutorOptions

        return ExecutorOptions(workers=self.workers, address=self.ray_address)


noise_option = click.option(
    "--noise",
    type=click.Choice(["auto", "measured", "closed", "off"]),
    default="auto",
    show_default=True,
    help="What rounding explains: measured by `msprobe calibrate` if available, by a formula, or limits by dtype.",
)


def noise_given(asked: str, golden: Path) -> NoiseModel | None:
    """Return the noise model for the option ``--noise``; ``None`` for the conventional limits."""
    from msprobe_core.judge.noise import NoiseModel, load_noise, measured_noise

    if asked == "off":
        return None
    return NoiseModel() if asked == "closed" else (measured_noise if asked == "measured" else load_noise)(golden)


def numbers_given(text: str | None, option: str) -> tuple[int, ...]:
    """Return the numbers that an option lists, such as ``0-3,10``; none if it is not given."""
    from msprobe_core.config.ranges import parse_ranges

    if text is None:
        return ()
    numbers = parse_ranges([part for part in text.split(",") if part.strip()], option)
    if not numbers:
        raise click.UsageError(f"{option} names none; give for example {option} 0-3,10")
    return numbers
