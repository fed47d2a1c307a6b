"""Values that an optimizer computes from a gradient that is rounding noise.

A gradient that vanishes in exact arithmetic, such as that of a bias that a softmax cancels, is excused where it is
computed. Clipping and the optimizer take it as input: their results are as arbitrary, and Adam makes them as large as
any other update. They are recognised by their statistics, on both sides, and by the size that errors of the inputs have
after the call: the total norm of all gradients does not depend on this one, so
it is judged as usual.

Only calls that compute elements one by one are followed, and norms of single tensors; lists of tensors item by item.
A sum over ranks is one of them. What vanishes in exact arithmetic does so on each rank or, if each rank has a part of a
sequence, in the sum alone: the bias of attention's keys is cancelled by a softmax over the keys of all ranks. A sum
below some unit round-offs of a rank's part has the size of that part's roundings, so it is noise whatever the other
parts are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import polars as pl

from msprobe_core import names
from msprobe_core.judge.columns import Match
from msprobe_core.judge.joining import filtered
from msprobe_core.judge.limits import LimitTable
from msprobe_core.judge.noise.effects import Size
from msprobe_core.judge.noise.operations import known_as
from msprobe_core.judge.rounding_rules import RoundingRule
from msprobe_core.model import Phase, Role
from msprobe_core.store.frame import sizes_in
from msprobe_core.store.stored_rows import Rows

_IDENTITY = tuple(f"{name}_{side}" for name in ("norm", "mean", "max", "min") for side in ("target", "golden"))
_PLACE = r"\.(?:input|output)\.(\w+)(?:\.(\d+))?$"
_FOREACH = "_foreach_"
_SEEN = 4.0
"""Multiple of the observed difference that an element's error may have; see `msprobe_core.judge.noise.propagation`."""

_OF_RANKS = 100.0
"""Size of a sum of noise in units of one part: noise of 10,000 ranks adds up to the root of that number."""

_TWO_DRAWS = 2.0
"""Difference of two tensors that are nothing but noise, at an element, in units of the largest element."""

_LONGEST_CHAIN = 16
"""Largest number of calls from a gradient to its parameter that is followed; that of AdamW with clipping has ten."""


class _Call(NamedTuple):
    """One call, or the part of a call on lists that treats one tensor."""

    entry: str
    item: str | None


class _Row(NamedTuple):
    """A tensor that a call got or made."""

    row: int
    role: str
    place: str
    error: float
    size: Size


class _Noise:
    """Rows that have noise.

    Attributes:
        rows: All of them.
        pure: Those of nothing but noise. Statistics of two draws may be alike by chance, although no element is.
    """

    def __init__(self, sums: pl.DataFrame) -> None:
        self.rows = set[int](sums["row"])
        self.pure = set[int](sums["row"])


def rows_of_noise(rows: Rows, is_noise: pl.Expr, table: LimitTable) -> list[int]:
    """Return the indices of rows of forward calls that are computed from noise, in one framework's optimizer.

    Args:
        rows: Aligned rows in execution order, with ``error``.
        is_noise: Whether a row is the gradient of a parameter, or another gradient, that is noise.
        table: The limits in force.
    """
    if not RoundingRule.NOISE_IN_UPDATES.is_on:
        return []
    seeds = filtered(rows, _IDENTITY, is_noise & (pl.col("phase") != Phase.FORWARD.value) & (pl.col("error") > 0))
    sums = _cancelled_sums(rows, table)
    if seeds.is_empty() and sums.is_empty():
        return []
    calls = _calls(rows)
    found = _Noise(sums)
    frontier = pl.concat([seeds, sums.select(_IDENTITY)]).with_columns(is_pure=pl.lit(value=True))
    for _ in range(_LONGEST_CHAIN):
        values = frontier.group_by(_IDENTITY).agg(pl.col("is_pure").any())
        got = calls.filter(pl.col("role") == Role.INPUT.value).join(values, on=_IDENTITY, nulls_equal=True)
        got = got.filter(~pl.col("row").is_in(list(found.rows)))
        if got.is_empty():
            break
        found.rows.update(got["row"])
        found.pure.update(got.filter("is_pure")["row"])
        made = _made(calls, got, found)
        frontier = calls.filter(pl.col("row").is_in(made)).select(
            *_IDENTITY, is_pure=pl.col("row").is_in(list(found.pure))
        )
    return sorted(found.rows)


def _cancelled_sums(rows: Rows, table: LimitTable) -> pl.DataFrame:
    """Return the sums over ranks, of one tensor, that are the roundings of their parts on both sides and differ."""
    is_value = (pl.col("match") == Match.BOTH.value) & pl.col("norm_golden").is_not_null()
    is_sum = pl.col("entry").str.contains(names.ALL_REDUCE_FORWARD) & (pl.col("phase") == Phase.FORWARD.value)
    columns = ("entry", "role", "precision", "precision_golden", "error", *_IDENTITY)
    values = filtered(rows, columns, is_sum & is_value & pl.col("precision").is_not_null(), "row")
    parts = (
        values.filter(pl.col("role") == Role.INPUT.value)
        .group_by("entry")
        .agg(pl.len(), part_golden=pl.col("norm_golden").first(), part_target=pl.col("norm_target").first())
        .filter(pl.col("len") == 1)
    )
    made = values.filter((pl.col("role") == Role.OUTPUT.value) & (pl.col("error") > 0)).join(parts, on="entry")
    own, shared = (table.vanishing_share_of(pl.col(name)) for name in ("precision_golden", "precision"))
    return made.filter(
        (pl.col("norm_golden") <= own * pl.col("part_golden"))
        & (pl.col("norm_target") <= shared * pl.col("part_target"))
    ).select("row", *_IDENTITY)


def _calls(rows: Rows) -> pl.DataFrame:
    """Return the tensors of forward calls of APIs that differ or may explain others, with their place in the call."""
    is_value = pl.col("role").is_in([Role.INPUT.value, Role.OUTPUT.value]) & (pl.col("match") == Match.BOTH.value)
    is_api = ~pl.col("entry").str.contains(names.MODULE)
    is_forward = pl.col("phase") == Phase.FORWARD.value
    columns = ("key", "entry", "role", "error", "numel_golden", "shape_golden", *_IDENTITY)
    return (
        filtered(rows, columns, is_forward & is_value & is_api & pl.col("norm_golden").is_not_null(), "row")
        .with_columns(pl.col("key").str.extract(_PLACE, group).alias(f"at_{group}") for group in (1, 2))
        .with_columns(
            # A list has its tensors at `input.0.7`, and its results at `output.7` or `output.0.7`.
            item=pl.when(~pl.col("entry").str.contains(_FOREACH, literal=True))
            .then(None)
            .when(pl.col("role") == Role.OUTPUT.value)
            .then(pl.coalesce("at_2", "at_1"))
            .otherwise("at_2")
        )
        .drop("key")
    )


def _made(calls: pl.DataFrame, got: pl.DataFrame, found: _Noise) -> list[int]:
    """Return the results that differ no more than the noise among their inputs explains; they are noise from now on."""
    of = ["entry", "item"]
    wanted = calls.join(got.select(of).unique(), on=of, how="semi", nulls_equal=True)
    numbers = calls.filter((pl.col("item").is_null()) & (pl.col("at_1") == "value")).select("entry", "max_golden")
    factors = {entry: abs(value) for entry, value in numbers.rows() if value is not None}
    made: list[int] = []
    for call, members in _grouped(wanted).items():
        given = [row for row in members if row.role == Role.INPUT.value]
        for result in members:
            if result.role == Role.OUTPUT.value and result.row not in found.rows:
                most = _explained(call, given, result, found, factors.get(call.entry, 1.0))
                if result.error <= most:
                    made.append(result.row)
                    if most >= _OF_RANKS:
                        found.pure.add(result.row)
    found.rows.update(made)
    return made


def _grouped(wanted: pl.DataFrame) -> Mapping[_Call, Sequence[_Row]]:
    grouped: dict[_Call, list[_Row]] = {}
    columns = ["entry", "item", "row", "role", "at_1", "error", "shape_golden"]
    sizes = [f"{name}_golden" for name in ("numel", "norm", "mean", "max", "min")]
    for entry, item, row, role, place, error, shape, *size in wanted.select(*columns, *sizes).rows():
        if not all(value is not None and math.isfinite(value) for value in size) or not size[0]:
            continue
        numel, norm, mean, high, low = size
        measured = Size(float(numel), norm, mean, high, low, sizes_in(shape))
        grouped.setdefault(_Call(entry, item), []).append(_Row(row, role, place, error or 0.0, measured))
    return grouped


def _explained(call: _Call, given: Sequence[_Row], result: _Row, found: _Noise, factor: float) -> float:
    """Return the error of a result, relative to its size, that the noise among the inputs explains.

    Infinite if the result is noise alone.
    """
    operation = known_as(names.function_of(call.entry).removeprefix(_FOREACH))
    parts = {row.place: _Part.of(row, found) for row in given}
    if operation == "norm" and result.size.numel == 1:
        return _arbitrary(max((part.error for part in parts.values()), default=0.0))
    if any(row.row in found.rows and row.size.numel != result.size.numel for row in given):
        return 0.0
    formula = _FORMULAS.get(operation)
    size = result.size.rms
    most = _arbitrary(formula(parts, factor, size)) if formula is not None and size else 0.0
    return min(most, _OF_RANKS) if formula is _sum_over_ranks else most


def _arbitrary(error: float) -> float:
    return error if error < 1 else math.inf


class _Part(NamedTuple):
    """An input: its size, and how far its elements may be off relative to that."""

    rms: float
    smallest: float
    error: float

    @staticmethod
    def of(row: _Row, found: _Noise) -> _Part:
        size = row.size
        # The observed difference of an extreme is relative to the extreme.
        crest = size.largest / size.rms if size.rms else 1.0
        error = _SEEN * crest * row.error if row.row in found.rows else 0.0
        if row.row in found.pure:
            error = max(error, _TWO_DRAWS * crest)
        return _Part(size.rms, size.smallest or size.rms, error)


_Parts = Mapping[str, _Part]


def _sum(parts: _Parts, factor: float, size: float) -> float:
    del factor
    return sum(part.error * part.rms for part in parts.values()) / size


def _sum_over_ranks(parts: _Parts, factor: float, size: float) -> float:
    """The parts of other ranks are noise too, unless the sum is much larger than this rank's part."""
    is_of_noise = all(size <= _OF_RANKS * part.rms for part in parts.values())
    return _product(parts, factor, size) if is_of_noise else _sum(parts, factor, size)


def _product(parts: _Parts, factor: float, size: float) -> float:
    del factor, size
    return sum(part.error for part in parts.values())


def _quotient(parts: _Parts, factor: float, size: float) -> float:
    del factor, size
    above, *below = parts.values()
    return above.error + sum(part.error * part.rms / part.smallest for part in below)


def _root(parts: _Parts, factor: float, size: float) -> float:
    """Elements near zero: the root of an error, which is relative to others."""
    del factor, size
    return math.sqrt(sum(part.error for part in parts.values()))


def _sum_of_product(parts: _Parts, factor: float, size: float) -> float:
    if not {"0", "1", "2"} <= parts.keys():
        return 0.0
    before, one, other = (parts[place] for place in "012")
    return (before.error * before.rms + factor * one.rms * other.rms * (one.error + other.error)) / size


def _sum_of_quotient(parts: _Parts, factor: float, size: float) -> float:
    """Adam's update: elements may get the other sign."""
    if not {"0", "1", "2"} <= parts.keys():
        return 0.0
    before, above, below = (parts[place] for place in "012")
    error = above.error + below.error * below.rms / below.smallest
    return (before.error * before.rms + factor * above.rms / below.smallest * error) / size


_FORMULAS: Mapping[str, Callable[[_Parts, float, float], float]] = {
    "add": _sum, "sub": _sum, "lerp": _sum, "mul": _product, "div": _quotient, "sqrt": _root, "clone": _product,
    "addcmul": _sum_of_product, "addcdiv": _sum_of_quotient, "allreduce": _sum_over_ranks,
    "ampforeachnonfinitecheckandunscale": _product,
}  # fmt: skip
"""Error of a result by operation, from those of its inputs, the factor ``value`` and the size of the result."""
