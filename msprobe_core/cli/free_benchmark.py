"""``msprobe free_benchmark``: what perturbed repetitions of calls have shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from msprobe_core.cli.free_benchmark_bisect import bisect
from msprobe_core.cli.incomplete import exit_status
from msprobe_core.cli.show import show_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from msprobe_core.free_benchmark.ranking import Ranking, Site


@click.group("free_benchmark")
def free_benchmark() -> None:
    """Find faults of a training without a golden run: by perturbed calls, and by modules in a finer format."""


free_benchmark.add_command(bisect)


@free_benchmark.command("show")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--conditions", is_flag=True, help="List calls by how much they amplify changes of their inputs instead.")
@click.option("-n", "--number", type=click.IntRange(min=1), default=20, show_default=True, help="Number of calls.")
def show(*, run: Path, conditions: bool, number: int) -> int:
    """Rank the calls of RUN, the dump_path of a training, by noise in units of what their arithmetic explains.

    Exit status: 0 if all judged calls react as they should, 1 if one does not, 2 if none was judged.
    """
    from msprobe_core.free_benchmark.ranking import read_ranking

    ranking = read_ranking(run)
    sites = ranking.by_condition if conditions else (ranking.bad or ranking.sites)
    show_lines(_lines(ranking, sites[:number]), "")
    return exit_status(is_wrong=bool(ranking.bad), is_judged=bool(ranking.num_judged))


def _lines(ranking: Ranking, sites: Sequence[Site]) -> Iterator[str]:
    from msprobe_core.api_check.verdict import Verdict

    verdict = "nothing could be judged" if not ranking.num_judged else "all judged calls react as they should"
    if ranking.bad:
        verdict = f"{ranking.bad[0].api} reacts as its arithmetic does not explain"
    yield verdict
    counts = f"{ranking.num_judged:,} calls judged, {sum(site.num_bad for site in ranking.sites):,} of them not right"
    yield f"{counts}; files: {ranking.num_files:,}"
    if ranking.num_damaged:
        yield f"lines that could not be read: {ranking.num_damaged:,}"
    yield f"{'units':>9}  {'amplifies':>9}  {'verdict':<12}  call"
    for site in sites:
        factor = "" if site.amplification is None else f"{site.amplification:.3g}"
        name = site.verdict.value.replace("_", " ")
        units = "" if site.verdict is Verdict.CANNOT_TELL else f"{site.times:.3g}"
        yield f"{units:>9}  {factor:>9}  {name:<12}  {site.api}  {site.tensors}"
        if site.num_bad and site.first is not None:
            step, unit, call = site.first
            where = f"{site.num_bad} of {site.num_checked} calls, first {call} in step {step} of {unit}"
            yield f"{'':>36}{where}: {site.reason}"
