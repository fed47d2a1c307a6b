"""``msprobe rl compare cross``: which component of B is at fault.

Two systems are compared, a trusted one, A, and one under test, B. Each consists of an engine that generates rollouts
and a trainer with its checkpoint. Four runs combine each engine's rollouts with each trainer; two of them replay the
rollouts of another run. A fault moves with the component that has it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import polars as pl

from msprobe_core.errors import CompareError, NothingInCommonError
from msprobe_core.findings import Finding as Said
from msprobe_core.judge.verdict import Verdict
from msprobe_core.rl.detail_codes import ComparedCode, LineCode
from msprobe_core.rl.files import RLStage
from msprobe_core.rl.headline_codes import HeadlineCode
from msprobe_core.rl.log_prob_steps import LogProbOptions, StepLogProbs, compare_step
from msprobe_core.rl.outcome import VERDICT, Finding, Outcome
from msprobe_core.rl.recorded import RecordedRun, chosen_steps
from msprobe_core.rl.rl_codes import CrossCode

CELLS = ("aa", "ab", "ba", "bb")
"""Combinations: first the system of the rollouts, then that of the training."""

_LEAST_NATS = 1e-12
"""Smallest size of a difference, in nats, since zero has no logarithm."""


class Component(str, Enum):
    """The component of B that is at fault."""

    NONE = "nothing"
    ROLLOUT = "the rollout of B"
    TRAINING = "the training of B"
    BOTH = "rollout and training of B"
    WEIGHTS = "the weights that the two began with"
    TRUSTED = "A, which was to be trusted"


@dataclass(frozen=True, kw_only=True)
class Crossed:
    """Four differences between training and rollout.

    Attributes:
        step: The trainers' step.
        cells: Comparison of the log-probs of training and rollout, by `CELLS`.
        component: The component at fault.
        of_rollout: Share of the variance of the logarithms of the four differences that the rollout explains.
        of_training: Share of that variance that the training explains.
    """

    step: int
    cells: Mapping[str, StepLogProbs]
    component: Component
    of_rollout: float
    of_training: float


def component_at_fault(is_different: Mapping[str, bool]) -> Component:
    """Return the component at fault from the cells that differ: a fault moves with the component that has it."""
    if is_different["aa"]:
        return Component.TRUSTED
    found = "".join("x" if is_different[cell] else "-" for cell in CELLS)
    return _PATTERNS.get(found, Component.BOTH)


_PATTERNS = {
    "----": Component.NONE,
    "--xx": Component.ROLLOUT,
    "-x-x": Component.TRAINING,
    # Each training fits its own rollouts only: neither is wrong, but their weights differ.
    "-xx-": Component.WEIGHTS,
}


def shares(sizes: Mapping[str, float]) -> tuple[float, float]:
    """Return the shares of the variance of the logarithms that rollout and training explain.

    The effects of a two by two factorial design: differences of the means of two cells each; the remainder is their
    interaction. Box, Hunter and Hunter, *Statistics for Experimenters*, 2nd ed., chapter 5.
    """
    aa, ab, ba, bb = (math.log(max(sizes[cell], _LEAST_NATS)) for cell in CELLS)
    effects = (ba + bb - aa - ab) / 2, (ab + bb - aa - ba) / 2, (aa + bb - ab - ba) / 2
    whole = sum(effect * effect for effect in effects)
    return (effects[0] ** 2 / whole, effects[1] ** 2 / whole) if whole else (0.0, 0.0)


def compare_crossed(
    runs: Mapping[str, RecordedRun], steps: Collection[int] = (), options: LogProbOptions | None = None
) -> Outcome:
    """Compare four runs that combine each engine's rollouts with each trainer.

    Args:
        runs: By `CELLS`.
        steps: Steps to compare; if empty, the first that all have, since later ones differ by their training.
        options: How log-probs are compared.

    Raises:
        CompareError: they have no step in common, or rollouts were not replayed.
        DumpError: a file cannot be read.
    """
    options = options or LogProbOptions()
    steps_of_all = [set(run.need(RLStage.TRAINER.value, "the batches")) for run in runs.values()]
    common = steps_of_all[0].intersection(*steps_of_all[1:])
    if not common:
        raise NothingInCommonError("the four runs have no step in common")
    chosen = chosen_steps(common, steps, "the four runs") if steps else [min(common)]
    found = [_crossed(runs, step, options) for step in chosen]
    first = next((one for one in found if one.component is not Component.NONE), None)
    return Outcome(
        command="cross",
        paths=[runs[cell].path for cell in CELLS],
        compared=Said.of(ComparedCode.CROSS, training=options.training, rollout=options.rollout, steps=chosen),
        said=(
            Said(HeadlineCode.CROSS_AGREE)
            if first is None
            else Said.of(HeadlineCode.CROSS, step=first.step, component=first.component)
        ),
        findings=[finding for one in found for finding in _findings(one)],
        lines=[line for one in found for line in _lines(one)],
        numbers={"steps": {str(one.step): _numbers(one) for one in found}},
        tables={"cells": _table(found)},
    )


def _crossed(runs: Mapping[str, RecordedRun], step: int, options: LogProbOptions) -> Crossed:
    ids = {cell: sorted(row.id for row in run.batch(step)[0].samples) for cell, run in runs.items()}
    for own, replayed in (("aa", "ab"), ("bb", "ba")):
        if ids[own] != ids[replayed]:
            common = len(set(ids[own]) & set(ids[replayed]))
            raise CompareError(
                f"{runs[replayed].path}: step {step} has {common} of the {len(ids[own])} samples of "
                f"{runs[own].path}, whose rollouts it should replay; give verl skip.rollout.enable=True with the dumps "
                "of that run"
            )
    cells = {cell: compare_step(run, step, options) for cell, run in runs.items()}
    sizes = {cell: one.measures.rms for cell, one in cells.items()}
    of_rollout, of_training = shares(sizes)
    component = component_at_fault({cell: one.is_different for cell, one in cells.items()})
    return Crossed(step=step, cells=cells, component=component, of_rollout=of_rollout, of_training=of_training)


_REASONS = {
    Component.ROLLOUT: CrossCode.ROLLOUT,
    Component.TRAINING: CrossCode.TRAINING,
    Component.BOTH: CrossCode.BOTH,
    Component.WEIGHTS: CrossCode.WEIGHTS,
    Component.TRUSTED: CrossCode.TRUSTED,
}


def _findings(one: Crossed) -> list[Finding]:
    if one.component is Component.NONE:
        return []
    shares = {"rollout": f"{one.of_rollout:.0%}", "training": f"{one.of_training:.0%}"}
    said = Said.of(CrossCode.FAULT, reason=Said(_REASONS[one.component]), **shares)
    return [Finding(verdict=Verdict.ERROR, said=said, step=one.step, place=one.component.name.lower())]


def _lines(one: Crossed) -> list[Said]:
    rows = [
        Said(
            LineCode.CROSS_ROW,
            fields={"system": rollout.upper(), **{f"on_{own}": _cell(one.cells[f"{rollout}{own}"]) for own in "ab"}},
        )
        for rollout in "ab"
    ]
    return [Said.of(LineCode.CROSS, step=one.step), Said(LineCode.CROSS_HEAD), *rows]


def _cell(one: StepLogProbs) -> str:
    score = max(one.scores, key=lambda score: score.score / score.limit)
    return f"{one.measures.rms:.3g} ({score.score:.2g}x){'*' if one.is_different else ' '}".rjust(26)


def _numbers(one: Crossed) -> dict[str, Any]:
    return {
        "half": one.component.value,
        "of_rollout": one.of_rollout,
        "of_training": one.of_training,
        "cells": {cell: {"rms": own.measures.rms, "is_different": own.is_different} for cell, own in one.cells.items()},
    }


def _table(found: Sequence[Crossed]) -> pl.DataFrame:
    rows = [
        {
            "step": one.step,
            "rollout": cell[0].upper(),
            "training": cell[1].upper(),
            "tokens": own.measures.num_tokens,
            "rms": own.measures.rms,
            "mean_abs": own.measures.mean_abs,
            "max": own.measures.max,
            "floor": own.floor.size,
            "score": max(score.score for score in own.scores),
            VERDICT: (Verdict.ERROR if own.is_different else Verdict.PASS).value,
        }
        for one in found
        for cell, own in one.cells.items()
    ]
    numbers = dict.fromkeys(("rms", "mean_abs", "max", "floor", "score"), pl.Float64)
    schema = {
        "step": pl.Int64, "rollout": pl.String, "training": pl.String, "tokens": pl.Int64, **numbers,
        VERDICT: pl.String,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema)
