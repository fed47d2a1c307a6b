"""Gradients that are rounding noise on both sides, and carry no information.

A value that is zero in exact arithmetic has, in floating point, the size of the roundings of its sources, and different
programs round differently. Two rules identify such gradients:

* The gradient of a vector, such as a bias, or of what an addition has broadcast, is a sum over the gradient that its
  call got. Below some number of unit round-offs of that gradient it is a sum of roundings only. In float32 and finer,
  the roundings of a sum of ``n`` terms may have grown to ``sqrt(n)`` times as much (Higham and Mary, *A New Approach to
  Probabilistic Rounding Error Analysis*, SIAM J. Sci. Comput. 41(5), 2019); coarser dtypes are summed in float32.
  Examples are biases before a normalisation, and the largest logit that is subtracted before a softmax.
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
_OF_SOURCES = ("is_sum", "source_norm", "source_numel", "source_precision")


_FEW = 4
"""Number of sums, of which all are rarely below the round-offs of their terms by chance.

In bfloat16, 16 unit round-offs are 6 % of the norm of the terms, and 5 % of random sums are smaller.
"""

_ADDITIONS = (
    *("add", "add_", "sub", "sub_", "rsub", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__"),
    *("expand", "expand_as", "broadcast_to", "Add", "Sub", "BroadcastTo"),
)
"""APIs that pass gradients on, perhaps negated, and summed over broadcast dimensions."""

_ANOTHER_DRAW = 2.0
"""How much larger the target's roundings may be, if the golden run's are negligible: sums of random terms vary.

Measured on the biases of attention's keys of BERT in bfloat16, one and two threads: 0.8 to 1.6 times as large.
"""


def summed(rows: pl.DataFrame) -> pl.DataFrame:
    """Return ``is_sum``: whether each row is the gradient of a vector, or of what an addition has broadcast.

    Gradients of other broadcast tensors, as of a factor, also scale with what they were combined with.

    Args:
        rows: Rows with ``entry``, ``phase``, ``shape_golden`` and ``source_shape``.
    """
    is_gradient = pl.col("phase") != Phase.FORWARD.value
    is_vector = pl.col("shape_golden").str.contains(r"^\[\d+\]$")
    is_added = pl.col("entry").str.contains(names.backward_of_any(_ADDITIONS))
    pairs = rows.select(pair=pl.when(is_gradient & is_added).then(pl.concat_str("shape_golden", "source_shape")))
    found = {pair: _is_broadcast(pair) for pair in pairs["pair"].unique().drop_nulls()}
    is_broadcast = pairs.select(
        pl.col("pair").replace_strict(found, default=False, return_dtype=pl.Boolean)
    ).to_series()
    return rows.select(is_sum=is_gradient & (is_vector | is_broadcast))


def _is_broadcast(pair: str) -> bool:
    """Whether the first of two shapes, such as ``"[4, 1][4, 17]"``, is broadcast to the second."""
    shape, source = ([int(size) for size in text.split(", ") if size] for text in pair[1:-1].split("]["))
    ends = zip(reversed(shape), reversed(source), strict=False)
    return shape != source and len(shape) <= len(source) and all(own in (1, size) for own, size in ends)


def is_vanishing_sum(table: LimitTable) -> pl.Expr:
    """Whether this is a gradient of `summed` that is negligible relative to the terms of its sum."""
    if not RoundingRule.VANISHING_SUMS.is_on:
        return pl.lit(value=False)
    # In an autocast context, the gradient of a bias in float32 is a sum of float16 gradients.
    golden = pl.max_horizontal("precision_golden", "source_precision")
    is_golden_zero = pl.col("norm_golden") <= _share_of_sum(table, golden) * pl.col("source_norm")
    return pl.col("is_sum") & is_golden_zero & (pl.col("norm_target") <= _largest_sum(table))


def _largest_sum(table: LimitTable) -> pl.Expr:
    """Return the largest norm of a target's sum of roundings."""
    return _ANOTHER_DRAW * _share_of_sum(table, pl.col("precision")) * pl.col("source_norm")


def _share_of_sum(table: LimitTable, precision: pl.Expr) -> pl.Expr:
    num_terms = pl.col("source_numel") / pl.col("numel_golden")
    growth = pl.when((precision <= int(Precision.FLOAT32)) & (num_terms > 1)).then(num_terms.sqrt()).otherwise(1.0)
    return pl.min_horizontal(table.vanishing_share_of(precision) * growth, table.limit_of(precision))


def noise_rows(rows: Rows, table: LimitTable) -> list[int]:
    """Return the indices of rows beyond their limits that are noise by the second rule, or computed from noise alone.

    Sums that are noise by the first rule are among them too, unless a few in coarse precision may be so by chance.

    Args:
        rows: Rows with ``limit``, ``is_sum``, the columns of sources and both precisions.
        table: The limits in force.
    """
    if not RoundingRule.NOISE_GRADIENTS.is_on:
        return []
    is_gradient = pl.col("phase").is_in([Phase.BACKWARD.value, Phase.PARAMETERS_GRAD.value])
    is_beyond = (pl.col("error") > pl.col("limit")) & (pl.col("limit") > 0) & (pl.col("norm_golden") > 0)
    columns = ("entry", "role", "precision", "precision_golden", "norm_target", *_OF_SOURCES, *_IDENTITY)
    is_fine = pl.col("precision_golden") <= int(Precision.FLOAT32)
    is_telling = is_fine | (pl.col("numel_golden") >= _FEW)
    suspects = filtered(rows, columns, is_gradient & is_beyond, "row").with_columns(
        own=table.vanishing_share_of(pl.col("precision_golden")),
        shared=table.vanishing_share_of(pl.col("precision")),
        largest_sum=pl.when(is_vanishing_sum(table) & is_telling).then(_largest_sum(table)),
    )
    seeds = suspects.filter(
        (pl.col("role") != Role.INPUT.value)
        & is_fine
        & (pl.col("norm_golden") <= pl.col("own") * pl.col("source_norm"))
        & (pl.col("norm_target") <= pl.col("shared") * pl.col("source_norm"))
    )
    sums = suspects.filter(pl.col("largest_sum").is_not_null())["row"].to_list()
    if not seeds.height and not sums:
        return []
    share = _smallest_share(rows, seeds["entry"].unique().to_list())
    columns = ("row", "entry", "norm_golden", "own", "source_norm")
    is_noise = {
        row
        for row, entry, norm, own, source in seeds.select(columns).rows()
        if norm <= own * source * share.get(entry, 0.0)
    }
    return _with_consequences(rows, suspects, is_noise.union(sums))


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
    scale = pl.coalesce(pl.col("largest_sum") / pl.col("shared"), "source_norm")
    columns = ("row", "entry", "role", "norm_target", "shared", scale, *_IDENTITY)
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
