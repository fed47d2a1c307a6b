"""``msprobe verl compare``: whether training and rollout of recorded RL runs agree, and where they do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from msprobe_core.cli.incomplete import allow_incomplete_option, exit_status
from msprobe_core.cli.output import output_option, overwrite_option

if TYPE_CHECKING:
    from msprobe.verl._compare.outcome import Outcome
    from msprobe.verl._compare.recorded import RecordedRun

_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group()
def compare() -> None:
    """Compare stages of a recorded RL run with each other, or two runs.

    Exit status of each: 0 if they agree, 1 if they differ, 2 if they, or not all of them, could be compared.
    """


@dataclass(frozen=True, kw_only=True)
class _Written:
    """Where results go, as click gives it."""

    output_path: Path
    form: str | None
    xlsx: bool
    overwrites: bool
    allows_incomplete: bool


def _common(command: _Command) -> _Command:
    """Add the options that every comparison has."""
    options = [
        output_option(),
        overwrite_option,
        click.option("--xlsx", is_flag=True, help="Write spreadsheets; the same as --format xlsx."),
        click.option("--format", "form", type=click.Choice(["csv", "xlsx", "parquet"]), help="What tables are."),
        allow_incomplete_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


_run = click.argument("run", type=click.Path(path_type=Path))
_steps = click.option("--steps", "--step", "steps", metavar="LIST", help="Steps to compare, for example 1,3-5.")
_baseline = click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    help="A healthy run of the same engines: what it differs by is rounding.",
)


def _open(path: Path | None) -> RecordedRun | None:
    from msprobe.verl._compare.recorded import open_run

    return None if path is None else open_run(path)


def _opened(path: Path) -> RecordedRun:
    from msprobe.verl._compare.recorded import open_run

    return open_run(path)


def _numbers(text: str | None) -> tuple[int, ...]:
    from msprobe_core.config.ranges import parse_ranges

    if text is None:
        return ()
    numbers = parse_ranges([part for part in text.split(",") if part.strip()], "--steps")
    if not numbers:
        raise click.UsageError("--steps names none; give for example --steps 0-3,10")
    return tuple(numbers)


def _finish(outcome: Outcome, written: _Written, *runs: RecordedRun) -> int:
    from msprobe.verl._compare.outcome import print_outcome, write_outcome
    from msprobe_core.cli.show import show
    from msprobe_core.report.files import TableForm

    if written.xlsx and written.form not in {None, "xlsx"}:
        raise click.UsageError(f"--xlsx and --format {written.form} contradict each other; give one of them")
    form = TableForm(written.form or ("xlsx" if written.xlsx else "csv"))
    outcome = replace(outcome, incomplete=[line for run in runs for line in run.incomplete])
    files = write_outcome(outcome, written.output_path, form, overwrites=written.overwrites)
    show(lambda console: print_outcome(outcome, files, console), f"it is in {files[-1]}")
    return exit_status(
        is_wrong=not outcome.agrees, incomplete=outcome.incomplete, allows_incomplete=written.allows_incomplete
    )


@compare.command()
@_run
@_steps
@click.option("--training", default="old_log_probs", show_default=True, help="Log-probs under test, of the batch.")
@click.option("--rollout", default="rollout_log_probs", show_default=True, help="Those that they are compared with.")
@click.option("--dtype", metavar="DTYPE", help="Of the coarser engine; as the recorded weights have it by default.")
@_baseline
@_common
def logprob(
    *,
    run: Path,
    steps: str | None,
    training: str,
    rollout: str,
    dtype: str | None,
    baseline: Path | None,
    **written: Any,
) -> int:
    """Compare log-probs of trainer and rollout engine token by token, and test why they differ.

    RUN is the directory of a recorded run that has the stage trainer.
    """
    from msprobe.verl._compare.log_probs_outcome import LogProbOptions, compare_log_probs
    from msprobe_core.cli.progress import progress_bar

    options = LogProbOptions(
        training=training, rollout=rollout, steps=_numbers(steps), dtype=dtype, baseline=_open(baseline)
    )
    opened = _opened(run)
    with progress_bar("comparing") as progress:
        outcome = compare_log_probs(opened, options, progress)
    return _finish(outcome, _Written(**written), opened)


@compare.command()
@_run
@_steps
@_common
def weights(*, run: Path, steps: str | None, **written: Any) -> int:
    """Compare the weights that were sent with those that were received, and each step with the one before.

    RUN is the directory of a recorded run that has the stages update_weights_send and update_weights_recv.
    """
    from msprobe.verl._compare.weights_outcome import compare_weights

    opened = _opened(run)
    return _finish(compare_weights(opened, _numbers(steps)), _Written(**written), opened)


_experts = click.option(
    "--experts", type=click.IntRange(1), help="How many experts a router chooses; as configured by default."
)


@compare.command()
@_run
@_steps
@click.option("--stage", default="actor_compute_log_prob", show_default=True, help="Stage of training.")
@_experts
@_baseline
@_common
def layers(
    *, run: Path, steps: str | None, stage: str, experts: int | None, baseline: Path | None, **written: Any
) -> int:
    """Find the first module at which training and rollout engine part, for the same samples.

    Prompts and decoded tokens are compared apart. RUN is the directory of a recorded run that has the stages
    rollout_generate and actor_compute_log_prob, with tensors.
    """
    from msprobe.verl._compare.modules_outcome import ModulesOptions, compare_layers
    from msprobe_core.cli.progress import progress_bar

    options = ModulesOptions(steps=_numbers(steps), training=stage, experts=experts, baseline=_open(baseline))
    opened = _opened(run)
    with progress_bar("comparing") as progress:
        outcome = compare_layers(opened, options, progress)
    return _finish(outcome, _Written(**written), opened)


@compare.command("actor-vs-ref")
@_run
@_steps
@_experts
@_common
def actor_vs_ref(*, run: Path, steps: str | None, experts: int | None, **written: Any) -> int:
    """Compare actor and reference policy, in the first step: with the same weights they must be equal.

    RUN is the directory of a recorded run that has the stages actor_compute_log_prob and ref_compute_log_prob.
    """
    from msprobe.verl._compare.modules_outcome import ModulesOptions, compare_actor_ref
    from msprobe_core.cli.progress import progress_bar

    opened = _opened(run)
    with progress_bar("comparing") as progress:
        options = ModulesOptions(steps=_numbers(steps), experts=experts)
        outcome = compare_actor_ref(opened, options, progress)
    return _finish(outcome, _Written(**written), opened)


@compare.command()
@_run
@_steps
@_experts
@_common
def onpolicy(*, run: Path, steps: str | None, experts: int | None, **written: Any) -> int:
    """Compare the pass that computed the log-probs with the first mini-batch of the update, which has the same weights.

    RUN is the directory of a recorded run that has the stages actor_compute_log_prob and actor_update.
    """
    from msprobe.verl._compare.modules_outcome import ModulesOptions, compare_on_policy
    from msprobe_core.cli.progress import progress_bar

    opened = _opened(run)
    with progress_bar("comparing") as progress:
        options = ModulesOptions(steps=_numbers(steps), experts=experts)
        outcome = compare_on_policy(opened, options, progress)
    return _finish(outcome, _Written(**written), opened)


@compare.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.argument("golden", type=click.Path(path_type=Path))
@_steps
@click.option("--exact", is_flag=True, help="All must be equal to the bit, as where rollouts were replayed.")
@_common
def runs(*, target: Path, golden: Path, steps: str | None, exact: bool, **written: Any) -> int:
    """Compare two runs, stage by stage in the order of cause and effect, and name the first that differs.

    TARGET is the directory of the run under test, GOLDEN that of the trusted one.
    """
    from msprobe.verl._compare.runs_outcome import RunsOptions, compare_runs
    from msprobe_core.cli.progress import progress_bar

    options = RunsOptions(steps=_numbers(steps), is_exact=exact)
    opened = _opened(target), _opened(golden)
    with progress_bar("comparing") as progress:
        outcome = compare_runs(*opened, options, progress)
    return _finish(outcome, _Written(**written), *opened)


@compare.command()
@click.option("--aa", required=True, type=click.Path(path_type=Path), help="Rollouts of A in the training of A.")
@click.option("--ab", required=True, type=click.Path(path_type=Path), help="Rollouts of A, replayed in that of B.")
@click.option("--ba", required=True, type=click.Path(path_type=Path), help="Rollouts of B, replayed in that of A.")
@click.option("--bb", required=True, type=click.Path(path_type=Path), help="Rollouts of B in the training of B.")
@_steps
@click.option("--dtype", metavar="DTYPE", help="Of the coarser engine; as the recorded weights have it by default.")
@_common
def cross(*, aa: Path, ab: Path, ba: Path, bb: Path, steps: str | None, dtype: str | None, **written: Any) -> int:
    """Tell whether rollout or training of B is at fault, where A is trusted: the fault moves with the half that has it.

    The four directories are of runs that have each engine's rollouts in each trainer.
    """
    from msprobe.verl._compare.cross_outcome import compare_crossed
    from msprobe.verl._compare.log_probs_outcome import LogProbOptions

    runs = {"aa": _opened(aa), "ab": _opened(ab), "ba": _opened(ba), "bb": _opened(bb)}
    outcome = compare_crossed(runs, _numbers(steps), LogProbOptions(dtype=dtype))
    return _finish(outcome, _Written(**written), *runs.values())
