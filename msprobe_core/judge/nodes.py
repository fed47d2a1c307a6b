"""One row per call: how far its inputs and outputs exceed what round-off explains.

``score`` is an error in units of the expected round-off, and ``excess`` the same error in units of its limit: above 1,
round-off does not explain it. Without a measure of noise, the limits of `msprobe_core.judge.limits` serve as both
units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import polars as pl

from msprobe_core import names
from msprobe_core.judge.columns import Match
from msprobe_core.judge.discrete_ops import is_decision
from msprobe_core.judge.joining import by_entry, filtered, with_added, with_marks
from msprobe_core.judge.limits import LimitTable, roundoff_of
from msprobe_core.judge.noise.carried import SUMMED
from msprobe_core.judge.noise.null_distribution import LEAST_LIMITS
from msprobe_core.judge.op_bound import with_local_excess
from msprobe_core.judge.parameter_arguments import given_parameters
from msprobe_core.judge.rounding_rules import RoundingRule
from msprobe_core.judge.row_conditions import are_lowest
from msprobe_core.judge.updates import ALL_NOISE, value_of_row, with_updated_parameters
from msprobe_core.judge.verdict import Verdict, differs
from msprobe_core.model import Phase, Role
from msprobe_core.order.communication_calls import COMMUNICATES
from msprobe_core.store.frame import RowKind
from msprobe_core.store.stored_rows import Rows, roots_of

INFINITE = math.inf
"""Score of differences that round-off cannot explain: other shapes, NaN, other integers."""

_SIDES = ("target", "golden")
_LATE = (Phase.BACKWARD.value, Phase.PARAMETERS_GRAD.value)


WEIGHT_ERROR = SUMMED
"""Limit of the relative error of initial weights. Two runs begin with bitwise equal weights, so their statistics differ
only by the round-off of float32 sums. If the dtypes differ, the weights were rounded and are judged like other
tensors."""


_SAME, _NEARLY_SAME = 1e-6, 1e-2
"""Limits of the relative difference of two numeric arguments: if all tensors are equal, and if the number may have been
computed from tensors that differ slightly."""


def judge_nodes(judged: Rows) -> pl.DataFrame:
    """Return one row per entry, in execution order: ``position``, ``entry``, ``entry_golden``, ``match``, ``verdict``.

    The verdict is the worst of the entry's rows, where a row without a partner is less than an error and more than a
    warning. ``is_alone``: only one side has the call, and the difference is not excused.

    Args:
        judged: Judged rows.
    """
    first_match = pl.col("match").first()
    verdict = pl.col("verdict")
    worst = pl.lit(Verdict.PASS.value)
    for level in (Verdict.WARNING, Verdict.UNMATCHED, Verdict.ERROR):
        worst = pl.when((verdict == level.value).any()).then(pl.lit(level.value)).otherwise(worst)
    columns = {
        "entry_golden": pl.col("entry_golden").first(),
        "match": pl.when((pl.col("match") == first_match).all()).then(first_match).otherwise(pl.lit(Match.BOTH.value)),
        "verdict": worst,
        "is_unmatched": (verdict == Verdict.UNMATCHED.value).any(),
    }
    return (
        _grouped(judged, columns)
        .with_columns(is_alone=(pl.col("match") != Match.BOTH.value) & pl.col("is_unmatched"))
        .drop("is_unmatched")
        .with_row_index("position")
    )


def _grouped(rows: Rows, columns: Mapping[str, pl.Expr]) -> pl.DataFrame:
    """Return one row per entry, in execution order."""
    names = dict.fromkeys(["entry", *roots_of(*columns.values())])
    return by_entry(rows, names, lambda part: part.group_by("entry", maintain_order=True).agg(**columns))


def entry_beside(nodes: pl.DataFrame, position: int) -> str | None:
    """Return the target's entry next to a call that only the golden dump has; ``None`` if ``nodes`` is empty.

    Args:
        nodes: Nodes of the target, with ``entry`` and ``position``.
        position: Position of the call.
    """
    before = nodes.filter(pl.col("position") < position)["entry"]
    return before[-1] if len(before) else next(iter(nodes["entry"]), None)


_FOREIGN_ROUNDOFFS = 8
"""How many times as much round-off is explained between two frameworks, which sum in different orders: for equal inputs
in float32, differences of up to 1e-5 were measured."""


def with_scores(
    rows: Rows,
    limits: LimitTable,
    parents: Mapping[str, str | None],
    *,
    is_first_step: bool = False,
    is_foreign: bool = False,
) -> Rows:
    """Return judged rows with the columns that `nodes_of` aggregates.

    Adds ``score``, ``score_limit``, ``excess``, ``is_equal`` (bitwise, as far as recorded), ``is_parameter``,
    ``is_argument`` (an input that is not a tensor on both sides) and ``argument_gap`` (relative difference of two
    floats).

    Args:
        rows: Judged rows.
        limits: The limits that the rows were judged by.
        parents: The enclosing call of each of the target's calls.
        is_first_step: Whether the parameters are the initial ones of the runs.
        is_foreign: Whether the two dumps are from different frameworks. The closed form then covers the round-off of
            each call.
    """
    given = given_parameters(rows, limits, parents)
    explained = limits.explained_roundoffs * (_FOREIGN_ROUNDOFFS if is_foreign else 1)
    rows = with_marks(rows, "is_parameter", given)
    reads = [name for name in (*_SCORED_BY, *roots_of(differs())) if name in rows.columns]
    scored = with_added(rows, lambda part: _scored(part, explained, is_first_step=is_first_step), dict.fromkeys(reads))
    # Between two frameworks the closed form already covers the round-off of each call.
    has_own_rounding = RoundingRule.OWN_ROUNDING.is_on and not is_foreign
    scored = with_local_excess(scored) if has_own_rounding else scored.with_columns(local_excess=pl.lit(0.0))
    return _with_singled_out(scored if is_first_step else with_updated_parameters(scored))


_SCORED_BY = (
    *("verdict", "match", "role", "phase", "is_parameter", "judged_error", "precision", "limit", "score"),
    *("score_limit", *(f"{name}_{side}" for name in ("kind", "kind_of", "type", "dtype", "max") for side in _SIDES)),
)
"""Columns that `_scored` reads, apart from those of `differs`."""

_SCORES = ("score", "score_limit", "excess", "roundings", "is_equal", "is_parameter", "is_argument", "argument_gap")


def _scored(rows: pl.DataFrame, explained: float, *, is_first_step: bool) -> pl.DataFrame:
    """Return the columns that `with_scores` can compute for each row separately.

    Args:
        rows: Judged rows; ``is_parameter`` marks the arguments that are parameters.
        explained: Number of round-offs that are explained if there is no measure of noise.
        is_first_step: Whether the parameters are the initial ones of the runs.
    """
    is_error = pl.col("verdict") == Verdict.ERROR.value
    is_pair = pl.col("match") == Match.BOTH.value
    is_input = pl.col("role") == Role.INPUT.value
    roundings = pl.lit(0.0)
    if "score" not in rows.columns:
        # Without a measure of noise, the round-offs that outputs of equal inputs differ by say more than a limit does.
        roundings = pl.col("judged_error") / (explained * roundoff_of(pl.col("precision")))
        is_number = ~pl.any_horizontal(*[pl.col(f"kind_{side}") == RowKind.TENSOR.value for side in _SIDES])
        is_argument = is_error & is_pair & is_input & is_number
        roundings = pl.when(is_argument).then(INFINITE).when(roundings.is_finite()).then(roundings).fill_null(0.0)
        rows = rows.with_columns(score=pl.col("judged_error") / pl.col("limit"), score_limit=pl.lit(1.0))
    both_tensors = pl.all_horizontal(*[pl.col(f"kind_{side}") == RowKind.TENSOR.value for side in _SIDES])
    # A different kernel may return extra values, such as attention weights; this alone does not change any value.
    is_gradient = pl.col("phase") == Phase.PARAMETERS_GRAD.value
    is_shape_of_call = (pl.col("kind_target") != pl.col("kind_golden")).fill_null(False) & ~is_input & ~is_gradient
    is_error &= ~is_shape_of_call
    # A mask may be boolean on one side and numeric on the other; their difference is not a number.
    is_other_kind = (pl.col("kind_of_target") != pl.col("kind_of_golden")).fill_null(False)
    no_rounding = is_error & (is_other_kind | ~(pl.col("score") > pl.col("score_limit")).fill_null(False))
    own = pl.when(no_rounding).then(INFINITE).otherwise(pl.col("score").fill_nan(None).fill_null(0.0))
    are_scalars = pl.all_horizontal(*[pl.col(f"kind_{side}") == RowKind.SCALAR.value for side in _SIDES])
    is_float = pl.any_horizontal(*[pl.col(f"type_{side}") == "float" for side in _SIDES])
    larger = pl.max_horizontal(*[pl.col(f"max_{side}").abs() for side in _SIDES])
    difference = (pl.col("max_target") - pl.col("max_golden")).abs() / larger
    # Between an infinity and another number, the quotient is NaN.
    gap = pl.when(pl.col("max_target") == pl.col("max_golden")).then(0.0).otherwise(difference.fill_nan(INFINITE))
    is_parameter = (pl.col("role") == Role.PARAMETERS.value) | pl.col("is_parameter")
    # Frameworks spell the same dtype differently.
    dtypes = [pl.col(f"dtype_{side}").str.to_lowercase().str.strip_prefix("torch.") for side in _SIDES]
    is_weight = is_parameter & (dtypes[0] == dtypes[1])
    is_other = is_weight & (pl.col("judged_error") > WEIGHT_ERROR) & is_first_step
    return (
        rows.with_columns(
            score=pl.when(is_pair).then(own).otherwise(0.0),
            score_limit=pl.col("score_limit").fill_nan(None).fill_null(1.0),
            is_equal=~differs(),
            roundings=roundings,
            is_parameter=is_parameter,
            is_argument=is_input & (~both_tensors | is_other_kind),
            argument_gap=pl.when(is_pair & is_input & are_scalars & is_float & (larger > 0) & ~are_lowest()).then(gap),
        )
        .with_columns(ratio=pl.col("score") / pl.max_horizontal("score_limit", 1e-300))
        .with_columns(
            # The verdict takes precedence over the ratio, because it also considers exemptions.
            excess=pl.when(is_other.fill_null(False))
            .then(pl.max_horizontal("ratio", pl.col("judged_error") / WEIGHT_ERROR))
            .when(is_error & is_pair).then(pl.max_horizontal("ratio", 1.0 + 1e-9))
            .otherwise(pl.min_horizontal("ratio", 1.0)),
        )
        .select(*_SCORES)
    )  # fmt: skip


def _with_singled_out(rows: Rows) -> Rows:
    """Recompute ``excess`` for the outputs of calls that were given another argument, and of their backward calls.

    Such a call is singled out by its argument, so its limit need not allow for the worst of thousands of rows.
    """
    if "score_measure" not in rows.columns:
        return rows
    is_error = pl.col("verdict") == Verdict.ERROR.value
    is_given = pl.col("is_argument") & is_error & (pl.col("match") == Match.BOTH.value)
    given = set(filtered(rows, ["entry"], is_given)["entry"])
    if not given:
        return rows
    entries = [entry for entry in rows["entry"].unique() if entry in given or names.forward_of(entry) in given]
    least = {measure.value: limit for measure, limit in LEAST_LIMITS.items()}
    limit = pl.col("score_measure").replace_strict(least, default=None, return_dtype=pl.Float64)
    is_made = pl.col("entry").is_in(entries) & (pl.col("role") == Role.OUTPUT.value)
    excess = pl.max_horizontal("excess", pl.col("score") / limit)
    return rows.with_columns(excess=pl.when(is_made).then(excess).otherwise("excess"))


def is_module() -> pl.Expr:
    """Whether an entry belongs to a module."""
    return pl.col("entry").str.contains(names.MODULE)


def nodes_of(rows: Rows) -> pl.DataFrame:
    """Aggregate the rows of `with_scores` to one row per entry, in execution order.

    Columns:

    * ``position``, ``entry``, ``entry_golden``, ``phase``.
    * ``only_on``: the side if only one side has the entry, otherwise null.
    * ``{part}_excess`` and ``{part}_score``: the largest of each part, where the parts are ``input``, ``parameter`` and
      ``output``.
    * ``saved_excess`` and ``saved_score``: for a backward, the largest of the inputs and outputs of its forward; for
      gradients of parameters, also of the inputs of the module's backward.
    * ``inputs_equal``, ``arguments_differ``, ``outputs_differ``.
    * ``argument_gap``: see `with_scores`.
    * ``has_other_number``: the call was given a different number, such as an epsilon, and its outputs differ.
    * ``turns``: of the outputs, only integers and booleans are beyond their limits, as after a decision.
    * ``is_open``: the outputs do not show whether the call is wrong, see `_is_open`, and are no excess.
    * ``local_excess``: for a call with equal inputs, see `msprobe_core.judge.op_bound`; counts as excess of the output.
    * ``roundings_excess``: without a measure of noise, the same in units of the round-offs that `LimitTable` explains;
      infinite if the call was given another argument that is not a tensor. It counts only if a row is beyond its limit.
    * ``parts_missing``: one side lacks outputs.
    * ``is_added_up``: only one side adds gradients of parameters to existing ones.
    * ``is_lost``: one side lacks the backward of a forward that both sides have.
    """
    nodes = _nodes_of(rows)
    open_entries = nodes.filter("is_open")["entry"].to_list()
    if not open_entries:
        return nodes
    # A value that is not held against the call that made it is not held against the calls that use it either.
    is_open = pl.col("entry").is_in(open_entries) & (pl.col("role") == Role.OUTPUT.value)
    is_beyond, reads = pl.col("excess") > 1, roots_of(value_of_row())
    made = filtered(rows, reads, is_beyond & is_open).select(value=value_of_row())
    if made.is_empty():
        return nodes
    values = made["value"].unique().to_list()
    unsaid = filtered(rows, [], is_beyond & value_of_row().is_in(values), "row")["row"]
    excess = pl.when("is_unsaid").then(pl.min_horizontal("excess", 1.0)).otherwise("excess")
    marked = with_marks(rows, "is_unsaid", unsaid.to_list())
    return _nodes_of(with_added(marked, lambda part: part.select(excess=excess), ["is_unsaid", "excess"]))


def _nodes_of(rows: Rows) -> pl.DataFrame:
    is_input = (pl.col("role") == Role.INPUT.value) & ~pl.col("is_parameter")
    tensors = is_input & ~pl.col("is_argument")
    is_output = pl.col("role").is_in([Role.OUTPUT.value, Role.PARAMETERS_GRAD.value])
    is_lone = pl.col("match") != Match.BOTH.value
    is_unmatched = pl.col("verdict") == Verdict.UNMATCHED.value
    is_error = (pl.col("verdict") == Verdict.ERROR.value) | is_unmatched
    is_discrete, is_beyond = pl.col("kind_of_target").is_in(["int", "bool"]).fill_null(False), pl.col("excess") > 1
    if "noise_floor" not in rows.columns:  # a column, since polars 1.30 does not aggregate literals
        rows = rows.with_columns(noise_floor=pl.lit(0.0))
    parts = {"input": tensors, "parameter": pl.col("is_parameter"), "output": is_output}
    largest = {
        f"{part}_{what}": _of(condition, what).max().fill_null(0.0)
        for part, condition in parts.items()
        for what in ("excess", "score")
    }
    columns = {
        "phase": pl.col("phase").first(),
        "entry_golden": pl.col("entry_golden").first(),
        "only_on": pl.when(is_lone.all()).then(pl.col("match").cast(pl.String).first().str.slice(5)),
        "inputs_equal": _of(tensors | pl.col("is_parameter"), "is_equal").all(),
        "arguments_differ": (pl.col("is_argument") & is_error).any(),
        "argument_gap": pl.col("argument_gap").max().fill_null(0.0),
        "local_excess": pl.col("local_excess").max(),
        "roundings_excess": _of(is_output, "roundings").max().fill_null(0.0),
        "argument_excess": _of(pl.col("is_argument"), "roundings").max().fill_null(0.0),
        "outputs_differ": ((~pl.col("is_equal") | is_lone) & is_output).any(),
        "is_unmatched": is_unmatched.any(),
        "is_added_up": is_sum().any() & ~is_lone.all(),
        # Excused differences, such as additional results of one framework, are not unmatched.
        "parts_missing": (is_unmatched & is_output & _is_tensor()).any() & ~is_lone.all(),
        "turns": (is_discrete & is_beyond & is_output).any() & ~(~is_discrete & is_beyond & is_output).any(),
        "other_input_excess": _of(tensors & ~is_discrete, "excess").max().fill_null(0.0),
        "may_be_given_other": (tensors & (~pl.col("is_equal") | _may_be_another(rows))).any(),
        "takes_values": (~is_discrete & is_output & _is_tensor()).any(),
        "makes_integers": (is_discrete & is_output & _is_tensor()).any() | ~(is_output & _is_tensor()).any(),
        "parameters_equal": _of(pl.col("role") == Role.PARAMETERS.value, "is_equal").all(),
        "input_noise": _of(tensors | pl.col("is_parameter"), "noise_floor").max().fill_null(0.0),
        **largest,
    }
    nodes = _grouped(rows, columns).with_row_index("position")
    is_golden = (pl.col("only_on") == "golden").fill_null(False)
    late = (
        nodes.filter(pl.col("only_on").is_not_null() & pl.col("is_unmatched") & pl.col("phase").is_in(_LATE))
        .select("entry", pl.when(is_golden).then(pl.coalesce("entry_golden", "entry")).otherwise("entry").alias("name"))
        .rows()
    )
    is_forward = (pl.col("phase") == Phase.FORWARD.value) & pl.col("only_on").is_null()
    forwards = set(nodes.filter(is_forward)["entry"]) if late else set[str]()
    lost = [entry for entry, name in late if names.forward_of(name) in forwards]
    # Compiled code has no backward calls but does have gradients, so its missing backward calls are not lost.
    of_parameters = nodes.filter((pl.col("phase") == Phase.PARAMETERS_GRAD.value) & pl.col("entry").is_in(lost))
    if not of_parameters.height:
        lost = []
    # What communication gives depends on other ranks too, whose rounding its own inputs do not show.
    is_untouched = pl.col("inputs_equal") & (pl.col("saved_score") == 0) & ~pl.col("entry").str.contains(COMMUNICATES)
    if not nodes["parameters_equal"].all():  # parameters of inner modules are not among the module's own inputs
        is_untouched &= ~is_module()
    same = pl.when("inputs_equal").then(_SAME).otherwise(_NEARLY_SAME)
    return (
        _with_saved(nodes)
        .with_columns(
            is_lost=pl.col("entry").is_in(lost),
            has_other_number=(pl.col("argument_gap") > same) & pl.col("outputs_differ"),
            local_excess=pl.when(is_untouched).then("local_excess").otherwise(0.0),
            roundings_excess=pl.when("outputs_differ")
            .then(pl.max_horizontal("argument_excess", pl.when(is_untouched).then("roundings_excess")))
            .otherwise(0.0),
        )
        .with_columns(is_open=_is_open(nodes))
        .with_columns(
            # Integers that differ because of a decision are no excess of an input; calls that compute numbers from them
            # are judged by their own rows.
            input_excess=pl.when(_is_behind_decision(nodes)).then("other_input_excess").otherwise("input_excess"),
            output_excess=pl.when("is_open")
            .then(pl.min_horizontal("output_excess", 1.0))
            .otherwise(pl.max_horizontal("output_excess", "local_excess")),
        )
    )


def _of(condition: pl.Expr, column: str) -> pl.Expr:
    """Return a column where the condition holds, null elsewhere; filtering inside a group would store lists of rows."""
    return pl.when(condition).then(column)


def _is_open(nodes: pl.DataFrame) -> pl.Expr:
    """Whether the outputs of a call do not show whether the call is wrong.

    There are three cases. The call was given a value that consists of noise only, which an optimizer that divides by
    the value's size amplifies, and which other kernels may compute as zero. Or the call takes a decision that round-off
    can change, and its inputs on both sides are as good as equal; if parameters have been updated, no repetition has
    shown which decisions change. Or the call comes after such a decision, and of its outputs only integers and booleans
    differ: the statistics of its inputs may be equal although their order is not.
    """
    is_updated = not nodes["parameters_equal"].all()
    is_tie = _may_turn() & (pl.col("takes_values") | pl.lit(is_updated))
    is_of_noise = (pl.col("input_noise") >= ALL_NOISE) & ~pl.col("inputs_equal")
    return is_of_noise | (pl.col("turns") & (is_tie | _is_behind_decision(nodes)))


def _may_turn() -> pl.Expr:
    """Whether a call takes a decision and its inputs may differ in the last digit.

    Without integers among its recorded results it takes none: ``max`` of a whole tensor returns a value and no index.
    """
    return is_decision() & pl.col("makes_integers") & pl.col("may_be_given_other")


def _is_behind_decision(nodes: pl.DataFrame) -> pl.Expr:
    """Whether a call comes after the first decision that may change."""
    first = nodes.filter(_may_turn())["position"].min()
    return pl.lit(False) if first is None else pl.col("position") > first


def _may_be_another(rows: Rows) -> pl.Expr:
    """Whether a tensor may differ although its statistics are equal, namely in the order of its elements."""
    is_known = pl.col("checksum_target").is_not_null() & pl.col("checksum_golden").is_not_null()
    if "num_different" in rows.columns:
        is_known |= pl.col("num_different").is_not_null()
    return ~is_known & (pl.col("max_golden") > pl.col("min_golden")).fill_null(False)


def is_sum() -> pl.Expr:
    """Whether a row shows that only one side adds a gradient to an existing one."""
    is_lone = (pl.col("match") != Match.BOTH.value) & (pl.col("role") == Role.PARAMETERS_GRAD.value)
    return is_lone & pl.coalesce("name_target", "name_golden").str.contains(names.CONTRIBUTION_ROW)


def _is_tensor() -> pl.Expr:
    return pl.any_horizontal(*[(pl.col(f"kind_{side}") == RowKind.TENSOR.value).fill_null(False) for side in _SIDES])


def _with_saved(nodes: pl.DataFrame) -> pl.DataFrame:
    late = nodes.filter(pl.col("phase").is_in(_LATE))["entry"].to_list()
    sources = [
        (entry, source)
        for entry in late
        for source in (names.forward_of(entry), names.backward_of_parameters(entry))
        if source is not None
    ]
    links = pl.DataFrame(sources, schema={"entry": pl.String, "source": pl.String}, orient="row")
    is_forward = pl.col("phase") == Phase.FORWARD.value
    used = {
        what: pl.when(is_forward).then(pl.max_horizontal(f"input_{what}", f"parameter_{what}", f"output_{what}"))
        .otherwise(f"input_{what}")
        for what in ("excess", "score")
    }  # fmt: skip
    own = nodes.select(source="entry", saved_excess=used["excess"], saved_score=used["score"])
    saved = links.join(own, on="source", how="inner").group_by("entry").agg(pl.exclude("source").max())
    return nodes.join(saved, on="entry", how="left", maintain_order="left").with_columns(
        pl.col("saved_excess", "saved_score").fill_null(0.0)
    )
