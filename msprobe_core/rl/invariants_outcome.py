"""``msprobe rl check``: what must hold in a run without another one to compare with."""

from __future__ import annotations

from collections.abc import Collection

from msprobe_core.findings import Finding as Said
from msprobe_core.rl.detail_codes import ComparedCode
from msprobe_core.rl.files import RLStage
from msprobe_core.rl.headline_codes import HeadlineCode
from msprobe_core.rl.invariants import CHECKS, RecordedStep
from msprobe_core.rl.outcome import Finding, Outcome, listed_steps
from msprobe_core.rl.recorded import Progress, RecordedRun, chosen_steps, in_turn


def check_run(run: RecordedRun, steps: Collection[int] = (), progress: Progress | None = None) -> Outcome:
    """Check all invariants in the recorded steps; those that need what is not recorded are left out.

    Raises:
        CompareError: there is no batch.
        DumpError: a file cannot be read.
    """
    available = run.need(RLStage.TRAINER.value, "the batches, which are to be checked")
    chosen = chosen_steps(available, steps, f"{RLStage.TRAINER.value} of {run.path}")
    findings: list[Finding] = []
    for step in in_turn(chosen, progress):
        own = RecordedStep(run, step, *run.batch(step))
        for check in CHECKS.values():
            findings += check(own)
    first = next((finding for finding in findings if finding.is_fault), None)
    said = (
        Said(HeadlineCode.CHECKS_AGREE) if first is None
        else Said.of(HeadlineCode.CHECKS, step=first.step, place=first.place)
    )  # fmt: skip
    return Outcome(
        command="check",
        paths=[run.path],
        compared=Said.of(ComparedCode.CHECKS, count=len(CHECKS), steps=listed_steps(chosen)),
        said=said,
        findings=findings,
        numbers={"checks": list(CHECKS), "faults": [finding.place for finding in findings if finding.is_fault]},
    )
