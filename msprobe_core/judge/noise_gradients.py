"""Gradients that are rounding noise on both sides, and carry no information.

A value that is zero in exact arithmetic has, in floating point, the size of the roundings of its sources, and different
programs round differently. Two rules identify such gradients:

* The gradient of a vector, such as a bias, is a sum over the gradient that its call got. Below some number of unit
  round-offs of that gradient it is a sum of roundings only. In float32 and finer, the roundings of a sum of ``n`` terms
  may have grown to ``sqrt(n)`` times as much (Higham and Mary, *A New Approach to Probabilistic Rounding Error
  Analysis*, SIAM J. Sci. Comput. 41(5), 2019); coarser dtypes are summed in float32. An example are biases before a
  normalisation.
* Any other gradient also scales with the forward inputs of its call, and may be small for that reason. It is noise only
  if the golden run computed it in float32 or finer, and if it is below that number of *its* unit round-offs even after
  the call's incoming gradient is multiplied by the smallest, or divided by the largest, magnitude in the call. An
  example are the gradients of attention's queries and keys if only one key can be attended to.

Values computed from nothing but such noise are noise too. They are recognised by their statistics, which appear at the
call that made them and at the call that got them; the target's must be equally small for its own precision.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from msprobe_core import names
from msprobe_core.judge.joining import filtered
from msprobe_core.judge.limits import LimitTable, Precision
from msprobe_core.judge.rounding_rules import RoundingRule
from msprobe_core.model import Phase, Role
from msprobe_core.store.frame import RowKind
from msprobe_core.store.stored_rows import Rows

_IDENTITY = ("numel_golden", "max_golden", "min_golden", "mean_golden", "norm_golden")


_ANOTHER_DRAW = 2.0
"""How much larger the target's roundings may be, if the golden run's are negligible: sums of random terms vary.

Measured on the biases of attention's keys of BERT in bfloat16, one and two threads: 0.8 to 1.6 times as large.
"""


def is_vanishing_vector(table: LimitTable) -> pl.Expr:
    """Whether this is the gradient of a vector, such as a bias, that is negligible relative to the terms of its sum."""
    if not RoundingRule.VANISHING_SUMS.is_on:
        return pl.lit(value=False)
    is_gradient = (pl.col("phase") != Phase.FORWARD.value) & pl.col("shape_golden").str.contains(r"^\[\d+\]$")
    # In an autocast context, the gradient of a bias in float32 is a sum of float16 gradients.
    golden = pl.max_horizontal("precision_golden", "source_precision")
    own, shared = (_share_of_sum(table, precision) for precision in (golden, pl.col("precision")))
    is_golden_zero = pl.col("norm_golden") <= own * pl.col("source_norm")
    return is_gradient & is_golden_zero & (pl.col("norm_target") <= _ANOTHER_DRAW * shared * pl.col("source_norm"))


def _share_of_sum(table: LimitTable, precision: pl.Expr) -> pl.Expr:
    num_terms = pl.col("source_numel") / pl.col("numel_golden")
    growth = pl.when((precision <= int(Precision.FLOAT32)) & (num_terms > 1)).then(num_terms.sqrt()).otherwise(1.0)
    return pl.min_horizontal(table.vanishing_share_of(precision) * growth, table.limit_of(precision))


def noise_rows(rows: Rows, table: LimitTable) -> list[int]:
    """Return the indices of rows beyond their limits that are noise by the second rule, or computed from such noise.

    Args:
        rows: Rows with ``limit``, ``source_norm`` and both precisions.
        table: The limits in force.
    """
    if not RoundingRule.NOISE_GRADIENTS.is_on:
        return []
    is_gradient = pl.col("phase").is_in([Phase.BACKWARD.value, Phase.PARAMETERS_GRAD.value])
    is_beyond = (pl.col("error") > pl.col("limit")) & (pl.col("limit") > 0) & (pl.col("norm_golden") > 0)
    columns = ("entry", "role", "precision", "precision_golden", "source_norm", "norm_target", *_IDENTITY)
    suspects = filtered(rows, columns, is_gradient & is_beyond, "row").with_columns(
        own=table.vanishing_share_of(pl.col("precision_golden")),
        shared=table.vanishing_share_of(pl.col("precision")),
    )
    seeds = suspects.filter(
        (pl.col("role") != Role.INPUT.value)
        & (pl.col("precision_golden") <= int(Precision.FLOAT32))
        & (pl.col("norm_golden") <= pl.col("own") * pl.col("source_norm"))
        & (pl.col("norm_target") <= pl.col("shared") * pl.col("source_norm"))
    )
    if not seeds.height:
        return []
    share = _smallest_share(rows, seeds["entry"].unique().to_list())
    columns = ("row", "entry", "norm_golden", "own", "source_norm")
    is_noise = {
        row
        for row, entry, norm, own, source in seeds.select(columns).rows()
        if norm <= own * source * share.get(entry, 0.0)
    }
    return _with_consequences(rows, suspects, is_noise)


def _smallest_share(rows: Rows, entries: list[str]) -> dict[str, float]:
    """Return, for backward calls, the factor by which their forward inputs may make gradients smaller."""
    forward_of = {entry: forward for entry in entries if (forward := names.forward_of(_backward_of(entry))) is not None}
    size = pl.max_horizontal(pl.col("max_golden").abs(), pl.col("min_golden").abs())
    is_number = pl.col("precision_golden").is_not_null() | (pl.col("type_golden") == "float")
    is_own = pl.col("entry").is_in(list(forward_of.values()))
    sizes = (
        filtered(rows, ["entry", "max_golden", "min_golden"], is_own & is_number & (size > 0))
        .group_by("entry")
        .agg(share=pl.min_horizontal(size.min(), 1 / size.max(), pl.lit(1.0)))
    )
    shares = dict(sizes.rows())
    return {entry: shares[forward] for entry, forward in forward_of.items() if forward in shares}


def _backward_of(entry: str) -> str:
    return names.backward_of_parameters(entry) or entry


def _with_consequences(rows: Rows, suspects: pl.DataFrame, seeds: set[int]) -> list[int]:
    """Return the seeds and the rows computed from them alone, in execution order."""
    columns = ("row", "entry", "role", "norm_target", "shared", "source_norm", *_IDENTITY)
    is_input = (pl.col("role") == Role.INPUT.value) & (pl.col("kind_golden") == RowKind.TENSOR.value)
    is_input &= pl.col("entry").is_in(suspects["entry"].unique().to_list())
    num_inputs = dict(filtered(rows, ["entry"], is_input).group_by("entry").len().rows())
    found: list[int] = []
    scale_of: dict[tuple[Any, ...], float] = {}  # size of the sources of noise, by the noise's statistics
    # Golden norm, and size of the sources, of the noise that a call got.
    noisy: dict[str, list[tuple[float, float]]] = {}
    for row, entry, role, norm, shared, source, *identity in suspects.select(columns).rows():
        own_norm = identity[-1]
        if role == Role.INPUT.value:
            scale = scale_of.get(tuple(identity))
            if scale is not None and norm <= shared * scale:
                found.append(row)
                noisy.setdefault(entry, []).append((own_norm, scale))
            continue
        given = noisy.get(_backward_of(entry), [])
        if row in seeds:
            scale = source
        elif given and len(given) == num_inputs.get(_backward_of(entry)):
            scale = max(scale * own_norm / given_norm for given_norm, scale in given)
        else:
            continue
        if norm <= shared * scale:
            found.append(row)
            scale_of[tuple(identity)] = scale
    return found
