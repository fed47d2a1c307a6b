"""Calls that differ, though the gradients of the step agree: both sides compute the same in another way.

Examples are a loss that the caller computes instead of the model, texts padded on the other side, and samples divided
into other micro-batches. All of them end in the gradients of parameters, which are what a step computes.

Only differences of form are made good by gradients: calls and results that one side lacks, other data, and other
arguments that are no numbers with a rounding. A number beyond rounding is evidence of its own, since a weak fault may
be lost in gradients, whose limits are wider.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from msprobe_core import names
from msprobe_core.judge.columns import Match
from msprobe_core.judge.joining import filtered, of_entry
from msprobe_core.judge.nodes import INFINITE
from msprobe_core.judge.origins import Nesting, Node, Source, is_of_update
from msprobe_core.judge.statistics_columns import has_inf_mismatch, has_nan_mismatch
from msprobe_core.model import Phase, Role
from msprobe_core.order.communication_calls import is_communication
from msprobe_core.store.stored_rows import Rows, roots_of

_FEWEST = 2
"""Minimum number of parameters whose gradients agree; that of a single one may do so by chance."""

IS_OF_STEP = "is_of_step"
"""Column of nodes, if samples are divided in different ways: whether it is of gradients added up over the step."""

_DISCRETE = ("int", "bool")


def of_whole_step(nodes: pl.DataFrame) -> pl.DataFrame:
    """Return the nodes that do not depend on how samples are divided: gradients added up, and what comes after them."""
    is_sum = _is_of_gradients() & pl.col("only_on").is_null()
    last = nodes.filter(is_sum)["position"].max()
    # What their modules kept of the last micro-batch tells nothing about the sums.
    saved = {name: pl.when(is_sum).then(0.0).otherwise(name) for name in ("saved_excess", "saved_score")}
    is_after = pl.col("position") > (-1 if last is None else last)
    return nodes.filter(is_sum | is_after).with_columns(**saved, **{IS_OF_STEP: is_sum})


def calls_made_good(sources: Sequence[Source], rows: Rows, nodes: pl.DataFrame, nesting: Nesting) -> Sequence[Source]:
    """Return the suspected calls that all gradients of the step make good; none if any of them is suspected for more.

    Args:
        sources: The suspected calls of one rank and step.
        rows: Rows with scores.
        nodes: Nodes of the rows.
        nesting: Nesting on both sides.
    """
    last = nodes.filter(_is_of_gradients())["position"].max()
    if last is None or not sources:
        return ()
    before = [each for each in sources if each.node["position"] < last and not is_of_update(each.node, nesting)]
    if not before or not all(_is_of_form(each, rows) for each in before):
        return ()
    return before if _gradients_agree(rows, nodes) else ()


def _gradients_agree(rows: Rows, nodes: pl.DataFrame) -> bool:
    """Whether both sides have the same gradients of parameters, and all of them agree within rounding."""
    of_gradients = nodes.filter(_is_of_gradients())
    lost = pl.col("is_lost") | pl.col("is_added_up") | pl.col("only_on").is_not_null()
    if of_gradients.filter(lost).height:
        return False
    columns = ("match", "excess", "norm_golden", "is_exempt")
    own = filtered(rows, columns, pl.col("role") == Role.PARAMETERS_GRAD.value)
    is_wrong = (pl.col("match") != Match.BOTH.value) | (pl.col("excess") > 1)
    telling = own.filter((pl.col("norm_golden") > 0) & ~pl.col("is_exempt"))
    return telling.height >= _FEWEST and not own.filter(is_wrong.fill_null(value=True)).height


def _is_of_form(source: Source, rows: Rows) -> bool:
    """Whether a call is suspected only for what no number with a rounding shows."""
    shown = [source.node] if source.seen_at is None else [source.node, source.seen_at]
    return all(_is_plain(node) and _shows_no_number(node, rows, is_made=source.made) for node in shown)


def _is_plain(node: Node) -> bool:
    is_of_model = node["phase"] == Phase.FORWARD.value and not is_communication(node["entry"])
    is_number = node["has_other_number"] or max(node["parameter_excess"], node["local_excess"]) > 1
    return is_of_model and not (is_number or node["is_lost"] or node["is_added_up"])


def _shows_no_number(node: Node, rows: Rows, *, is_made: bool) -> bool:
    is_beyond = pl.col("excess") > 1
    is_input = pl.col("role") == Role.INPUT.value
    is_discrete = pl.col("kind_of_target").is_in(_DISCRETE).fill_null(value=False)
    is_finite = ~(has_nan_mismatch() | has_inf_mismatch()).fill_null(value=False)
    tells = {
        "is_finite": is_finite,
        "is_other_data": is_input & is_discrete,
        "is_number": ~is_discrete & (pl.col("score") < INFINITE),
    }
    own = of_entry(rows, node["entry"], roots_of(is_beyond, *tells.values())).filter(is_beyond).select(**tells)
    if not own["is_finite"].all():
        return False
    # Of other data other numbers are computed.
    return not own["is_number"].any() or (not is_made and bool(own["is_other_data"].any()))


def _is_of_gradients() -> pl.Expr:
    return (pl.col("phase") == Phase.PARAMETERS_GRAD.value) & pl.col("entry").str.contains(names.MODULE)
