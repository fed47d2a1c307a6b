"""``msprobe rl compare``: whether training and rollout of recorded RL runs agree, and where they do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from msprobe_core.cli.incomplete import allow_incomplete_option, exit_status
from msprobe_core.cli.output_options import output_option, overwrite_option, with_options
from msprobe_core.cli.pairing import numbers_given

if TYPE_CHECKING:
    from msprobe_core.rl.outcome import Outcome
    from msprobe_core.rl.recorded import RecordedRun

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Parameter: TypeAlias = Callable[[_Command], _Command]
Comparison: TypeAlias = "Callable[[Callable[[int, int, str], None]], Outcome]"
"""Compares, and reports its progress to the given callable."""


@click.group("compare")
def rl_compare() -> None:
    """Compare stages of a recorded RL run with each other, or two runs.

    Exit status of each: 0 if they agree, 1 if they differ, 2 if some or all of them could not be compared.
    """


_WRITTEN = (
    output_option(),
    overwrite_option,
    click.option("--xlsx", is_flag=True, help="Write spreadsheets; the same as --format xlsx."),
    click.option("--format", "form", type=click.Choice(["csv", "xlsx", "parquet"]), help="What tables are."),
    allow_incomplete_option,
)
"""Options that every comparison has."""

STEPS = click.option("--steps", "--step", "steps", metavar="LIST", help="Steps to compare, for example 1,3-5.")
RUN = click.argument("run", type=click.Path(path_type=Path))
_BASELINE = click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    help="A healthy run of the same engines: what it differs by is rounding.",
)
_EXPERTS = click.option(
    "--experts", type=click.IntRange(1), help="How many experts a router chooses; as configured by default."
)
_DTYPE = click.option(
    "--dtype", metavar="DTYPE", help="Of the coarser engine; as the recorded weights have it by default."
)


def comparison_command(
    *parameters: Any, name: str | None = None, group: click.Group | None = rl_compare
) -> Callable[[Callable[..., Comparison]], click.Command]:
    """Make a command of a function that gets opened runs and the options, and returns the comparison.

    Args:
        parameters: Options and arguments in addition to those of every comparison. Path arguments name recorded runs.
        name: Name of the command; that of the function by default.
        group: The group that it belongs to; ``None`` if another module adds it to one.
    """

    def decorate(function: Callable[..., Comparison]) -> click.Command:
        @wraps(function)
        def command(
            *, output_path: Path, form: str | None, xlsx: bool, overwrites: bool, allows_incomplete: bool,
            steps: str | None, baseline: Path | None = None, **given: Any,
        ) -> int:  # fmt: skip
            from msprobe_core.cli.progress import progress_bar
            from msprobe_core.cli.show import show
            from msprobe_core.report.files import TableForm
            from msprobe_core.rl.outcome import print_outcome, write_outcome
            from msprobe_core.rl.recorded import open_run

            if baseline is not None:
                given["baseline"] = open_run(baseline)
            runs = {key: open_run(value) for key, value in given.items() if isinstance(value, Path)}
            compares = function(**given | runs, steps=numbers_given(steps, "--steps"))
            with progress_bar("comparing") as progress:
                outcome = compares(progress)
            if xlsx and form not in {None, "xlsx"}:
                raise click.UsageError(f"--xlsx and --format {form} contradict each other; give one of them")
            outcome = replace(outcome, incomplete=[line for run in runs.values() for line in run.incomplete])
            table_form = TableForm(form or ("xlsx" if xlsx else "csv"))
            files = write_outcome(outcome, output_path, table_form, overwrites=overwrites, group=_group_name())
            show(lambda console: print_outcome(outcome, files, console), f"it is in {files[-1]}")
            return exit_status(
                is_wrong=not outcome.agrees, incomplete=outcome.incomplete, allows_incomplete=allows_incomplete
            )

        return (click if group is None else group).command(name)(with_options(*parameters, *_WRITTEN)(command))

    return decorate


def _group_name() -> str:
    """Return the name of the group that the command was called in: ``rl``, or that of a trainer's plugin."""
    return click.get_current_context().command_path.split()[1]


@comparison_command(
    RUN,
    STEPS,
    click.option("--training", default="old_log_probs", show_default=True, help="Log-probs under test, of the batch."),
    click.option(
        "--rollout", default="rollout_log_probs", show_default=True, help="Those that they are compared with."
    ),
    _DTYPE,
    _BASELINE,
    click.option(
        "--limit", metavar="NATS", type=click.FloatRange(0), help="Largest root mean square difference of a step."
    ),
    click.option(
        "--max-growth",
        type=click.FloatRange(1),
        default=2.0,
        show_default=True,
        help="How many times the root mean square difference may grow over all steps, of which at least 8 are needed.",
    ),
)
def logprob(*, run: RecordedRun, **options: Any) -> Comparison:
    """Compare log-probs of trainer and rollout engine token by token, and test why they differ.

    RUN is the directory of a recorded run that has the stage trainer.
    """
    from msprobe_core.rl.log_prob_steps import LogProbOptions
    from msprobe_core.rl.log_probs_outcome import compare_log_probs

    return lambda progress: compare_log_probs(run, LogProbOptions(**options), progress)


@comparison_command(RUN, STEPS)
def weights(*, run: RecordedRun, steps: tuple[int, ...]) -> Comparison:
    """Compare the weights that were sent with those that were received, and each step with the one before.

    RUN is the directory of a recorded run that has the stages update_weights_send and update_weights_recv.
    """
    from msprobe_core.rl.weights_outcome import compare_weights

    return lambda _: compare_weights(run, steps)


@comparison_command(
    RUN,
    STEPS,
    click.option("--stage", "training", default="actor_compute_log_prob", show_default=True, help="Stage of training."),
    _EXPERTS,
    _BASELINE,
)
def layers(*, run: RecordedRun, **options: Any) -> Comparison:
    """Find the first module at which training and rollout engine diverge, for the same samples.

    Prompts and decoded tokens are compared separately. RUN is the directory of a recorded run that has the stages
    rollout_generate and actor_compute_log_prob, with tensors.
    """
    from msprobe_core.rl.modules_outcome import ModulesOptions, compare_layers

    return lambda progress: compare_layers(run, ModulesOptions(**options), progress)


@comparison_command(RUN, STEPS, _EXPERTS, name="actor-vs-ref")
def actor_vs_ref(*, run: RecordedRun, **options: Any) -> Comparison:
    """Compare actor and reference policy in the first step, where the same weights must give equal results.

    RUN is the directory of a recorded run that has the stages actor_compute_log_prob and ref_compute_log_prob.
    """
    from msprobe_core.rl.modules_outcome import ModulesOptions, compare_actor_ref

    return lambda progress: compare_actor_ref(run, ModulesOptions(**options), progress)


@comparison_command(RUN, STEPS, _EXPERTS)
def onpolicy(*, run: RecordedRun, **options: Any) -> Comparison:
    """Compare the pass that computed the log-probs with the first mini-batch of the update, which has the same weights.

    RUN is the directory of a recorded run that has the stages actor_compute_log_prob and actor_update.
    """
    from msprobe_core.rl.modules_outcome import ModulesOptions, compare_on_policy

    return lambda progress: compare_on_policy(run, ModulesOptions(**options), progress)


@comparison_command(
    RUN,
    STEPS,
    click.option("--stage", "target", metavar="STAGE", help="Stage under test; all of the trainer by default."),
    click.option("--against", "golden", metavar="STAGE", help="Stage whose experts it should have."),
    click.option(
        "--replay", type=click.Choice(["R2", "R3", "disabled"]), help="What is replayed; as configured by default."
    ),
)
def routing(*, run: RecordedRun, **options: Any) -> Comparison:
    """Compare the experts that rollout and trainer choose for each token, and test whether routing replay is in effect.

    RUN is the directory of a recorded run that has routings of two stages, or routed_experts in its batches.
    """
    from msprobe_core.rl.routing_outcome import RoutingOptions, compare_routing

    return lambda progress: compare_routing(run, RoutingOptions(**options), progress)


@comparison_command(
    click.argument("target", type=click.Path(path_type=Path)),
    click.argument("golden", type=click.Path(path_type=Path)),
    STEPS,
    click.option(
        "--exact", "is_exact", is_flag=True, help="All must be equal to the bit, as where rollouts were replayed."
    ),
)
def runs(*, target: RecordedRun, golden: RecordedRun, **options: Any) -> Comparison:
    """Compare two runs, stage by stage from cause to effect, and name the first stage that differs.

    TARGET is the directory of the run under test, GOLDEN that of the trusted one.
    """
    from msprobe_core.rl.runs_outcome import RunsOptions, compare_runs

    return lambda progress: compare_runs(target, golden, RunsOptions(**options), progress)


def _cell(name: str, what: str) -> _Parameter[_Command]:
    return click.option(f"--{name}", required=True, type=click.Path(path_type=Path), help=what)


@comparison_command(
    _cell("aa", "Rollouts of A in the training of A."),
    _cell("ab", "Rollouts of A, replayed in that of B."),
    _cell("ba", "Rollouts of B, replayed in that of A."),
    _cell("bb", "Rollouts of B in the training of B."),
    STEPS,
    _DTYPE,
)
def cross(*, steps: tuple[int, ...], dtype: str | None, **cells: RecordedRun) -> Comparison:
    """Decide whether rollout or training of B is at fault, given a trusted A: the fault moves with its component.

    The four directories are runs that combine each engine's rollouts with each trainer.
    """
    from msprobe_core.rl.cross_outcome import compare_crossed
    from msprobe_core.rl.log_prob_steps import LogProbOptions

    return lambda _: compare_crossed(cells, steps, LogProbOptions(dtype=dtype))
