"""Description of the call where two runs diverge first, as shown by tables, the terminal and the advisor.

`msprobe_core.judge.origins` decides which call that is, for `compare` and `locate` alike. If only the form of calls
differs, so that no call is a culprit, the first call with a failing row is described instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import polars as pl

from msprobe_core import names
from msprobe_core.findings import Finding, Level
from msprobe_core.judge.columns import Match
from msprobe_core.judge.error_distribution import WorstTensor
from msprobe_core.judge.evidence import Evidence
from msprobe_core.judge.joining import of_entry
from msprobe_core.judge.nodes import INFINITE, entry_beside
from msprobe_core.judge.origins import MARGINAL_EXCESS, Node
from msprobe_core.judge.rank_order import communications_before
from msprobe_core.judge.row_codes import RowCode
from msprobe_core.judge.row_findings import FINDINGS, findings_of
from msprobe_core.judge.verdict import Verdict
from msprobe_core.model import Role
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import RowKind

_PARTS = ("inputs", "arguments", "parameters", "outputs")


@dataclass(frozen=True)
class Fault:
    """A call where two runs diverge.

    Attributes:
        entry: Name of the node.
        position: Its index among all nodes, in execution order.
        parent: Entry name of the enclosing module; ``None`` if unknown.
        is_culprit: Whether the node's own tensor inputs agree, so that the fault is in it. Otherwise its inputs were
            wrong already, and come from outside of the recorded calls.
        only_on: The side that has the node, ``target`` or ``golden``, if the other lacks it.
        parts: The disagreeing parts: ``inputs``, ``arguments``, ``parameters``, ``outputs``. An input that one side
            lacks is a different argument.
        input_error: Largest relative error among its inputs; ``None`` without comparable inputs.
        output_error: Largest relative error among its outputs.
        findings: Row name and finding of each row that shows the fault.
        stack: Stack of the call, innermost frame first; empty if unknown.
        num_communications: Number of communication calls that this rank has finished before it.
        place: For a call that only the golden dump has, the target's entry that would precede it, or else the one that
            would follow; ``None`` otherwise.
        worst_tensor: Distribution of the error in its worst tensor; ``None`` unless whole tensors were compared.
        excess: Error of a culprit relative to the allowed error; infinite otherwise.
    """

    entry: str
    position: int
    parent: str | None
    is_culprit: bool
    only_on: str | None
    parts: Sequence[str]
    input_error: float | None
    output_error: float | None
    findings: Sequence[tuple[str, Finding]]
    stack: Sequence[str]
    num_communications: int = 0
    place: str | None = None
    worst_tensor: WorstTensor | None = None
    excess: float = INFINITE


_FAILED = (Verdict.ERROR.value, Verdict.UNMATCHED.value)


class Culprit(str, Enum):
    """Which of the two calls of `Faults` is the culprit."""

    SHARED = "fault"
    LONE = "lone call"


@dataclass(frozen=True)
class Faults:
    """Where two dumps diverge.

    Attributes:
        fault: The first call of both sides that disagrees; ``None`` if none of their rows fails.
        lone_call: The call that only one side has and that explains the first culprit, or else the first such call;
            ``None`` if both sides have all calls.
        culprit: Which of the two is the first divergence; ``None`` if only the form of calls differs.
        given_wrong: Communication calls with wrong inputs that the culprit does not explain.
    """

    fault: Fault | None = None
    lone_call: Fault | None = None
    culprit: Culprit | None = None
    given_wrong: Sequence[str] = field(default_factory=list[str])


def find_faults(
    evidence: Evidence,
    nodes: pl.DataFrame,
    target: Dump,
    golden: Dump,
    stacks: Mapping[str, Sequence[str]],
) -> Faults:
    """Return where two dumps diverge.

    Args:
        evidence: Evidence of the rows.
        nodes: Nodes with verdicts, see `msprobe_core.judge.nodes.judge_nodes`.
        target: The target dump.
        golden: The golden dump.
        stacks: Frames of the target by entry.
    """
    describe = _Describer(evidence, nodes, target, golden, stacks)
    is_failing = ~pl.col("is_alone") & pl.col("verdict").is_in(_FAILED)
    failing, alone = nodes.filter(is_failing)["entry"], nodes.filter("is_alone")["entry"]
    lone = describe(alone[0], is_culprit=True) if len(alone) else None
    if evidence.first is None:
        return Faults(describe(failing[0], is_culprit=None) if len(failing) else None, lone, None)
    source, given_wrong = evidence.first, _unexplained(evidence)
    seen_at = None if source.seen_at is None else source.seen_at["entry"]
    if source.node["only_on"] is None:
        fault = describe(source.node["entry"], seen_at, is_culprit=source.made)
        return Faults(replace(fault, excess=source.size("excess")), lone, Culprit.SHARED, given_wrong)
    lone = replace(describe(source.node["entry"], is_culprit=True), excess=source.size("excess"))
    seen = None if seen_at is None else describe(seen_at, is_culprit=None)
    return Faults(seen, lone, Culprit.LONE, given_wrong)


def _unexplained(evidence: Evidence) -> Sequence[str]:
    """Return the calls of communication that were given what is wrong before the culprit.

    A call after it cannot be mistaken for the culprit on another rank, which comes later than this one, unless this one
    is barely beyond its limit.
    """
    first = evidence.first
    if first is None or first.size("excess") < MARGINAL_EXCESS:
        return evidence.given_wrong
    before = set(evidence.nodes.filter(pl.col("position") < first.node["position"])["entry"])
    return [entry for entry in evidence.given_wrong if entry in before]


_READ = (
    *("role", "verdict", "judged_error", "limit", "excess", "is_parameter", FINDINGS),
    *(f"{name}_{side}" for name in ("kind", "name") for side in ("target", "golden")),
)
"""Columns of rows from which a fault is described."""


class _Describer:
    def __init__(
        self,
        evidence: Evidence,
        nodes: pl.DataFrame,
        target: Dump,
        golden: Dump,
        stacks: Mapping[str, Sequence[str]],
    ) -> None:
        self._evidence = evidence
        self._nodes = nodes
        self._sides = {"target": (target, stacks), "golden": (golden, golden.stacks)}

    def __call__(self, entry: str, seen_at: str | None = None, *, is_culprit: bool | None) -> Fault:
        """Describe a call.

        Args:
            entry: Its entry.
            seen_at: The later entry where its error exceeds rounding, if any.
            is_culprit: Whether the call itself made the error; ``None`` decides by its failing rows.
        """
        node: Node = self._nodes.row(by_predicate=pl.col("entry") == entry, named=True)
        only_on = str(node["match"]).removeprefix("only ") if node["is_alone"] else None
        source, stacks = self._sides[only_on or "target"]
        rows = self._evidence.scored
        own = of_entry(rows, entry, _READ)
        is_input, is_output = pl.col("role") == Role.INPUT.value, _is_output()
        name: str = node["entry_golden"] if only_on == "golden" else entry
        parts = _parts(own, is_culprit=bool(is_culprit) and only_on is None)
        output_error = _largest(own.filter(is_output))
        if is_culprit is None:
            telling = [part for part in parts if part != "arguments" or output_error != 0]
            is_culprit = bool(telling) and "inputs" not in parts
        return Fault(
            entry=name,
            position=node["position"],
            parent=source.parents.get(name),
            is_culprit=is_culprit,
            only_on=only_on,
            parts=parts,
            input_error=_largest(own.filter(is_input & ~pl.col("is_parameter"))),
            output_error=output_error,
            findings=_findings(own, of_entry(rows, seen_at or entry, _READ)),
            stack=list(_stack_of(name, stacks)),
            num_communications=communications_before(self._nodes, node["position"]),
            place=entry_beside(self._nodes.filter(pl.col("match") != Match.GOLDEN.value), node["position"])
            if only_on == "golden"
            else None,
        )


def _is_output() -> pl.Expr:
    return pl.col("role").is_in([Role.OUTPUT.value, Role.PARAMETERS_GRAD.value])


def _largest(own: pl.DataFrame) -> float | None:
    return own.select(pl.col("judged_error").max()).item()


def _parts(own: pl.DataFrame, *, is_culprit: bool) -> list[str]:
    """Return the disagreeing parts of a call; for a culprit within its limits, all parts that differ at all."""
    is_error, is_unmatched = (pl.col("verdict") == verdict for verdict in _FAILED)
    sides = [pl.col(f"kind_{side}") != RowKind.TENSOR.value for side in ("target", "golden")]
    is_no_tensor = pl.all_horizontal(sides).fill_null(False)
    is_input, is_parameter, is_output = pl.col("role") == Role.INPUT.value, pl.col("is_parameter"), _is_output()
    differs = (pl.col("judged_error") > 0).fill_null(False) & is_culprit
    fails = {
        "inputs": is_error & is_input & ~is_no_tensor & ~is_parameter,
        "arguments": is_input & ((is_error & is_no_tensor) | is_unmatched),
        "parameters": is_parameter & (is_error | is_unmatched | (differs & (pl.col("excess") > 1))),
        "outputs": is_output & (is_error | is_unmatched | differs),
    }
    found = own.select(**{part: condition.any() for part, condition in fails.items()}).row(0, named=True)
    return [part for part in _PARTS if found[part]]


def _findings(own: pl.DataFrame, seen: pl.DataFrame) -> list[tuple[str, Finding]]:
    name = pl.coalesce("name_target", "name_golden")
    for rows in (own, seen):
        failed = rows.filter(pl.col("verdict").is_in(_FAILED))
        findings = [
            (row, finding)
            for row, cell in failed.select(name, FINDINGS).rows()
            for finding in findings_of(cell)
            if finding.level is not Level.NOTE
        ]
        if findings:
            return findings
    within = own.filter((pl.col("judged_error") > 0) & pl.col("limit").is_not_null())
    return [
        (row, Finding(RowCode.WITHIN_LIMIT, Level.NOTE, {"error": error, "limit": limit}))
        for row, error, limit in within.select(name, "judged_error", "limit").rows()
    ]


def _stack_of(entry: str, stacks: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Return the stack of an entry; for a backward entry, that of its forward."""
    return stacks.get(entry) or stacks.get(names.forward_of(entry) or "", ())
