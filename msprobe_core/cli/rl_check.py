"""``msprobe rl check``: what must hold in every recorded run, without another one to compare with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msprobe_core.cli.rl_compare import RUN, STEPS, Comparison, comparison_command

if TYPE_CHECKING:
    from msprobe_core.rl.recorded import RecordedRun


@comparison_command(RUN, STEPS, name="check", group=None)
def rl_check(*, run: RecordedRun, steps: tuple[int, ...]) -> Comparison:
    """Check what must hold in a run by itself: rewards, advantages, losses, masks, KL, the reference, sent weights.

    RUN is the directory of a recorded run that has the stage trainer. Exit status: 0 if all of it holds, 1 if
    something does not, 2 if it could not be checked.
    """
    from msprobe_core.rl.invariants_outcome import check_run

    return lambda progress: check_run(run, steps, progress)
