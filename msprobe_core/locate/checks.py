"""Preconditions of comparing two runs: equal weights, data and random numbers, and equal discrete decisions.

They are counted within each rank, and summed over all ranks. Facts that a dump does not contain are reported as unknown
rather than assumed to be equal. That the runs were configured alike, which comes first, is checked in `configuration`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import polars as pl

from msprobe_core import names
from msprobe_core.compare.result import Mode
from msprobe_core.findings import Finding
from msprobe_core.judge.columns import Match
from msprobe_core.judge.discrete_ops import RANDOM, api_of, is_decision
from msprobe_core.judge.initial_parameters import initial_values
from msprobe_core.locate.locate_codes import LocateCode
from msprobe_core.locate.result import Check, CheckState, Decision, Precondition
from msprobe_core.model import Phase, Role
from msprobe_core.store.frame import RowKind

MAX_DECISIONS = 20
"""Maximum number of decisions listed in a result; all are counted."""


@dataclass(frozen=True)
class Tally:
    """Number of values of one sort, and how many of them differ between the sides.

    Attributes:
        total: Number of values.
        different: How many of them are not bitwise equal, as far as was recorded.
        wrong: How many of those exceed what rounding explains.
        first: Name of the first wrong value, else of the first different one; ``None`` if all are equal.
    """

    total: int = 0
    different: int = 0
    wrong: int = 0
    first: str | None = None

    def __add__(self, other: Tally) -> Tally:
        """Return the sum; ``first`` is this one's unless only the other has a wrong value."""
        takes_other = self.first is None or (not self.wrong and other.wrong)
        return Tally(
            self.total + other.total,
            self.different + other.different,
            self.wrong + other.wrong,
            other.first if takes_other else self.first,
        )


@dataclass(frozen=True)
class Facts:
    """Facts for the preconditions, of one rank and step or of several.

    Attributes:
        weights: Parameters at the beginning of the step.
        data: Inputs of the outermost modules, and integer inputs of the first call.
        random: Outputs of calls that draw random numbers and whose inputs are right.
        decisions: Integer outputs of calls that decide, such as ``topk``.
        lone_calls: Forward calls that one side has alone; ``total`` counts all calls.
    """

    weights: Tally = Tally()
    data: Tally = Tally()
    random: Tally = Tally()
    decisions: Tally = Tally()
    lone_calls: Tally = Tally()

    def __add__(self, other: Facts) -> Facts:
        """Return the sum of both."""
        return Facts(
            self.weights + other.weights,
            self.data + other.data,
            self.random + other.random,
            self.decisions + other.decisions,
            self.lone_calls + other.lone_calls,
        )


def facts_of(rows: pl.DataFrame, nodes: pl.DataFrame) -> Facts:
    """Return the facts of one rank and step.

    Args:
        rows: Rows with scores, see `msprobe_core.judge.nodes.with_scores`.
        nodes: The nodes of the rows.
    """
    forward = rows.filter((pl.col("phase") == Phase.FORWARD.value) & (pl.col("match") == Match.BOTH.value))
    weights = forward.filter(pl.col("role") == Role.PARAMETERS.value)
    calls = forward["entry"].unique().to_list()
    apis = {entry: api_of(entry) for entry in calls}
    draws = [entry for entry, api in apis.items() if RANDOM.search(api)]
    is_output = pl.col("role") == Role.OUTPUT.value
    right = nodes.filter((pl.col("input_excess") <= 1) & (pl.col("saved_excess") <= 1))["entry"].to_list()
    is_integer = pl.col("kind_of_target").is_in(["int", "bool"])
    own = nodes.filter(pl.col("phase") == Phase.FORWARD.value)
    lone = own.filter(pl.col("only_on").is_not_null())
    return Facts(
        weights=_tally(initial_values(weights)),
        data=_tally(_data(forward.filter(pl.col("entry").is_in(nodes["entry"].to_list())))),
        random=_tally(forward.filter(is_output & pl.col("entry").is_in(list({*draws} & {*right})))),
        decisions=_tally(forward.filter(is_output & is_integer & is_decision())),
        lone_calls=Tally(own.height, lone.height, 0, lone["entry"][0] if lone.height else None),
    )


def _data(forward: pl.DataFrame) -> pl.DataFrame:
    """Return the input tensors of the outermost modules; without modules, the integer inputs of the first call."""
    tensors = forward.filter(
        (pl.col("role") == Role.INPUT.value) & (pl.col("kind_target") == RowKind.TENSOR.value) & ~pl.col("is_parameter")
    )
    modules = tensors.filter(pl.col("entry").str.contains(names.OUTERMOST_FORWARD))
    if modules.height:
        return modules
    integers = tensors.filter(pl.col("kind_of_target") == "int")
    return integers.filter(pl.col("entry") == integers["entry"][0]) if integers.height else integers


def _tally(rows: pl.DataFrame) -> Tally:
    different = rows.filter(~pl.col("is_equal"))
    wrong = rows.filter(pl.col("excess") > 1)
    shown = wrong if wrong.height else different
    return Tally(rows.height, different.height, wrong.height, shown["name_target"][0] if shown.height else None)


def decisions_of(rows: pl.DataFrame, step: int | None, rank: int | None) -> list[Decision]:
    """Return the discrete decisions that differ, at most `MAX_DECISIONS`.

    Args:
        rows: Rows with scores.
        step: Step of the rows.
        rank: Rank of the rows.
    """
    is_made = (pl.col("role") == Role.OUTPUT.value) & (pl.col("phase") == Phase.FORWARD.value)
    is_integer = pl.col("kind_of_target").is_in(["int", "bool"])
    changed = rows.filter(is_made & is_integer & ~pl.col("is_equal") & (pl.col("match") == Match.BOTH.value))
    changed = changed.filter(is_decision())
    rate = pl.col("num_different") / pl.col("numel_golden") if "num_different" in rows.columns else pl.lit(None)
    shown = changed.head(MAX_DECISIONS).select("name_target", rate.cast(pl.Float64).alias("rate"))
    return [Decision(step, rank, name, share) for name, share in shown.rows()]


def checks_of(configuration: Check, first: Facts, all_steps: Facts, modes: Sequence[Mode]) -> list[Check]:
    """Return the preconditions in the order of their importance.

    Args:
        configuration: The precondition that the runs were configured alike.
        first: Facts of the first examined step.
        all_steps: Facts of all examined steps.
        modes: The comparison modes.
    """
    return [
        configuration,
        _check(Precondition.WEIGHTS, first.weights, LocateCode.CHECK_WEIGHTS, LocateCode.NO_WEIGHTS),
        _check(Precondition.DATA, all_steps.data, LocateCode.CHECK_DATA, LocateCode.NO_DATA),
        _check(Precondition.RANDOMNESS, all_steps.random, LocateCode.CHECK_RANDOM, LocateCode.NO_RANDOM),
        _check_decisions(all_steps.decisions, modes),
    ]


def _check(name: Precondition, tally: Tally, code: LocateCode, nothing: LocateCode) -> Check:
    if not tally.total:
        return Check(name, CheckState.UNKNOWN, Finding(nothing))
    if tally.wrong:
        return Check(name, CheckState.DIFFERS, _counted(code, LocateCode.TALLY_WRONG, tally))
    found = LocateCode.TALLY_ROUNDED if tally.different else LocateCode.TALLY_EQUAL
    return Check(name, CheckState.HOLDS, _counted(code, found, tally))


def _counted(code: LocateCode, found: LocateCode, tally: Tally) -> Finding:
    return Finding(code, fields={"found": Finding(found, fields=asdict(tally))})


def _check_decisions(tally: Tally, modes: Sequence[Mode]) -> Check:
    name = Precondition.DECISIONS
    if not tally.total:
        return Check(name, CheckState.UNKNOWN, Finding(LocateCode.NO_DECISIONS))
    if not tally.different:
        return Check(name, CheckState.HOLDS, _counted(LocateCode.CHECK_DECISIONS, LocateCode.TALLY_EQUAL, tally))
    found = LocateCode.DECIDED_OTHERWISE if Mode.TENSOR in modes else LocateCode.AT_UNKNOWN_RATE
    return Check(name, CheckState.DIFFERS, _counted(LocateCode.CHECK_DECISIONS, found, tally))
