"""The kind of fault that the evidence at a call indicates, and the reason for the suspicion."""

from __future__ import annotations

import re
from typing import Any

import polars as pl

from msprobe_core import names
from msprobe_core.findings import Field, Finding, Level
from msprobe_core.judge.discrete_ops import DECIDES, RANDOM, api_of
from msprobe_core.judge.limits import precision_of
from msprobe_core.judge.nodes import INFINITE, is_sum
from msprobe_core.judge.origins import Node, Source
from msprobe_core.judge.same_gradients import IS_OF_STEP
from msprobe_core.judge.statistics_columns import has_inf_mismatch, has_nan_mismatch
from msprobe_core.judge.verdict import Verdict
from msprobe_core.locate.locate_codes import LocateCode
from msprobe_core.locate.result import FaultKind
from msprobe_core.model import Phase, Role
from msprobe_core.order.communication_calls import is_communication

_CASTS = {"to", "type", "float", "double", "half", "bfloat16", "cast", "astype", "type_as"}
_MASKS = {"masked_fill", "where", "tril", "triu", "masked_scatter"}
_MASK_PLACES = re.compile(r"(mask|is_causal|fill_value)")
_EPSILON_PLACES = re.compile(r"(^|\.)(eps|epsilon)$")
_SCALE_PLACES = re.compile(r"(^|\.)(scale|scaling|alpha|beta|value|temperature)$")
_DROP_PLACES = re.compile(r"\.(dropout_p|dropout|drop_prob|attn_dropout|keep_prob)$")
_NORMS = re.compile(r"norm", re.IGNORECASE)
_STEADY = 2e-3
"""Maximum spread of the ratios of several statistics to count as one factor, relative to the factor's distance from
1."""


def kind_of(source: Source, own: pl.DataFrame, parents: list[str], *, is_first_step: bool) -> FaultKind:
    """Return the kind of fault of a source.

    Args:
        source: The source.
        own: Its rows, with scores.
        parents: Names of the enclosing calls, innermost first.
        is_first_step: Whether no earlier step was examined, so that parameters are the initial ones.
    """
    node = source.node
    api = api_of(node["entry"])
    is_first_step = is_first_step and not source.was_right
    if not source.made:
        return _of_outside(node, own, is_first_step=is_first_step)
    if names.OPTIMIZER in parents or names.CLIP_GRAD in parents:
        return FaultKind.OPTIMIZER
    if is_communication(node["entry"]):
        return FaultKind.COMMUNICATION
    if source.lone is not None:
        return _of_lone_call(source.lone, api)
    if node["parameter_excess"] > 1 and node["phase"] == Phase.FORWARD.value:
        return FaultKind.PARAMETER if is_first_step else FaultKind.OPTIMIZER
    by_argument = _of_argument(own, api, parents)  # such as the probability of a dropout
    if by_argument is not None:
        return by_argument
    if node["phase"] == Phase.FORWARD.value and (RANDOM.search(api) or _drops(own)):
        return FaultKind.RANDOMNESS
    return _of_values(node, own, api)


def _of_outside(node: Node, own: pl.DataFrame, *, is_first_step: bool) -> FaultKind:
    if _is_gradient(node):
        return FaultKind.GRADIENT
    if node["parameter_excess"] > 1:
        return FaultKind.PARAMETER if is_first_step else FaultKind.OPTIMIZER
    integers = own.filter((pl.col("role") == Role.INPUT.value) & (pl.col("kind_of_target") == "int"))
    is_input = integers["excess"].max() if integers.height else 0.0
    return FaultKind.INPUT_DATA if isinstance(is_input, float) and is_input > 1 else FaultKind.OUTSIDE


def _is_gradient(node: Node) -> bool:
    """Whether a node consists of gradients; for values saved by hand the name decides."""
    if node["phase"] == Phase.DEBUG.value:
        return names.is_saved_gradient(node["entry"])
    return node["phase"] != Phase.FORWARD.value


def _of_lone_call(lone: Node, api: str) -> FaultKind:
    if api in _CASTS:
        return FaultKind.PRECISION
    if api in _MASKS:
        return FaultKind.MASK
    if RANDOM.search(api):
        return FaultKind.RANDOMNESS
    return FaultKind.EXTRA_CALL if lone["only_on"] == "target" else FaultKind.MISSING_CALL


def _of_argument(own: pl.DataFrame, api: str, parents: list[str]) -> FaultKind | None:
    failed = pl.col("verdict").is_in([Verdict.ERROR.value, Verdict.UNMATCHED.value])
    rows = own.filter("is_argument", failed | (pl.col("argument_gap") > 0))
    if not rows.height:
        return None
    places: list[str] = [
        re.sub(r"^.*\.input\.", "", name) for name in rows.select(pl.coalesce("name_target", "name_golden")).to_series()
    ]
    if any(_MASK_PLACES.search(place) for place in places):
        return FaultKind.MASK
    is_norm = bool(_NORMS.search(api)) or any(_NORMS.search(parent) for parent in parents[:1])
    small = [value for value in rows["max_golden"].to_list() if value is not None and 0 < abs(value) < 1e-2]
    if any(_EPSILON_PLACES.search(place) for place in places) or (is_norm and small):
        return FaultKind.EPSILON
    if api in _CASTS:
        return FaultKind.PRECISION
    if api in {"__mul__", "mul", "mul_", "__truediv__", "div"} or any(_SCALE_PLACES.search(place) for place in places):
        return FaultKind.SCALE
    return FaultKind.ARGUMENT


def _drops(own: pl.DataFrame) -> bool:
    """Whether a call drops values at random, by an argument that says so, such as ``dropout_p`` of fused attention."""
    names_of_drops = pl.col("name_target").str.contains(_DROP_PLACES.pattern)
    return own.filter("is_argument", names_of_drops, pl.col("max_golden") > 0).height > 0


def _of_values(node: Node, own: pl.DataFrame, api: str) -> FaultKind:
    made = own.filter(pl.col("role").is_in([Role.OUTPUT.value, Role.PARAMETERS_GRAD.value]) & (pl.col("excess") > 1))
    if made.filter((has_nan_mismatch() | has_inf_mismatch()).fill_null(False)).height:
        return FaultKind.NON_FINITE
    if DECIDES.match(api) and made.filter(pl.col("kind_of_target") == "int").height:
        return FaultKind.DECISION
    if _is_gradient(node):
        return FaultKind.GRADIENT
    for target, golden in made.select("dtype_target", "dtype_golden").rows():
        if precision_of(target) != precision_of(golden):
            return FaultKind.PRECISION
    return FaultKind.SCALE if factor_of(made) is not None else FaultKind.COMPUTATION


def factor_of(made: pl.DataFrame) -> float | None:
    """Return the common factor between all statistics of the two sides; ``None`` if there is none.

    Args:
        made: Rows of results with an error beyond rounding.
    """
    for row in made.iter_rows(named=True):
        ratios = [_ratio(row, name) for name in ("norm", "max", "min")]
        known = [ratio for ratio in ratios if ratio is not None]
        if len(known) < 3:
            continue
        middle = sorted(known)[1]
        distance = abs(middle - 1)
        if distance > 1e-6 and max(known) - min(known) <= max(0.05 * distance, _STEADY * middle * (distance > 0.01)):
            return middle
    return None


def _ratio(row: dict[str, Any], name: str) -> float | None:
    target, golden = row[f"{name}_target"], row[f"{name}_golden"]
    return target / golden if target is not None and golden else None


def reason_of(
    source: Source, kind: FaultKind, own: pl.DataFrame, *, is_given_known: bool = True, changed_by: str | None = None
) -> Finding:
    """Return why a source is suspected.

    Args:
        source: The source.
        kind: Result of `kind_of`.
        own: Its rows, with scores.
        is_given_known: Whether what calls were given has been compared.
        changed_by: Result of `changing_call`.
    """
    node, lone = source.node, source.lone
    if lone is not None:
        return _suspicion(LocateCode.LONE_CALL, only_on=lone["only_on"])
    if node["is_lost"]:
        return _suspicion(LocateCode.LOST_GRADIENT, only_on=node["only_on"])
    if not source.made and source.seen_at is not None:
        return _reason_of_change(source, source.seen_at["entry"], changed_by)
    if not source.made:
        return _suspicion(_OUTSIDE.get(kind, LocateCode.GIVEN_WRONG))
    if node["is_added_up"]:
        return _suspicion(LocateCode.GRADIENT_ADDED_UP, side=_side_of_sum(own))
    if kind is FaultKind.PARAMETER or (kind is FaultKind.OPTIMIZER and node["parameter_excess"] > 1):
        return _reason_of_parameter(kind, own)
    made = _made(node)
    if node["phase"] == Phase.DEBUG.value:
        return _suspicion(LocateCode.SAVED_VALUE, made=made)
    given = _given(node) if is_given_known else Finding(LocateCode.GIVEN_UNKNOWN)
    if node["phase"] == Phase.PARAMETERS_GRAD.value:
        is_of_step = node.get(IS_OF_STEP, False)
        code = LocateCode.GRADIENT_OF_STEP if is_of_step else LocateCode.GRADIENT_OF_PARAMETERS
        return _suspicion(code, given=given, made=made)
    if node["phase"] != Phase.FORWARD.value:
        return _suspicion(LocateCode.GRADIENT, given=given, made=made)
    if node["arguments_differ"] or node["argument_gap"] > 0:
        return _suspicion(LocateCode.ARGUMENT, given=given, made=made)
    if kind is FaultKind.SCALE and (factor := factor_of(own.filter(pl.col("role") == Role.OUTPUT.value))) is not None:
        return _suspicion(LocateCode.FACTOR, given=given, made=made, factor=factor)
    return _suspicion(LocateCode.COMPUTATION, given=given, made=made)


def _reason_of_change(source: Source, seen_at: str, changed_by: str | None) -> Finding:
    if changed_by is not None:
        return _suspicion(LocateCode.CHANGED_BY_CALL, seen_at=seen_at, call=changed_by)
    is_missing = source.changed_in == "golden"
    code = LocateCode.NOT_CHANGED_AFTERWARDS if is_missing else LocateCode.CHANGED_AFTERWARDS
    return _suspicion(code, seen_at=seen_at)


def changing_call(source: Source, rows: pl.DataFrame, nodes: pl.DataFrame) -> str | None:
    """Return the call of the target alone that changes a right result before the call that is given it wrong.

    It is given what the source made and the later call is not, and returns what that gets wrong, by their statistics.
    """
    if source.made or source.seen_at is None or source.changed_in != "target":
        return None
    begin, end = source.node["position"], source.seen_at["position"]
    is_lone = (pl.col("only_on") == "target") & (pl.col("phase") == Phase.FORWARD.value)
    between = nodes.filter(is_lone & (pl.col("position") > begin) & (pl.col("position") < end)).sort("position")
    calls = rows.filter(pl.col("entry").is_in(between["entry"].to_list()) & (pl.col("norm_target") > 0))
    is_input, keys = pl.col("role") == Role.INPUT.value, [f"{name}_target" for name in _IDENTITY]
    given = rows.filter((pl.col("entry") == source.seen_at["entry"]) & is_input)
    made = rows.filter((pl.col("entry") == source.node["entry"]) & ~is_input).join(given, on=keys, how="anti")
    given = given.filter(pl.col("excess") > 1)
    takes = set(calls.filter(is_input).join(made, on=keys, how="semi")["entry"])
    gives = set(calls.filter(~is_input).join(given, on=keys, how="semi")["entry"])
    return next((entry for entry in between["entry"] if entry in takes & gives), None)


def _suspicion(code: LocateCode, **fields: Field) -> Finding:
    return Finding(code, Level.ERROR, fields)


_OUTSIDE = {FaultKind.INPUT_DATA: LocateCode.OTHER_DATA, FaultKind.PARAMETER: LocateCode.OTHER_PARAMETER}


def _side_of_sum(own: pl.DataFrame) -> str:
    return str(own.filter(is_sum())["match"][0]).removeprefix("only ")


def _given(node: Node) -> Finding:
    if node["inputs_equal"]:
        return Finding(LocateCode.GIVEN_EQUAL)
    return Finding(LocateCode.GIVEN_ROUNDED, fields={"score": float(node["input_score"])})


def _made(node: Node) -> Finding:
    if node["parts_missing"]:
        return Finding(LocateCode.MADE_ONE_SIDED)
    if node["output_excess"] == INFINITE:
        return Finding(LocateCode.MADE_EXACT)
    if node["output_excess"] > 1 > node["output_score"] and node["local_excess"] > 1:
        return Finding(LocateCode.MADE_LOCAL, fields={"score": float(node["local_excess"])})
    if node["output_score"] == 0:
        return Finding(LocateCode.MADE_WITHIN)
    code = LocateCode.MADE_GROWING if node["output_excess"] <= 1 else LocateCode.MADE_BEYOND
    return Finding(code, fields={"score": float(node["output_score"])})


def _reason_of_parameter(kind: FaultKind, own: pl.DataFrame) -> Finding:
    wrong = own.filter("is_parameter", pl.col("excess") > 1)["name_target"].to_list()
    named = [re.sub(r"^.*\.(parameters|input)\.", "", name) for name in wrong[:3]]
    factor = own["update_factor"][0] if "update_factor" in own.columns and own.height else None
    if factor is not None:
        return _suspicion(LocateCode.ALL_UPDATES, parameters=named, factor=float(factor))
    is_first = kind is FaultKind.PARAMETER
    return _suspicion(LocateCode.PARAMETER if is_first else LocateCode.UPDATE, parameters=named)


_IDENTITY = ("numel", "max", "min", "mean", "norm")


def parameter_of(own: pl.DataFrame, rows: pl.DataFrame) -> str | None:
    """Return the parameter that a call outside of all modules updates, recognised by its inputs; ``None`` if unknown.

    Args:
        own: The rows of the call.
        rows: All rows.
    """
    given = own.filter(
        (pl.col("role") == Role.INPUT.value) & (pl.col("norm_golden") > 0) & (pl.col("numel_golden") > 1)
    )
    keys = [f"{name}_golden" for name in _IDENTITY]
    is_known = pl.col("role").is_in([Role.PARAMETERS.value, Role.PARAMETERS_GRAD.value])
    known = rows.filter(is_known & (pl.col("norm_golden") > 0))
    found = given.select(keys).join(known.select("name_golden", *keys), on=keys, how="inner")
    return re.sub(names.PATH_OF_PARAMETER_ROW, r"\1 \2", str(found["name_golden"][0])) if found.height else None
