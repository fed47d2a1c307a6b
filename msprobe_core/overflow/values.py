"""What is not finite in a dump, value by value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from msprobe_core import names
from msprobe_core.model import Phase, Role
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import RowKind

MAX_BAD_ENTRIES = 5_000
"""So many entries of a rank with NaN or Inf are followed; what comes behind has no new causes."""

_LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}
"""Largest finite values; source: IEEE 754 and ``torch.finfo``."""

_NEAR = 8
"""A value is near the end of its range from an eighth of it on: three more doublings."""


class Bad(NamedTuple):
    """A value that is, or holds, NaN or Inf.

    Attributes:
        name: What reports call it.
        path: Its place in its part of the call.
        role: Which part that is.
        is_tensor: Or else a number.
        type: Of a number, what kind.
        dtype: Of a tensor.
        shape: Likewise, as text.
        numel: Likewise.
        has_nan: Whether it holds NaN.
        has_inf: Whether it holds Inf, as far as the dump tells.
        num_nan: ``None`` where nobody counted.
        num_inf: Likewise.
        max: NaN where there is a NaN.
        min: Likewise.
        norm: Likewise.
    """

    name: str
    path: str
    role: str
    is_tensor: bool
    type: str
    dtype: str
    shape: str
    numel: int | None
    has_nan: bool
    has_inf: bool
    num_nan: int | None
    num_inf: int | None
    max: float | None
    min: float | None
    norm: float | None

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for one tensor wherever it is seen, and hardly for two."""
        return self.shape, self.dtype, self.num_nan, self.num_inf, repr(self.max), repr(self.min), repr(self.norm)


class BadEntry(NamedTuple):
    """A call with NaN or Inf.

    Attributes:
        entry: Its name.
        position: Its place in execution order.
        phase: Of the entry.
        values: Those that are not finite, in the order of the rows.
        num_results: How many floating-point tensors it returned; 0 where none was recorded.
        has_inputs: Whether anything is known of what it was given.
    """

    entry: str
    position: int
    phase: Phase
    values: Sequence[Bad]
    num_results: int
    has_inputs: bool


@dataclass(frozen=True)
class NearEnd:
    """A finite value near the end of its range.

    Attributes:
        name: What reports call it.
        entry: Call that it belongs to.
        dtype: Of the tensor.
        extreme: The largest magnitude in it.
        share: Of the largest finite value.
    """

    name: str
    entry: str
    dtype: str
    extreme: float
    share: float


class RankValues(NamedTuple):
    """What is not finite in the dump of one rank.

    Attributes:
        entries: Calls with such values, in execution order.
        num_entries: How many calls the dump has.
        num_bad: How many of these have such values.
        num_tensors: How many tensors with several elements it has.
        num_judged: Of how many of them it says whether they are finite.
        near_end: The finite values that are nearest to the end of their range, the nearest first.
        parents: Enclosing call of each; empty where nothing is wrong.
        modules: Recorded calls of modules, likewise.
    """

    entries: Sequence[BadEntry]
    num_entries: int
    num_bad: int
    num_tensors: int
    num_judged: int
    near_end: Sequence[NearEnd]
    parents: Mapping[str, str | None]
    modules: frozenset[str]


def values_of(dump: Dump, max_near: int = 3) -> RankValues:
    """Return what is not finite in a dump.

    Args:
        dump: Of one rank.
        max_near: How many values near the end of their range are named.
    """
    frame = dump.frame
    is_tensor = pl.col("kind") == RowKind.TENSOR.value
    is_float = (pl.col("kind") == RowKind.SCALAR.value) & (pl.col("type") == "float")
    extremes = pl.col("max"), pl.col("min")
    # Only NaN makes a norm NaN. A mean is NaN where sums overflow both ways, too, so it counts where nothing else does.
    means = pl.when(pl.col("max").is_null() & pl.col("min").is_null()).then(pl.col("mean"))
    has_nan = (pl.col("num_nan") > 0).fill_null(False) | pl.any_horizontal(
        *[value.is_nan().fill_null(False) for value in (*extremes, pl.col("norm"), means)]
    )
    has_inf = (pl.col("num_inf") > 0).fill_null(False) | pl.any_horizontal(
        *[value.is_infinite().fill_null(False) for value in extremes]
    )
    # Some tools keep a tensor with one element as the number it is, whatever they keep of others.
    has_several = (is_tensor & (pl.col("numel") > 1)).fill_null(False)
    counts = frame.select(
        tensors=has_several.sum(),
        judged=(has_several & (pl.col("max").is_not_null() | pl.col("num_nan").is_not_null())).sum(),
        entries=pl.col("entry").n_unique(),
    ).row(0)
    numbered = frame.with_columns(position=pl.col("entry").rle_id(), has_nan=has_nan, has_inf=has_inf)
    is_bad = (pl.col("has_nan") | pl.col("has_inf")) & (is_tensor | is_float)
    bad = numbered.filter(is_bad)
    num_bad = bad["position"].n_unique()
    entries = _entries_of(bad, numbered) if num_bad else []
    parents: Mapping[str, str | None] = dump.parents if num_bad else {}
    modules = frozenset(filter(names.is_module, frame["entry"].unique())) if num_bad else frozenset[str]()
    near = _near_end(frame, max_near)
    return RankValues(entries, counts[2], num_bad, counts[0], counts[1], near, parents, modules)


_FLOATING = r"(?i)(float|bfloat|complex|half|double)"


def _entries_of(bad: pl.DataFrame, numbered: pl.DataFrame) -> list[BadEntry]:
    positions = bad["position"].unique(maintain_order=True).head(MAX_BAD_ENTRIES)
    own = numbered.join(positions.to_frame(), on="position", how="semi")
    results = (
        own.filter(
            pl.col("role").is_in([Role.OUTPUT.value, Role.PARAMETERS_GRAD.value])
            & (pl.col("kind") == RowKind.TENSOR.value)
            & pl.col("dtype").str.contains(_FLOATING)
        )
        .group_by("position")
        .len()
    )
    num_results = dict(results.rows())
    with_inputs = set(own.filter(pl.col("role") == Role.INPUT.value)["position"].to_list())
    stem = pl.concat_str(pl.col("entry"), pl.lit("."), pl.col("role").cast(pl.String), pl.lit("."))
    rows = bad.join(positions.to_frame(), on="position", how="semi").select(
        "position", "entry", "phase", "name", pl.col("key").str.strip_prefix(stem).alias("path"), "role",
        pl.col("kind") == RowKind.TENSOR.value, pl.col("type").fill_null(""), pl.col("dtype").fill_null(""),
        pl.col("shape").fill_null(""), "numel", "has_nan", "has_inf", "num_nan", "num_inf", "max", "min", "norm",
    )  # fmt: skip
    found: dict[int, BadEntry] = {}
    for position, entry, phase, *cells in rows.rows():
        call = found.get(position)
        if call is None:
            call = found[position] = BadEntry(
                entry, position, Phase(phase), [], num_results.get(position, 0), position in with_inputs
            )
        values: list[Bad] = call.values  # pyright: ignore[reportAssignmentType]
        values.append(Bad(*cells))
    return list(found.values())


def _near_end(frame: pl.DataFrame, max_near: int) -> list[NearEnd]:
    """Return the finite values that are nearest to the end of their range; the very end is a mask, made on purpose."""
    largest = {
        dtype: limit
        for dtype in frame["dtype"].unique().drop_nulls()
        for name, limit in _LARGEST.items()
        if dtype.lower().rpartition(".")[2] == name
    }
    if not largest:
        return []
    limit = pl.col("dtype").replace_strict(largest, default=None, return_dtype=pl.Float64)
    sizes = pl.concat_list(
        *[pl.when(side.abs() == limit).then(None).otherwise(side.abs()) for side in (pl.col("max"), pl.col("min"))]
    )
    extreme = sizes.list.max()
    near = (
        frame.filter(pl.col("kind") == RowKind.TENSOR.value)
        .with_columns(extreme=extreme, share=extreme / limit)
        .filter(pl.col("extreme").is_finite() & (pl.col("share") >= 1 / _NEAR))
        .unique("extreme", keep="first", maintain_order=True)
        .sort("share", descending=True, maintain_order=True)
        .head(max_near)
        .select("name", "entry", "dtype", "extreme", "share")
    )
    return [NearEnd(*row) for row in near.rows()]
