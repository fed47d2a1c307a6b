"""``msprobe run_overflow_check``: make the calls of a dump again, and say which NaN and Inf are to be expected."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from msprobe_core.cli.incomplete import exit_status
from msprobe_core.cli.progress import progress_bar
from msprobe_core.cli.show import show_lines
from msprobe_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from msprobe_core.api_check.overflow_replay import OverflowVerdict
    from msprobe_core.model import Replayed
    from msprobe_core.protocols.capabilities import ReplayingFramework
    from msprobe_core.replay.replays import Run


@click.command("run_overflow_check")
@click.option(
    "-api_info", "--api_info_file", "dump", required=True, type=click.Path(path_type=Path),
    help="dump.json of one rank of one step, or its directory.",
)  # fmt: skip
@click.option("-j", "--jit_compile", is_flag=True, help="Accepted for scripts of mindstudio-probe; without effect.")
@click.option(
    "-d", "--device", "devices", multiple=True,
    help="Device to make the calls on too: its number, or its name such as cuda:0. May be repeated.",
)  # fmt: skip
@click.option("--only_recorded", is_flag=True, help="Only calls with NaN or Inf in their recorded results.")
def run_overflow_check(*, dump: Path, jit_compile: bool, devices: tuple[str, ...], only_recorded: bool) -> int:
    """Make the calls of a dump again, and say of each NaN and Inf if the inputs give it.

    "normal overflow": the exact result of the inputs is NaN or Inf, or exceeds what the dtype holds. "abnormal
    overflow": it does not. Judged are the recorded results, those of this machine's processor, and those of devices.
    Dumps of statistics are checked with random inputs within the recorded extremes.

    Exit status: 0 if there is no abnormal overflow, 1 if there is, 2 if no call could be made again.
    """
    # numpy, polars and the framework are not needed for --help.
    from msprobe_core.api_check.call_check import MAX_ELEMENTS
    from msprobe_core.api_check.overflow_replay import OverflowReplayer, OverflowState, overflow_entries
    from msprobe_core.replay.frameworks import replaying_framework
    from msprobe_core.replay.recorded import RecordedCalls
    from msprobe_core.store.reading import read_dump

    if jit_compile:
        click.echo("note: -j has no effect; calls are made one by one, without a compiler", err=True)
    calls = RecordedCalls(read_dump(dump), MAX_ELEMENTS)
    framework = replaying_framework(calls.dump.header.framework)
    replayer = OverflowReplayer(framework=framework, devices=_runs(framework, devices))
    entries = list(overflow_entries(calls, only_recorded=only_recorded))
    if not entries and not only_recorded:
        raise ConfigError(f"{dump}: has no calls of functions; record with level L1 or mix")
    verdicts: list[OverflowVerdict] = []
    with progress_bar("replaying") as progress:
        for number, entry in enumerate(entries, 1):
            verdicts += replayer.check(calls, entry)
            progress(number, len(entries), entry)
    show_lines(_lines(verdicts, len(entries)), "")
    states = {verdict.state for verdict in verdicts}
    return exit_status(is_wrong=OverflowState.ABNORMAL in states, is_judged=states != {OverflowState.CANNOT_TELL})


def _runs(framework: ReplayingFramework, devices: Sequence[str]) -> dict[str, Run]:
    """Return the replay on each device, by its name."""
    from functools import partial

    from msprobe_core.api_check.three_way import devices_called

    replay: Callable[..., Replayed] = framework.replay
    return {
        device: partial(replay, device=device) for device in devices_called(framework, list(dict.fromkeys(devices)))
    }


def _lines(verdicts: Sequence[OverflowVerdict], num_calls: int) -> Iterator[str]:
    from msprobe_core.api_check.overflow_replay import OverflowState
    from msprobe_core.api_check.verdict import Inputs

    listed = [verdict for verdict in verdicts if verdict.state in (OverflowState.ABNORMAL, OverflowState.NORMAL)]
    listed.sort(key=lambda verdict: verdict.state is OverflowState.NORMAL)
    for verdict in listed:
        made = "" if verdict.inputs is Inputs.RECORDED else f" ({verdict.inputs.value} inputs)"
        figures = f"NaN {verdict.num_nan:,}, Inf {verdict.num_inf:,}"
        yield f"{verdict.state.value:<19}{verdict.entry}  {verdict.side}{made}: {figures}; {verdict.reason.text}"
    counts = Counter(verdict.state for verdict in verdicts)
    said = ", ".join(f"{state.value}: {counts[state]:,}" for state in OverflowState if counts[state])
    yield f"calls: {num_calls:,}; results by state: {said or 'none'}"
    if first := next((verdict for verdict in verdicts if verdict.state is OverflowState.CANNOT_TELL), None):
        yield f"not judged: {counts[first.state]:,}; the first is {first.entry}: {first.reason.text}"
