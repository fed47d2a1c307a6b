"""``msprobe monitor reduction-check``: whether ranks have reduced every gradient as they should."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from msprobe_core.cli.incomplete import exit_status
from msprobe_core.cli.monitor_parts import false_alarms_option, numbers_of, output_option, steps_of
from msprobe_core.cli.show import show_lines
from msprobe_core.errors import ConfigError

if TYPE_CHECKING:
    from rich.text import Text

    from msprobe_core.monitoring.reduction import Fault, ReductionCheck

_RESULT = "reduction_check.json"
_MOST_SHOWN = 12


@click.command("reduction-check")
@click.argument("directory", type=click.Path(path_type=Path))
@output_option(_RESULT)
@click.option(
    "--group",
    "groups",
    multiple=True,
    help="Ranks that reduce gradients together, such as 0,1,2,3; may be repeated. By default all with a parameter.",
)
@click.option("-s", "--step", "steps", default="[]", help="Steps to check, such as [3,4]; all by default.")
@false_alarms_option("rounding alone makes any gradient of a healthy training a finding")
def reduction_check(
    *, directory: Path, output_path: Path | None, groups: Sequence[str], steps: str, false_alarms: float
) -> int:
    """Check that every gradient of the training whose monitor wrote to DIRECTORY was reduced over its ranks.

    Needs sketches, which the monitor keeps with "msprobe": {"sketch": "grad"}. Names the parameter, the step, the rank,
    and what happened: a contribution that is missing, scaled or counted twice, a gradient that was not reduced, reduced
    twice, over the wrong ranks, or is that of an earlier step.

    Exit status: 0 if all are right, 1 if any is wrong, 2 if some cannot be judged.
    """
    from msprobe_core.monitoring.reduction import check_reduction  # imports NumPy and polars, slow to load
    from msprobe_core.monitoring.reduction_steps import SketchedRun

    chosen = steps_of(steps)
    members = [_members_of(group) for group in groups]
    result = check_reduction(SketchedRun(directory, members), false_alarms=false_alarms, steps=chosen)
    if output_path is not None:
        _write(result, output_path)
    show_lines(_lines(result), "give -o to write it to a file")
    is_judged = result.num_judged > 0 and not result.unjudged
    return exit_status(is_wrong=bool(result.num_found), is_judged=is_judged)


def _members_of(group: str) -> list[int]:
    found = numbers_of(f"[{group}]", "--group", "give numbers such as 0,1,2,3")
    if len(set(found)) < max(len(found), 2) or min(found) < 0:
        raise ConfigError(f"--group is {group!r}; give two or more different ranks such as 0,1,2,3")
    return found


def _lines(result: ReductionCheck) -> Iterator[Text]:
    from rich.text import Text

    if result.num_found:
        yield Text(f"WRONG: {_place(result.found[0])}: {_said(result.found[0])}.", style="bold red")
        yield from map(Text, _table(result.found))
        yield Text(f"  {result.num_found:,} of {result.num_judged:,} gradients are wrong.")
    elif result.num_judged and not result.unjudged:
        yield Text(f"RIGHT: {result.num_judged:,} gradients are what the ranks' add up to.", style="bold green")
    else:
        yield Text(f"UNDECIDED: {result.num_judged:,} gradients are right.", style="bold yellow")
    for reason in result.reasons:
        yield Text(f"  not judged: {reason.text}")
    if result.power is not None:
        yield Text(
            f"  The sum of the ranks' gradients times {result.factor:.6g} was expected"
            f"{f', and another factor in {result.num_other_factors} steps' if result.num_other_factors else ''}. A "
            f"contribution off by a factor of 1 ± {result.power.median:.2g} would be seen in half of the gradients, by "
            f"1 ± {result.power.most:.2g} in 19 of 20, each with a probability of 95 %."
        )
    if result.num_found:
        yield Text(f"  next: {_advice(result.found[0])}")


def _table(found: Sequence[Fault]) -> Iterator[str]:
    """Yield a line for each kind of fault, and the ranks it is of."""
    first: dict[tuple[object, ...], Fault] = {}
    counts: Counter[tuple[object, ...]] = Counter()
    for fault in found:
        key = (fault.explanation.code, fault.explanation.ranks)
        first.setdefault(key, fault)
        counts[key] += 1
    for key, count in counts.most_common(_MOST_SHOWN):
        times = "once" if count == 1 else f"{count:,} times, first"
        yield f"  {times} {_place(first[key])}: {_said(first[key])}"
    if len(counts) > _MOST_SHOWN:
        yield f"  … and {len(counts) - _MOST_SHOWN:,} more kinds"


def _place(fault: Fault) -> str:
    stage = f"{fault.parameter.stage}:" if fault.parameter.stage else ""
    return f"{stage}{fault.parameter.name} at step {fault.step}"


def _said(fault: Fault) -> str:
    return fault.explanation.finding.text + (" (as other gradients)" if fault.is_inferred else "")


def _advice(fault: Fault) -> str:
    """Return the configuration of a monitor that shows the exchange of one gradient closely."""
    settings: dict[str, object] = {
        "targets": {fault.parameter.name: {}},
        "ops": ["norm", "min", "max", "mean", "nans"],
        "wg_distribution": True,
        "monitor_mbs_grad": True,
        "start_step": max(fault.step - 1, 0),
        "collect_times": 3,
        "cc_distribution": {"enable": True, "cc_pre_hook": True},
        "msprobe": {"sketch": "grad"},
    }
    return f"run the training with the monitor's configuration {msgspec.json.encode(settings).decode()}"


def _write(result: ReductionCheck, directory: Path) -> None:
    from msprobe_core.findings import content_of
    from msprobe_core.store.atomic_file import write_json

    power = result.power
    content = {
        "num_found": result.num_found,
        "num_judged": result.num_judged,
        "factor": result.factor,
        "num_other_factors": result.num_other_factors,
        "visible": None if power is None else {"median": power.median, "19_of_20": power.most},
        "found": [
            {
                "step": fault.step,
                "vpp_stage": fault.parameter.stage,
                "name": fault.parameter.name,
                "ranks": list(fault.explanation.ranks),
                "is_inferred": fault.is_inferred,
                "message": fault.explanation.finding.text,
                "finding": content_of(fault.explanation.finding),
            }
            for fault in result.found
        ],
        "unjudged": [content_of(reason) for reason in result.reasons],
    }
    write_json(directory / _RESULT, content)
