"""What the comparisons of one run, and of two, find in which stage of which step."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import polars as pl

from msprobe_core.errors import CompareError, DumpError, NothingInCommonError
from msprobe_core.findings import Finding as Said
from msprobe_core.judge.verdict import Verdict
from msprobe_core.rl.drift import MAX_GROWTH
from msprobe_core.rl.files import RLStage
from msprobe_core.rl.invariants import CHECKS, RecordedStep
from msprobe_core.rl.log_prob_steps import LogProbOptions
from msprobe_core.rl.log_probs_outcome import compare_log_probs
from msprobe_core.rl.modules_outcome import ModulesOptions, compare_actor_ref, compare_layers, compare_on_policy
from msprobe_core.rl.outcome import Outcome
from msprobe_core.rl.recorded import Progress, RecordedRun
from msprobe_core.rl.rl_codes import TransferCode
from msprobe_core.rl.routing_outcome import RoutingOptions, compare_routing
from msprobe_core.rl.runs import Agreement, check_step, said_of, stage_of_metric, stage_of_tensor
from msprobe_core.rl.weight_chain import compare_chain
from msprobe_core.untrusted.paths import shown
from msprobe_core.view.view_codes import ViewCode

_STAGE_OF_CHECK: Mapping[str, RLStage] = {
    "masks and positions": RLStage.ROLLOUT, "rewards": RLStage.REWARD, "KL in rewards": RLStage.TRAINER,
    "advantages": RLStage.TRAINER, "reference": RLStage.REF_LOG_PROB, "KL loss": RLStage.ACTOR_UPDATE,
    "sign of the KL loss": RLStage.ACTOR_UPDATE, "losses of micro-batches": RLStage.ACTOR_UPDATE,
    "same policy": RLStage.ACTOR_UPDATE, "export": RLStage.WEIGHTS_SENT,
}  # fmt: skip
"""The stage that an invariant is about; those of `_BY_PLACE` are about the stage of what they name."""

_BY_PLACE: Mapping[str, Callable[[str], RLStage]] = {"finite values": stage_of_tensor, "clipping": stage_of_metric}

_FAULTS = frozenset({Agreement.DIFFERENT, Agreement.ONE_SIDED})


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """One finding, and where it belongs.

    Attributes:
        row: The stage, or the hop of weights.
        step: Of the trainer; ``None`` if it is about all of them.
        verdict: How bad it is.
        place: What it is about.
        said: What it is.
        excess: The error divided by its limit; ``None`` if it is no matter of size.
        command: What shows more of it.
    """

    row: str
    step: int | None
    verdict: Verdict
    place: str
    said: Said
    excess: float | None = None
    command: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether the run is out of its limits by it."""
        return self.verdict in {Verdict.ERROR, Verdict.UNMATCHED}


@dataclass(kw_only=True)
class Examined:
    """Everything that was found.

    Attributes:
        sightings: In the order of the comparisons.
        log_probs: Result of their comparison; ``None`` if there are none.
        routing: The same of choices of experts.
        hops: Names of the hops of weights, in their order, with the number of wrong tensors by step.
        levels: By row and step, the error divided by its limit where nothing is beyond it.
        examined: What was examined.
        left_out: What was not, and why.
    """

    sightings: list[Sighting] = field(default_factory=list[Sighting])
    log_probs: Outcome | None = None
    routing: Outcome | None = None
    hops: dict[str, dict[int, int]] = field(default_factory=dict[str, dict[int, int]])
    levels: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])
    examined: list[str] = field(default_factory=list[str])
    left_out: list[Said] = field(default_factory=list[Said])


def examine(
    run: RecordedRun, golden: RecordedRun | None, steps: Sequence[int], progress: Progress, *, reads_tensors: bool
) -> Examined:
    """Run every comparison that the run has the stages for.

    Args:
        run: The run.
        golden: The trusted one; ``None`` if there is none.
        steps: Steps to examine.
        progress: Called before each comparison.
        reads_tensors: Whether modules are compared too, which reads all recorded tensors.
    """
    found = Examined()
    works: dict[str, Callable[[], None]] = {
        "check": lambda: _of_checks(run, steps, found),
        "compare logprob": lambda: _of_log_probs(run, steps, found),
        "weights compare": lambda: _of_weights(run, steps, found),
    }
    if RLStage.ROUTING.value in run.stages:
        works["compare routing"] = lambda: _of_routing(run, steps, found)
    if reads_tensors:
        works |= {
            "compare layers": lambda: _of_modules(run, steps, found, "layers", compare_layers, RLStage.ACTOR_LOG_PROB),
            "compare actor-vs-ref": lambda: _of_modules(
                run, steps, found, "actor-vs-ref", compare_actor_ref, RLStage.REF_LOG_PROB
            ),
            "compare onpolicy": lambda: _of_modules(
                run, steps, found, "onpolicy", compare_on_policy, RLStage.ACTOR_UPDATE
            ),
        }
    if golden is not None:
        works["compare runs"] = lambda: _of_runs(run, golden, steps, found)
    for number, (name, work) in enumerate(works.items()):
        progress(number, len(works), name)
        try:
            work()
            found.examined.append(name)
        except (CompareError, DumpError) as error:
            command = f"msprobe {name}" if name.startswith("weights") else f"msprobe rl {name}"
            found.left_out.append(Said(ViewCode.RL_LEFT_OUT, fields={"command": command, "why": shown(str(error))}))
    return found


def command_of(name: str, *runs: RecordedRun, step: int | None = None) -> str:
    """Return a command line that compares a step again."""
    steps = () if step is None else ("--steps", str(step))
    return shlex.join(["msprobe", *name.split(), *(shown(str(run.path)) for run in runs), *steps])


def _chosen(available: Iterable[int], steps: Sequence[int]) -> list[int]:
    return [step for step in available if step in steps]


def _of_checks(run: RecordedRun, steps: Sequence[int], found: Examined) -> None:
    for step in _chosen(run.need(RLStage.TRAINER.value, "the batches, which are to be checked"), steps):
        own = RecordedStep(run, step, *run.batch(step))
        for name, check in CHECKS.items():
            for each in check(own):
                by_place = _BY_PLACE.get(name)
                stage = _STAGE_OF_CHECK[name] if by_place is None else by_place(each.place)
                found.sightings.append(
                    Sighting(
                        row=stage.value, step=step, verdict=each.verdict, place=each.place, said=each.said,
                        command=command_of("rl check", run, step=step),
                    )
                )  # fmt: skip


def _of_log_probs(run: RecordedRun, steps: Sequence[int], found: Examined) -> None:
    chosen = _chosen(run.need(RLStage.TRAINER.value, "the batches, which have the log-probs"), steps)
    outcome = compare_log_probs(run, LogProbOptions(steps=chosen, max_growth=MAX_GROWTH))
    found.log_probs = outcome
    row = RLStage.ACTOR_LOG_PROB.value
    numbers: Mapping[str, Any] = outcome.numbers["steps"]
    excess = {
        (int(step), name): score["score"] / score["limit"]
        for step, own in numbers.items()
        for name, score in own["scores"].items()
    }
    for step, own in numbers.items():
        found.levels[row, int(step)] = max(excess[int(step), name] for name in own["scores"])
    found.sightings += [
        Sighting(
            row=row, step=each.step, verdict=each.verdict, place=each.place, said=each.said,
            excess=None if each.step is None else excess.get((each.step, each.place)),
            command=command_of("rl compare logprob", run, step=None if each.place == "drift" else each.step),
        )
        for each in outcome.findings
    ]  # fmt: skip


def _of_routing(run: RecordedRun, steps: Sequence[int], found: Examined) -> None:
    row = RLStage.ROUTING.value
    outcome = compare_routing(run, RoutingOptions(steps=_chosen(run.steps(row), steps)))
    found.routing = outcome
    found.sightings += [
        Sighting(
            row=row, step=each.step, verdict=each.verdict, place=each.place, said=each.said,
            command=command_of("rl compare routing", run, step=each.step),
        )
        for each in outcome.findings
    ]  # fmt: skip


def _of_weights(run: RecordedRun, steps: Sequence[int], found: Examined) -> None:
    outcome = compare_chain(run.path)
    for pair in outcome.numbers["pairs"]:
        if pair["sync"] in steps:
            found.hops.setdefault(_hop(pair), {})[pair["sync"]] = pair["wrong"]
    rows = zip(outcome.tables.get("hops", pl.DataFrame()).iter_rows(named=True), outcome.findings, strict=True)
    found.sightings += [
        Sighting(
            row=_hop(row), step=row["sync"], verdict=Verdict.ERROR, place=row["name"],
            said=Said(TransferCode.TENSOR, fields=each.said.fields),
            command=command_of("weights compare", run),
        )
        for row, each in rows
        if row["sync"] in steps
    ]  # fmt: skip


def _hop(row: Mapping[str, Any]) -> str:
    return f"{row['before']} \N{RIGHTWARDS ARROW} {row['hop']}"


_Compare: TypeAlias = Callable[[RecordedRun, ModulesOptions], Outcome]


def _of_modules(
    run: RecordedRun, steps: Sequence[int], found: Examined, name: str, compare: _Compare, stage: RLStage
) -> None:
    outcome = compare(run, ModulesOptions())  # each comparison knows which steps it can compare
    found.sightings += [
        Sighting(
            row=stage.value, step=each.step, verdict=each.verdict, place=each.place,
            said=Said(ViewCode.RL_COMPARISON, fields={"name": name, "said": each.said}),
            command=command_of(f"rl compare {name}", run, step=each.step),
        )
        for each in outcome.findings
        if each.step is None or each.step in steps
    ]  # fmt: skip


def _of_runs(run: RecordedRun, golden: RecordedRun, steps: Sequence[int], found: Examined) -> None:
    common = _chosen(sorted({step for stage in golden.stages for step in golden.steps(stage)}), steps)
    if not common:
        raise NothingInCommonError(f"{run.path} and {golden.path} have no step in common")
    for step in common:
        for one in check_step(run, golden, step):
            excess = None if one.error is None or not one.limit else one.error / one.limit
            if one.agreement in _FAULTS:
                found.sightings.append(
                    Sighting(
                        row=one.stage, step=step, verdict=Verdict.ERROR, place=one.name, excess=excess,
                        said=said_of(one),
                        command=command_of("rl compare runs", run, golden, step=step),
                    )
                )  # fmt: skip
            elif excess is not None and math.isfinite(excess):
                at = one.stage, step
                found.levels[at] = max(excess, found.levels.get(at, 0.0))


def faults_in_order(sightings: Iterable[Sighting], rows: Sequence[str]) -> Iterator[Sighting]:
    """Yield findings, those that put the run out of its limits first, and of these causes before effects."""
    places = {row: i for i, row in enumerate(rows)}
    yield from sorted(
        sightings,
        key=lambda one: (not one.is_fault, math.inf if one.step is None else one.step, places.get(one.row, len(rows))),
    )
