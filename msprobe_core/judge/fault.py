"""Judge nodes, and find where two runs part.

A node is one entry: a call in one direction. It is *suspect*, a place where a fault may be, if its tensor inputs agree
and its outputs, its parameters or its other arguments do not; different arguments that change nothing do not count.
Where its inputs are not merely within their limits but equal, a much smaller difference of its outputs tells the same:
rounding explains a few unit round-offs, not ``explained_roundoffs`` of them. Rows that are exempt from judgement count
for nothing.

A parameter that a call gets as an argument, such as the weight of a linear layer, is a parameter here too: where it
differs, it is what is wrong, and nothing before the call need be. It is told by its position, or by being equal to a
parameter of the module that makes the call, which is then named.

The first node in execution order where anything disagrees decides. If it is suspect, it is the fault. If what it got
was wrong already, though nothing before it was, then the wrong value was made by something that is not recorded: inside
an enclosing module, if one of those is suspect, and outside of everything recorded, if none is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from msprobe_core import names
from msprobe_core.judge.columns import Match
from msprobe_core.judge.evidence import WorstTensor
from msprobe_core.judge.limits import LimitTable, conventional, roundoff_of
from msprobe_core.judge.verdict import Verdict
from msprobe_core.model import Phase, Role
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import RowKind

_PARTS = ("inputs", "arguments", "parameters", "outputs")


@dataclass(frozen=True)
class Fault:
    """A place where two runs part.

    Attributes:
        entry: Name of the node.
        position: Its place among all nodes, in execution order.
        parent: Entry name of the module that encloses it; ``None`` if unknown.
        is_culprit: Whether the node's own tensor inputs agree: the fault is in it. Otherwise what it got was already
            wrong, and came from outside of what was recorded.
        only_on: The side that has the node, ``target`` or ``golden``, where the other lacks it.
        parts: What disagrees: ``inputs``, ``arguments``, ``parameters``, ``outputs``. An input that one side lacks is
            a different argument.
        input_error: Largest relative error among its inputs; ``None`` without comparable inputs.
        output_error: The same of its outputs.
        findings: Row name and message of each row that shows it.
        stack: Where the call came from, innermost frame first; empty if unknown.
        num_communications: How many calls of communication this rank has finished before it.
        place: Of a call that only the golden dump has, the target's entry that would be before it, or else the one
            after it; ``None`` for others.
        worst_tensor: How the error of its worst tensor is distributed; ``None`` unless whole tensors were compared.
    """

    entry: str
    position: int
    parent: str | None
    is_culprit: bool
    only_on: str | None
    parts: Sequence[str]
    input_error: float | None
    output_error: float | None
    findings: Sequence[tuple[str, str]]
    stack: Sequence[str]
    num_communications: int = 0
    place: str | None = None
    worst_tensor: WorstTensor | None = None


_FOREIGN_ROUNDOFFS = 8
"""How many times as much rounding explains between two frameworks, which sum in other orders: up to 1e-5 was measured
of results of equal inputs in float32."""


def judge_nodes(
    judged: pl.DataFrame, *, limits: LimitTable | None = None, target: Dump | None = None, is_foreign: bool = False
) -> pl.DataFrame:
    """Return one row per entry, in execution order: what fails where, and whether the node is suspect.

    Args:
        judged: Judged rows.
        limits: Those in force; the conventional ones if none are given.
        target: The dump under test, whose nesting tells which arguments are parameters; read only where one fails.
        is_foreign: Whether the two are of different frameworks.
    """
    table = conventional() if limits is None else limits
    explained = table.explained_roundoffs * (_FOREIGN_ROUNDOFFS if is_foreign else 1)
    given = given_parameters(judged, table, None if target is None else target.parents)
    is_error = pl.col("verdict") == Verdict.ERROR.value
    is_unmatched = pl.col("verdict") == Verdict.UNMATCHED.value
    error = pl.col("judged_error")
    sides = [pl.col(f"kind_{side}") != RowKind.TENSOR.value for side in ("target", "golden")]
    is_no_tensor = pl.all_horizontal(sides).fill_null(False)
    is_given = pl.int_range(pl.len()).is_in(given)
    is_input = pl.col("role") == Role.INPUT.value
    is_parameter = (pl.col("role") == Role.PARAMETERS.value) | pl.col("is_given")
    is_output = pl.col("role").is_in([Role.OUTPUT.value, Role.PARAMETERS_GRAD.value])
    # Two recorders may sum the statistics of one parameter in two ways.
    is_noise = (error <= explained * roundoff_of(pl.col("precision"))).fill_null(False) & is_foreign
    # The noise of healthy runs says of each row what rounding explains.
    is_scored = pl.col("score").is_not_null() if "score" in judged.columns else pl.lit(value=False)
    first_match = pl.col("match").first()
    nodes = (
        judged.with_columns(is_given=is_given)
        .group_by("entry", maintain_order=True)
        .agg(
            match=pl.when((pl.col("match") == first_match).all()).then(first_match).otherwise(pl.lit(Match.BOTH.value)),
            entry_golden=pl.col("entry_golden").first(),
            num_errors=is_error.sum(),
            inputs_fail=(is_error & is_input & ~is_no_tensor & ~is_parameter).any(),
            arguments_fail=(is_input & ((is_error & is_no_tensor) | is_unmatched)).any(),
            parameters_fail=(is_parameter & (is_error | is_unmatched)).any(),
            outputs_fail=(is_output & (is_error | is_unmatched)).any(),
            has_unmatched=is_unmatched.any(),
            has_warning=(pl.col("verdict") == Verdict.WARNING.value).any(),
            gets_parameters=(is_error & is_input & is_parameter).any(),
            input_error=error.filter(is_input & ~is_parameter).max(),
            parameter_error=error.filter(is_parameter & ~is_noise).max(),
            output_error=error.filter(is_output).max(),
            output_roundings=(error / roundoff_of(pl.col("precision"))).filter(is_output & ~is_scored).max(),
        )
    )
    inputs_are_equal = (pl.col("input_error").fill_null(0.0) == 0.0) & ~pl.col("inputs_fail")
    is_beyond_rounding = pl.col("output_roundings").is_finite() & (pl.col("output_roundings") > explained)
    arguments_matter = pl.col("arguments_fail") & (pl.col("output_error") != 0).fill_null(True)
    suspect = ~pl.col("inputs_fail") & (pl.col("outputs_fail") | pl.col("parameters_fail") | arguments_matter)
    return nodes.with_columns(
        verdict=pl.when(pl.col("num_errors") > 0)
        .then(pl.lit(Verdict.ERROR.value))
        .when(pl.col("has_unmatched"))
        .then(pl.lit(Verdict.UNMATCHED.value))
        .when(pl.col("has_warning"))
        .then(pl.lit(Verdict.WARNING.value))
        .otherwise(pl.lit(Verdict.PASS.value)),
        is_suspect=suspect | (inputs_are_equal & is_beyond_rounding.fill_null(False)),
        is_alone=(pl.col("match") != Match.BOTH.value) & pl.col("has_unmatched"),
    ).with_row_index("position")


_STATE = ("weight", "bias", "running_mean", "running_var")
"""Names under which calls get parameters and other state of a module."""

_SIDES = ("target", "golden")
_IDENTITY = ("numel", "max", "min", "mean", "norm", "checksum")
"""By what a tensor is known again, whatever its shape: a transposed weight is the weight."""


def is_at_place_of_parameter(limits: LimitTable, name: str, entry: str) -> pl.Expr:
    """Whether a value is an argument at a place where its API takes parameters or other state of a module.

    Args:
        limits: Say which places these are.
        name: Column of the row's name.
        entry: Column of the entry's.
    """
    positions = [f"{api}.{i}" for api, places in limits.parameters.items() for i in places]
    place = pl.col(name).str.extract(names.INPUT_PLACE)
    api = pl.col(entry).str.extract(names.API_OF_FORWARD)
    return pl.concat_str(api, place, separator=".").is_in(positions) | place.is_in(_STATE)


def given_parameters(
    judged: pl.DataFrame, limits: LimitTable, parents: Mapping[str, str | None] | None, *, which: pl.Expr | None = None
) -> list[int]:
    """Return the row numbers of the arguments that are over their limits and are parameters.

    Args:
        judged: Judged rows.
        limits: Those in force, which say at which position an API has a parameter.
        parents: The enclosing call of each of the target's, which tells whose parameter an argument is; without, only
            its position does.
        which: The rows to look at, instead of those over their limits.
    """
    failing = judged.with_row_index("row").filter(
        (pl.col("verdict") == Verdict.ERROR.value if which is None else which)
        & (pl.col("role") == Role.INPUT.value)
        & (pl.col("phase") == Phase.FORWARD.value)
        & (pl.col("kind_target") == RowKind.TENSOR.value)
        & (pl.col("kind_golden") == RowKind.TENSOR.value)
    )
    if not failing.height:
        return []
    by_place = failing.filter(is_at_place_of_parameter(limits, "name_target", "entry"))["row"].to_list()
    if parents is None:
        return by_place
    own_parents = {entry: parents.get(entry) for entry in failing["entry"].unique()}
    identity = pl.concat_str(
        [pl.col(f"{n}_{s}").cast(pl.String).fill_null("") for n in _IDENTITY for s in _SIDES], separator=" "
    )
    has_identity = pl.any_horizontal(*[pl.col(f"{n}_{s}").is_not_null() for n in _IDENTITY[1:] for s in _SIDES])
    called = failing.filter(has_identity).select(
        "row",
        identity.alias("identity"),
        entry=pl.col("entry").replace_strict(own_parents, default=None, return_dtype=pl.String),
    )
    is_parameter = (pl.col("role") == Role.PARAMETERS.value) & (pl.col("kind_target") == RowKind.TENSOR.value)
    own = judged.lazy().filter(is_parameter).select("entry", identity.alias("identity")).collect()
    by_value = called.join(own, on=["entry", "identity"], how="semi")["row"].to_list()
    return [*by_place, *by_value]


def first_lone_call(
    rows: pl.DataFrame, nodes: pl.DataFrame, target: Dump, golden: Dump, stacks: Mapping[str, Sequence[str]]
) -> Fault | None:
    """Return the first call that only one side has; ``None`` if both have all."""
    alone = nodes.filter("is_alone")
    if not alone.height:
        return None
    return _describe(alone.row(0, named=True), rows, nodes, target, golden, stacks)


def first_fault(
    rows: pl.DataFrame, nodes: pl.DataFrame, target: Dump, golden: Dump, stacks: Mapping[str, Sequence[str]]
) -> Fault | None:
    """Return the place where the calls that both sides have begin to disagree; ``None`` if no row of them fails."""
    shared = nodes.filter(~pl.col("is_alone"))
    failing = shared.filter(pl.col("verdict").is_in([Verdict.ERROR.value, Verdict.UNMATCHED.value]))
    if not failing.height:
        return None
    telling = shared.filter(pl.col("is_suspect") | pl.col("inputs_fail"))
    node = (telling if telling.height else failing).row(0, named=True)
    if not node["is_suspect"]:
        by_entry = {other["entry"]: other for other in shared.filter("is_suspect").iter_rows(named=True)}
        enclosing = (by_entry.get(module) for module in _ancestors(node["entry"], target.parents))
        node = next((module for module in enclosing if module is not None), node)
    elif node["gets_parameters"]:
        # The module whose parameter it is says its name.
        modules = {other["entry"]: other for other in shared.filter("is_suspect").iter_rows(named=True)}
        module = modules.get(target.parents.get(node["entry"]) or "", node)
        node = module if module["parameters_fail"] else node
    return _describe(node, rows, nodes, target, golden, stacks)


def _ancestors(entry: str, parents: Mapping[str, str | None]) -> Iterator[str]:
    seen = {entry}  # the file may say that a call encloses itself
    parent = parents.get(entry)
    while parent is not None and parent not in seen:
        yield parent
        seen.add(parent)
        parent = parents.get(parent)


def _describe(
    node: dict[str, Any],
    rows: pl.DataFrame,
    nodes: pl.DataFrame,
    target: Dump,
    golden: Dump,
    stacks: Mapping[str, Sequence[str]],
) -> Fault:
    entry: str = node["entry"]
    only_on = str(node["match"]).removeprefix("only ") if node["is_alone"] else None
    source, source_stacks = (golden, golden.stacks) if only_on == "golden" else (target, stacks)
    findings = _findings(rows.filter(pl.col("entry") == entry))
    if only_on == "golden":
        entry = node["entry_golden"]
    return Fault(
        entry=entry,
        position=node["position"],
        parent=source.parents.get(entry),
        is_culprit=bool(node["is_suspect"]) or only_on is not None,
        only_on=only_on,
        parts=[part for part in _PARTS if _disagrees(node, part)],
        input_error=node["input_error"],
        output_error=node["output_error"],
        findings=findings,
        stack=list(_stack_of(entry, source_stacks)),
        num_communications=nodes.filter(
            (pl.col("position") < node["position"]) & pl.col("entry").str.contains(names.COMMUNICATION_FORWARD)
        ).height,
        place=entry_beside(nodes.filter(pl.col("match") != Match.GOLDEN.value), node["position"])
        if only_on == "golden"
        else None,
    )


def entry_beside(nodes: pl.DataFrame, position: int) -> str | None:
    """Return the entry of the target beside which a call stands that only the golden dump has; ``None`` of nothing.

    Args:
        nodes: Those that the target has, with ``entry`` and ``position``.
        position: Of the call.
    """
    before = nodes.filter(pl.col("position") < position)["entry"]
    return before[-1] if len(before) else next(iter(nodes["entry"]), None)


def _disagrees(node: dict[str, Any], part: str) -> bool:
    if node[f"{part}_fail"]:
        return True
    # A suspect with equal inputs disagrees below the limit.
    if not node["is_suspect"] or part not in {"parameters", "outputs"}:
        return False
    return (node["parameter_error" if part == "parameters" else "output_error"] or 0.0) > 0.0


def _findings(own: pl.DataFrame) -> list[tuple[str, str]]:
    name = pl.coalesce("name_target", "name_golden")
    failed = own.filter(pl.col("verdict").is_in([Verdict.ERROR.value, Verdict.UNMATCHED.value]))
    findings = [
        (row, message)
        for row, messages in failed.select(name, "messages").rows()
        for message in messages
        if not message.startswith("note:")
    ]
    if not findings:
        findings = [
            (row, f"the relative error {error:.3g} is within the limit {limit:g}, but all inputs are equal.")
            for row, error, limit in own.filter((pl.col("judged_error") > 0) & pl.col("limit").is_not_null())
            .select(name, "judged_error", "limit")
            .rows()
        ]
    return findings


def _stack_of(entry: str, stacks: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Return the stack of an entry; of a backward entry, that of its forward."""
    return stacks.get(entry) or stacks.get(names.forward_of(entry) or "", ())
