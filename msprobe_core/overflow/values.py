"""The values of a dump that are not finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from msprobe_core import names
from msprobe_core.model import Phase, Role
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.dtype_values import FORMS
from msprobe_core.store.frame import RowKind

MAX_BAD_ENTRIES = 5_000
"""Maximum number of a rank's entries with NaN or Inf that are tracked; later ones have no new causes."""

_LARGEST = {dtype: FORMS[dtype].largest for dtype in ("float16", "bfloat16", "float32")}

_NEAR = 8
"""A value is near the end of its range from an eighth of it: three more doublings."""


class Bad(NamedTuple):
    """A value that is, or contains, NaN or Inf.

    Attributes:
        name: Name in reports.
        path: Its position within its role.
        role: Role in the call.
        is_tensor: Whether it is a tensor; otherwise it is a number.
        type: Type of a number.
        dtype: Dtype of a tensor.
        shape: Shape of a tensor, as text.
        numel: Number of elements of a tensor.
        has_nan: Whether it contains NaN.
        has_inf: Whether it contains Inf, as far as the dump shows.
        num_nan: Number of NaN; ``None`` if not counted.
        num_inf: Number of Inf; ``None`` if not counted.
        max: Maximum; NaN if the value contains NaN.
        min: Minimum; NaN if the value contains NaN.
        norm: L2 norm; NaN if the value contains NaN.
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
        """Equal for one tensor wherever it appears, and rarely for two different ones."""
        return self.shape, self.dtype, self.num_nan, self.num_inf, repr(self.max), repr(self.min), repr(self.norm)


class BadEntry(NamedTuple):
    """A call with NaN or Inf.

    Attributes:
        entry: Entry name.
        position: Its index in execution order.
        phase: Phase of the entry.
        values: Values that are not finite, in the order of the rows.
        num_results: Number of floating-point tensors that it returned; 0 if none was recorded.
        has_inputs: Whether any of its inputs was recorded.
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
        name: Name in reports.
        entry: The call.
        dtype: Dtype of the tensor.
        extreme: Its largest magnitude.
        share: The magnitude divided by the largest finite value.
    """

    name: str
    entry: str
    dtype: str
    extreme: float
    share: float


class RankValues(NamedTuple):
    """The values of one rank's dump that are not finite.

    Attributes:
        entries: Calls with such values, in execution order.
        num_entries: Number of calls in the dump.
        num_bad: How many of these have such values.
        num_tensors: Number of tensors with several elements.
        num_judged: For how many of them it is known whether they are finite.
        near_end: The finite values nearest to the end of their range, the nearest first.
        parents: Parent of each call; empty if nothing is wrong.
        modules: Recorded calls of modules; empty if nothing is wrong.
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
    """Return the values of a dump that are not finite.

    Args:
        dump: Dump of one rank.
        max_near: Maximum number of values near the end of their range to return.
    """
    frame = dump.frame
    is_tensor = pl.col("kind") == RowKind.TENSOR.value
    is_float = (pl.col("kind") == RowKind.SCALAR.value) & (pl.col("type") == "float")
    extremes = pl.col("max"), pl.col("min")
    # Only NaN makes a norm NaN. A mean is also NaN if sums overflow in both directions, so use it only as a last
    # resort.
    means = pl.when(pl.col("max").is_null() & pl.col("min").is_null()).then(pl.col("mean"))
    has_nan = (pl.col("num_nan") > 0).fill_null(False) | pl.any_horizontal(
        *[value.is_nan().fill_null(False) for value in (*extremes, pl.col("norm"), means)]
    )
    has_inf = (pl.col("num_inf") > 0).fill_null(False) | pl.any_horizontal(
        *[value.is_infinite().fill_null(False) for value in extremes]
    )
    # Some tools record a tensor with one element as a number, whatever they record of others.
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
    """Return the finite values nearest to the end of their range; the end itself is excluded as an intended mask."""
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
